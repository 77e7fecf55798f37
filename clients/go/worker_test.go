package fencepost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost"
)

type handlers = map[string]fencepost.Handler

func TestEveryJobOfAllQueuesIsDoneOnceUnderLoad(t *testing.T) {
	queues := []string{queueOf(t) + "a", queueOf(t) + "b"}
	const count = 2000
	for _, queue := range queues {
		some := make([]fencepost.Submission, count/2)
		for i := range some {
			some[i] = fencepost.Submission{Kind: "double", Queue: queue, Payload: i}
		}
		if _, err := client(t).SubmitMany(within(t), some); err != nil {
			t.Fatal(err)
		}
	}
	var runs counted
	var inHand, most, done atomic.Int64
	all := make(chan struct{})
	double := fencepost.HandlerOf(func(_ context.Context, job *fencepost.Job, number int) (any, error) {
		now := inHand.Add(1)
		defer inHand.Add(-1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		runs.add(job.ID)
		job.Progress(100, "doubled")
		if done.Add(1) == count {
			close(all)
		}
		return number * 2, nil
	})
	worker := work(t, fencepost.WorkerOptions{Queues: queues, Concurrency: 40}, handlers{"double": double})
	received(t, all)
	worker.stop(t)
	if len(runs.counts) != count || most.Load() > 40 {
		t.Errorf("%d jobs, %d at once", len(runs.counts), most.Load())
	}
	for id, times := range runs.counts {
		if times != 1 {
			t.Errorf("job %s ran %d times", id, times)
		}
	}
	job := finished(t, anyOf(runs.counts), fencepost.Succeeded)
	var number, result int
	if json.Unmarshal(job.Payload, &number) != nil || json.Unmarshal(job.Result, &result) != nil || result != 2*number {
		t.Errorf("%s → %s", job.Payload, job.Result)
	}
}

func anyOf(counts map[string]int) string {
	for id := range counts {
		return id
	}
	return ""
}

func TestAHandlerIsGivenTheJobItsTokenAndItsDeadline(t *testing.T) {
	job := submit(t, fencepost.Submission{
		Kind: "look", Queue: queueOf(t), Payload: "p", MaxRuntime: time.Hour, Metadata: map[string]string{"m": "n"},
	})
	given := make(chan *fencepost.Job, 1)
	left := make(chan time.Duration, 1)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}}, handlers{
		"look": func(ctx context.Context, job *fencepost.Job) (any, error) {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			given <- job
			return nil, job.Verify(ctx)
		},
	})
	got := received(t, given)
	if got.ID != job.ID || got.Kind != "look" || string(got.Payload) != `"p"` || got.Attempt != 1 ||
		got.MaxAttempts != 10 || got.LeaseVersion < 1 || got.Metadata["m"] != "n" || got.Previous != nil ||
		string(got.Checkpoint) != "null" || got.IdempotencyKey("charge") != job.ID+":charge" {
		t.Errorf("%+v", got)
	}
	// The service's time in the answer is that of the database, give or take a round trip.
	if span := received(t, left); span > 61*time.Minute || span < 58*time.Minute {
		t.Errorf("the deadline is %v away", span)
	}
	if end := finished(t, job.ID, fencepost.Succeeded); end.LeaseVersion != got.LeaseVersion {
		t.Errorf("%d, not %d", end.LeaseVersion, got.LeaseVersion)
	}
}

func TestAnErrorIsTriedAgainWithTheCheckpointAndWhatWentWrong(t *testing.T) {
	job := submit(t, fencepost.Submission{
		Kind: "row", Queue: queueOf(t), Backoff: &fencepost.Backoff{Type: "fixed", Base: new(time.Duration)},
	})
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}}, handlers{
		"row": func(ctx context.Context, job *fencepost.Job) (any, error) {
			if job.Attempt == 1 {
				if err := job.SaveCheckpoint(ctx, map[string]int{"row": 500}); err != nil {
					return nil, err
				}
				return nil, fmt.Errorf("the disk: %w", errors.New("full"))
			}
			return map[string]any{
				"checkpoint": job.Checkpoint, "outcome": job.Previous.Outcome, "message": job.Previous.Error.Message,
			}, nil
		},
	})
	end := finished(t, job.ID, fencepost.Succeeded)
	if string(end.Result) != `{"checkpoint":{"row":500},"message":"the disk: full","outcome":"failed"}` {
		t.Errorf("%s", end.Result)
	}
}

