package fencepost

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"
)

func holding(t *testing.T, concurrency int) *leases {
	t.Helper()
	options, err := WorkerOptions{
		Queues: []string{"q"}, Concurrency: concurrency, Lease: 30 * time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}.complete()
	if err != nil {
		t.Fatal(err)
	}
	return newLeases(context.Background(), options, nil)
}

func TestALeaseCallWaitsForAThirdOfALeaseAtMost(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		3 * time.Second: time.Second, time.Minute: 20 * time.Second, time.Hour: 20 * time.Second,
	} {
		options, err := WorkerOptions{Queues: []string{"q"}, Lease: lease}.complete()
		if err != nil || options.Wait != want {
			t.Errorf("%v for a lease of %v, %v", options.Wait, lease, err)
		}
	}
}

func jobOf(id string, version int64) *Job { return &Job{ID: id, LeaseVersion: version} }

// held takes one lease that was asked for some time ago.
func held(t *testing.T, ls *leases, job *Job, ago time.Duration) *lease {
	t.Helper()
	taken := ls.hold([]*Job{job}, now().add(-ago), time.Unix(1_900_000_000, 0))
	if len(taken) != 1 {
		t.Fatalf("%d leases were taken", len(taken))
	}
	return taken[0]
}

func TestALeaseIsOverWhenItsTimeHasPassedSinceTheCallWasSent(t *testing.T) {
	ls := holding(t, 2)
	young, old := held(t, ls, jobOf("a", 1), 20*time.Second), held(t, ls, jobOf("b", 4), 31*time.Second)
	ls.expire()
	if err := ls.stopReason(young); err != nil || young.ctx.Err() != nil {
		t.Errorf("the young one: %v", err)
	}
	var lost *LeaseLost
	if !errors.As(context.Cause(old.ctx), &lost) || lost.Reason != "expired" || lost.PresentedVersion != 4 {
		t.Errorf("the old one: %v", context.Cause(old.ctx))
	}
}

