package fencepost_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"fencepost"
)

func TestASubmittedJobComesBackAsItWasAskedFor(t *testing.T) {
	runAt := time.Date(2099, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	base, factor, longest, none := 3*time.Second, 2.5, time.Minute, 0.0
	backoff := fencepost.Backoff{Type: "fixed", Base: &base, Factor: &factor, Max: &longest, Jitter: &none}
	asked := fencepost.Submission{
		Kind: "k", Queue: queueOf(t), Payload: json.RawMessage(`{"id": 9007199254740993, "<": "&"}`), Priority: -5,
		RunAt: runAt, MaxAttempts: 3, Backoff: &backoff, MaxRuntime: 90 * time.Second,
		ProgressTimeout: 1500 * time.Millisecond, Metadata: map[string]string{"a": "b"}, IdempotencyKey: queueOf(t),
	}
	submitted, err := client(t).Submit(within(t), asked)
	if err != nil || !submitted.Created {
		t.Fatal(submitted.Created, err)
	}
	job, err := client(t).Get(within(t), submitted.Job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if job.State != fencepost.Scheduled || job.Kind != "k" || job.Queue != asked.Queue || job.Priority != -5 ||
		!job.RunAt.Equal(runAt) || job.MaxAttempts != 3 || !reflect.DeepEqual(job.Backoff, backoff) ||
		job.MaxRuntime != asked.MaxRuntime || job.ProgressTimeout != asked.ProgressTimeout ||
		job.Metadata["a"] != "b" || job.IdempotencyKey != asked.IdempotencyKey ||
		string(job.Payload) != `{"id":9007199254740993,"<":"&"}` {
		t.Errorf("%+v", job)
	}
}

func TestABackoffThatIsHalfGivenIsTheServicesOwnForTheRest(t *testing.T) {
	submitted, err := client(t).Submit(within(t), fencepost.Submission{
		Kind: "k", Queue: queueOf(t), Backoff: &fencepost.Backoff{Type: "linear"},
	})
	if err != nil {
		t.Fatal(err)
	}
	base, factor, longest, jitter := 5*time.Second, 2.0, time.Hour, 0.1
	whole := fencepost.Backoff{Type: "linear", Base: &base, Factor: &factor, Max: &longest, Jitter: &jitter}
	if !reflect.DeepEqual(submitted.Job.Backoff, whole) {
		t.Errorf("%+v", submitted.Job.Backoff)
	}
}

func TestTheSameKeyIsTheSameJob(t *testing.T) {
	asked := fencepost.Submission{Kind: "k", Queue: queueOf(t), IdempotencyKey: queueOf(t)}
	first, err := client(t).Submit(within(t), asked)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := client(t).SubmitMany(within(t), []fencepost.Submission{asked, {Kind: "other", Queue: asked.Queue}})
	if err != nil {
		t.Fatal(err)
	}
	if batch[0].Created || batch[0].Job.ID != first.Job.ID || !batch[1].Created || batch[1].Job.Kind != "other" {
		t.Errorf("%+v", batch)
	}
	asked.Kind = "another"
	_, err = client(t).Submit(within(t), asked)
	mustBe(t, err, fencepost.ErrIdempotencyKeyReused)
}

func TestTwoSubmissionsWithoutAKeyAreTwoJobs(t *testing.T) {
	asked := fencepost.Submission{Kind: "k", Queue: queueOf(t)}
	first, second := submit(t, asked), submit(t, asked)
	if first.ID == second.ID {
		t.Error("they are one")
	}
}

func TestARefusalNamesThePlace(t *testing.T) {
	_, err := client(t).Submit(within(t), fencepost.Submission{Kind: "no kind"})
	var problem *fencepost.Problem
	if !errors.As(err, &problem) || problem.Code != "invalid_request" || problem.Status != 422 ||
		problem.RequestID == "" || len(problem.Errors) != 1 || problem.Errors[0].Pointer != "/kind" {
		t.Fatalf("%#v", err)
	}
}

func TestACancelledJobCanBeRedriven(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "k", Queue: queueOf(t)})
	cancelled, err := client(t).Cancel(within(t), job.ID, "not wanted", false)
	if err != nil || cancelled.State != fencepost.Cancelled || cancelled.Error.Message != "not wanted" {
		t.Fatalf("%+v %v", cancelled, err)
	}
	again, err := client(t).Redrive(within(t), job.ID, time.Time{})
	if err != nil || again.State != fencepost.Ready || again.LeaseVersion <= job.LeaseVersion {
		t.Fatalf("%+v %v", again, err)
	}
	later, err := client(t).Cancel(within(t), job.ID, "", true)
	if err != nil || later.State != fencepost.Cancelled {
		t.Fatalf("%+v %v", later, err)
	}
	later, err = client(t).Redrive(within(t), job.ID, time.Now().Add(time.Hour))
	if err != nil || later.State != fencepost.Scheduled {
		t.Fatalf("%+v %v", later, err)
	}
}

func TestAnUnknownJobIsNotFound(t *testing.T) {
	_, err := client(t).Get(within(t), "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d")
	mustBe(t, err, fencepost.ErrJobNotFound)
	_, err = client(t).Wait(within(t), "no-id")
	mustBe(t, err, fencepost.ErrJobNotFound)
}

func TestAWaitThatEndsWithItsContextHasTheJobAsItWasSeenLast(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "k", Queue: queueOf(t)})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	seen, err := client(t).Wait(ctx, job.ID)
	mustBe(t, err, context.DeadlineExceeded)
	if seen == nil || seen.State != fencepost.Ready {
		t.Errorf("%+v", seen)
	}
}

func TestAChildOfALeaseThatIsNotHeldIsRefused(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "k", Queue: queueOf(t)})
	_, err := client(t).Submit(within(t), fencepost.Submission{
		Kind: "child", Parent: &fencepost.Parent{JobID: job.ID, LeaseVersion: 1},
	})
	mustBe(t, err, fencepost.ErrLeaseLost)
	var lost *fencepost.LeaseLost
	if !errors.As(err, &lost) || lost.JobID != job.ID || lost.PresentedVersion != 1 || *lost.CurrentVersion != 0 ||
		lost.JobState != "ready" || lost.Reason != "unknown" {
		t.Errorf("%+v", lost)
	}
}