func TestAPanicFailsTheJobAndTheWorkerGoesOn(t *testing.T) {
	queue := queueOf(t)
	bad := submit(t, fencepost.Submission{Kind: "bad", Queue: queue, MaxAttempts: 1})
	gone := submit(t, fencepost.Submission{Kind: "gone", Queue: queue, MaxAttempts: 1})
	none := submit(t, fencepost.Submission{Kind: "none", Queue: queue, MaxAttempts: 1})
	worker := work(t, fencepost.WorkerOptions{Queues: []string{queue}}, handlers{
		"bad":  func(context.Context, *fencepost.Job) (any, error) { panic("boom") },
		"gone": func(context.Context, *fencepost.Job) (any, error) { return exits(), nil },
		"none": func(context.Context, *fencepost.Job) (any, error) { return nil, (*noAddress)(nil) },
		"good": func(context.Context, *fencepost.Job) (any, error) { return 1, nil },
	})
	failed := finished(t, bad.ID, fencepost.Dead).Error
	if failed.Type != "panic" || failed.Message != "boom" || !strings.Contains(string(failed.Details), "worker_test.go") {
		t.Errorf("%s %s %s", failed.Type, failed.Message, failed.Details)
	}
	if failed := finished(t, gone.ID, fencepost.Dead).Error; failed.Type != "goexit" {
		t.Errorf("%+v", failed)
	}
	if failed := finished(t, none.ID, fencepost.Dead).Error; failed.Type != "panic" {
		t.Errorf("%+v", failed)
	}
	finished(t, submit(t, fencepost.Submission{Kind: "good", Queue: queue}).ID, fencepost.Succeeded)
	worker.stop(t)
}

// noAddress is an error whose nil pointer is one too, and cannot say what it is.
type noAddress struct{ to string }

func (n *noAddress) Error() string { return "no address " + n.to }

// exits ends the goroutine, as a test's FailNow does.
func exits() any {
	runtime.Goexit()
	return nil
}

func TestEachOutcomeEndsItsJob(t *testing.T) {
	queue := queueOf(t)
	large := strings.Repeat("x", 300_000)
	work(t, fencepost.WorkerOptions{Queues: []string{queue}}, handlers{
		"permanent": func(context.Context, *fencepost.Job) (any, error) {
			return nil, fencepost.Permanent(errors.New("never"))
		},
		"later": func(context.Context, *fencepost.Job) (any, error) {
			return nil, fencepost.RetryAfter(time.Hour, errors.New("later"))
		},
		"release": func(context.Context, *fencepost.Job) (any, error) {
			return nil, fencepost.Release{Delay: time.Hour, Reason: "closed"}
		},
		"large": func(context.Context, *fencepost.Job) (any, error) { return large, nil },
		"typed": fencepost.HandlerOf(func(context.Context, *fencepost.Job, int) (any, error) { return nil, nil }),
		"follow": func(context.Context, *fencepost.Job) (any, error) {
			next := fencepost.Submission{Kind: "next", Queue: queue + "-next"}
			return fencepost.Complete{Result: 1, Enqueue: []fencepost.Submission{next}}, nil
		},
	})
	kinds := map[string]string{}
	for _, kind := range []string{"permanent", "later", "release", "large", "typed", "follow", "nobody"} {
		kinds[kind] = submit(t, fencepost.Submission{Kind: kind, Queue: queue, Payload: "text"}).ID
	}
	for kind, wanted := range map[string]string{"permanent": "error", "large": "result_refused", "typed": "payload_refused"} {
		if failed := finished(t, kinds[kind], fencepost.Dead).Error; failed.Type != wanted {
			t.Errorf("%s: %+v", kind, failed)
		}
	}
	isScheduled := func(job *fencepost.JobInfo) bool { return job.State == fencepost.Scheduled }
	if job := until(t, kinds["later"], isScheduled); time.Until(job.RunAt) < 50*time.Minute || job.Attempt != 1 {
		t.Errorf("%+v", job)
	}
	if job := until(t, kinds["release"], isScheduled); time.Until(job.RunAt) < 50*time.Minute || job.Attempt != 0 {
		t.Errorf("%+v", job)
	}
	if job := until(t, kinds["nobody"], isScheduled); job.Error.Type != "unknown_kind" {
		t.Errorf("%+v", job.Error)
	}
	finished(t, kinds["follow"], fencepost.Succeeded)
	parents := make(chan *fencepost.Parent, 1)
	work(t, fencepost.WorkerOptions{Queues: []string{queue + "-next"}}, handlers{
		"next": func(_ context.Context, job *fencepost.Job) (any, error) {
			parents <- job.Parent
			return nil, nil
		},
	})
	if parent := received(t, parents); parent == nil || parent.JobID != kinds["follow"] {
		t.Errorf("%+v", parent)
	}
}