func TestAHandlerThatReturnsBeforeTheWatchHasLookedIsHeldToTheClockAllTheSame(t *testing.T) {
	ls := holding(t, 1)
	l := held(t, ls, jobOf("a", 1), 31*time.Second)
	if err := ls.stopReason(l); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

func TestAnEndThatIsUnderWayIsNotStoppedByTheClock(t *testing.T) {
	ls := holding(t, 1)
	l := held(t, ls, jobOf("a", 1), 29*time.Second)
	if !ls.beginEnd(l) {
		t.Fatal("the lease is lost")
	}
	l.renewedAt = now().add(-time.Minute)
	ls.expire()
	if !ls.beginSend(l) {
		t.Error("the end is not sent")
	}
}

func TestAnEndIsNotSentWhenAHeartbeatHasSaidBeforeThatTheLeaseIsLost(t *testing.T) {
	ls := holding(t, 1)
	l := held(t, ls, jobOf("a", 1), 0)
	ls.beginEnd(l)
	ls.lostBy(l, &LeaseLost{Reason: "expired"})
	if ls.beginSend(l) {
		t.Error("it is sent")
	}
}

func TestTheDeadlineIsTheServicesDistanceOnTheLocalClock(t *testing.T) {
	ls := holding(t, 1)
	serverTime := time.Unix(1_900_000_000, 0)
	deadline := serverTime.Add(10 * time.Second)
	job := jobOf("a", 1)
	job.DeadlineAt = &deadline
	before := time.Now()
	l := held(t, ls, job, 0)
	set, isSet := l.ctx.Deadline()
	if !isSet || set.Before(before.Add(10*time.Second)) || set.After(time.Now().Add(10*time.Second)) {
		t.Errorf("the context ends at %v", set)
	}
	l.deadline = now()
	ls.expire()
	var lost *LeaseLost
	if !errors.As(context.Cause(l.ctx), &lost) || lost.Reason != "deadline_exceeded" {
		t.Error(context.Cause(l.ctx))
	}
}

func TestAContextThatEndsByItsDeadlineIsALostLease(t *testing.T) {
	ls := holding(t, 1)
	deadline := time.Unix(1_900_000_000, 0)
	job := jobOf("a", 1)
	job.DeadlineAt = &deadline
	l := held(t, ls, job, 0)
	<-l.ctx.Done()
	if !errors.Is(context.Cause(l.ctx), ErrLeaseLost) || !errors.Is(ls.stopReason(l), ErrLeaseLost) || ls.beginEnd(l) {
		t.Error(context.Cause(l.ctx))
	}
}

func TestAJobThatComesAgainIsANewLeaseAndTheOldOneIsLost(t *testing.T) {
	ls := holding(t, 2)
	first := held(t, ls, jobOf("a", 1), 0)
	second := held(t, ls, jobOf("a", 3), 0)
	if !errors.Is(context.Cause(first.ctx), ErrLeaseLost) || second.ctx.Err() != nil {
		t.Error(context.Cause(first.ctx), context.Cause(second.ctx))
	}
	if free, _ := ls.slots(); free != 0 {
		t.Errorf("%d slots are free, though the old handler runs", free)
	}
	ls.remove(first)
	if free, _ := ls.slots(); free != 1 || ls.newest["a"] != second {
		t.Errorf("%d slots are free", free)
	}
}

func TestTheSameLeaseTwiceIsTakenOnce(t *testing.T) {
	ls := holding(t, 2)
	held(t, ls, jobOf("a", 1), 0)
	if again := ls.hold([]*Job{jobOf("a", 1)}, now(), time.Now()); len(again) != 0 {
		t.Error("it was taken again")
	}
}

func TestOneDueLeaseHasAllRenewedAndNewsAloneOnlyTheirOwn(t *testing.T) {
	ls := holding(t, 3)
	a, b := held(t, ls, jobOf("a", 1), 0), held(t, ls, jobOf("b", 1), 0)
	if items := ls.beats(); len(items) != 0 {
		t.Fatalf("%d items though nothing is due", len(items))
	}
	ls.report(a, nil, "half")
	if items := ls.beats(); len(items) != 1 || items[0].JobID != "a" || items[0].Progress.Message != "half" {
		t.Fatalf("%+v", items)
	}
	b.dueAt = now()
	if items := ls.beats(); len(items) != 2 {
		t.Fatalf("%+v", items)
	}
}

func TestAHeartbeatIsDueAtOnceWhenTheAnswerToTheLeaseCallTookLong(t *testing.T) {
	ls := holding(t, 2)
	held(t, ls, jobOf("a", 1), 15*time.Second)
	held(t, ls, jobOf("b", 1), 0)
	if items := ls.beats(); len(items) != 2 {
		t.Fatalf("%+v", items)
	}
}

func TestAnAnsweredHeartbeatRenewsFromWhenItWasSent(t *testing.T) {
	ls := holding(t, 2)
	a, b := held(t, ls, jobOf("a", 1), 25*time.Second), held(t, ls, jobOf("b", 1), 25*time.Second)
	ls.report(a, nil, "")
	items := []heartbeat{
		{JobID: "a", LeaseVersion: 1, lease: a, Progress: a.progress},
		{JobID: "b", LeaseVersion: 1, lease: b},
	}
	sentAt := now()
	ls.report(a, nil, "more")
	ls.noteBeats(items, []heartbeatResult{{Status: "ok", CancelRequested: true}, {Status: "not_found"}}, sentAt)
	if a.renewedAt != sentAt || a.dueAt.sub(sentAt) < 9*time.Second || a.dueAt.sub(sentAt) > 10*time.Second {
		t.Errorf("renewed at %v, due after %v", a.renewedAt.sub(sentAt), a.dueAt.sub(sentAt))
	}
	if a.progress == nil || a.progress.Seq != 2 || a.newsAt == 0 {
		t.Errorf("the report that came meanwhile: %+v", a.progress)
	}
	if !errors.Is(context.Cause(a.ctx), ErrCancelled) || !errors.Is(context.Cause(b.ctx), ErrLeaseLost) {
		t.Error(context.Cause(a.ctx), context.Cause(b.ctx))
	}
}

func TestWhatIsAbandonedIsToldApart(t *testing.T) {
	ls := holding(t, 3)
	a, b, c := held(t, ls, jobOf("a", 1), 0), held(t, ls, jobOf("b", 1), 0), held(t, ls, jobOf("c", 1), 0)
	ls.beginEnd(b)
	ls.lostBy(c, &LeaseLost{Reason: "expired"})
	running, unanswered := ls.abandon()
	if len(running) != 1 || running[0] != a.key() || len(unanswered) != 1 || unanswered[0] != b.key() {
		t.Error(running, unanswered)
	}
	if ls.beginEnd(a) {
		t.Error("an abandoned job's end is sent")
	}
}