func TestACancelStopsTheHandlerWhichIsStillTheHolder(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "long", Queue: queueOf(t)})
	runs := make(chan struct{}, 1)
	saved := make(chan error, 1)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}, Lease: 3 * time.Second}, handlers{
		"long": func(ctx context.Context, job *fencepost.Job) (any, error) {
			runs <- struct{}{}
			<-ctx.Done()
			saved <- job.SaveCheckpoint(ctx, "so far")
			return nil, context.Cause(ctx)
		},
	})
	received(t, runs)
	if _, err := client(t).Cancel(within(t), job.ID, "", false); err != nil {
		t.Fatal(err)
	}
	if err := received(t, saved); err != nil {
		t.Errorf("the checkpoint: %v", err)
	}
	end := finished(t, job.ID, fencepost.Cancelled)
	if end.Error.Type != "cancelled" || string(end.Checkpoint) != `"so far"` {
		t.Errorf("%+v %s", end.Error, end.Checkpoint)
	}
}

func TestALostLeaseStopsTheHandlerAndNothingOfItCounts(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "long", Queue: queueOf(t)})
	runs, causes := make(chan struct{}, 1), make(chan error, 4)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}, Lease: 3 * time.Second}, handlers{
		"long": func(ctx context.Context, job *fencepost.Job) (any, error) {
			runs <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			causes <- job.SaveCheckpoint(ctx, 1)
			causes <- job.Verify(ctx)
			_, err := job.Submit(ctx, "child", fencepost.Submission{Kind: "child", Queue: job.Queue})
			causes <- err
			return "a result", nil
		},
	})
	received(t, runs)
	if _, err := client(t).Cancel(within(t), job.ID, "", true); err != nil {
		t.Fatal(err)
	}
	for range [4]int{} {
		var lost *fencepost.LeaseLost
		if err := received(t, causes); !errors.As(err, &lost) || lost.Reason != "cancelled" {
			t.Error(err)
		}
	}
	if end := finished(t, job.ID, fencepost.Cancelled); string(end.Result) != "null" {
		t.Errorf("%s", end.Result)
	}
}

func TestALeaseThatIsFoundLostByAVerifyStopsTheHandler(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "long", Queue: queueOf(t)})
	runs, goOn, found := make(chan struct{}, 1), make(chan struct{}), make(chan error, 2)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}}, handlers{
		"long": func(ctx context.Context, job *fencepost.Job) (any, error) {
			runs <- struct{}{}
			<-goOn
			found <- job.Verify(ctx)
			found <- context.Cause(ctx)
			return nil, nil
		},
	})
	received(t, runs)
	if _, err := client(t).Cancel(within(t), job.ID, "", true); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	mustBe(t, received(t, found), fencepost.ErrLeaseLost)
	mustBe(t, received(t, found), fencepost.ErrLeaseLost)
}

func TestProgressIsSeenWithinASecondOrSo(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "long", Queue: queueOf(t)})
	worker := work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}, Drain: -1}, handlers{
		"long": func(ctx context.Context, job *fencepost.Job) (any, error) {
			job.Progress(30, "a third")
			job.Progress(fencepost.NoPercent, "who knows")
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	})
	seen := until(t, job.ID, func(job *fencepost.JobInfo) bool { return job.Lease != nil && job.Lease.Progress != nil })
	if got := seen.Lease.Progress; got.Seq != 2 || got.Percent != nil || got.Message != "who knows" {
		t.Errorf("%+v", got)
	}
	worker.stop(t)
}

func TestAChildIsCreatedOnceHoweverOftenTheHandlerRuns(t *testing.T) {
	job := submit(t, fencepost.Submission{
		Kind: "parent", Queue: queueOf(t), Backoff: &fencepost.Backoff{Type: "fixed", Base: new(time.Duration)},
	})
	children := make(chan fencepost.Submitted, 2)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}}, handlers{
		"parent": func(ctx context.Context, job *fencepost.Job) (any, error) {
			child, err := job.Submit(ctx, "step", fencepost.Submission{Kind: "child", Queue: job.Queue + "-children"})
			if err != nil {
				return nil, err
			}
			children <- child
			if job.Attempt == 1 {
				return nil, errors.New("again")
			}
			return nil, nil
		},
	})
	first, second := received(t, children), received(t, children)
	if !first.Created || second.Created || first.Job.ID != second.Job.ID || first.Job.Parent.JobID != job.ID ||
		first.Job.IdempotencyKey != job.ID+":step" {
		t.Errorf("%+v %+v", first, second)
	}
}

func TestARefusedCheckpointIsTheHandlersErrorAndTheLeaseGoesOn(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "large", Queue: queueOf(t)})
	refusals := make(chan error, 1)
	work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}}, handlers{
		"large": func(ctx context.Context, job *fencepost.Job) (any, error) {
			refusals <- job.SaveCheckpoint(ctx, strings.Repeat("x", 70_000))
			return nil, job.SaveCheckpoint(ctx, "small")
		},
	})
	var problem *fencepost.Problem
	if err := received(t, refusals); !errors.As(err, &problem) || problem.Code != "too_large" {
		t.Error(err)
	}
	finished(t, job.ID, fencepost.Succeeded)
}
