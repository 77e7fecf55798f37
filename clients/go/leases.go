package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand"
	"sync"
	"time"
)

// How long the watch sleeps at most. Its timer stands still while the machine sleeps, the leases' clock does not.
const watchPause = time.Second

// leaseKey is what a lease is held by. A job's id alone is not enough: the job can be granted again to this worker
// while the handler of an earlier lease still runs.
type leaseKey struct {
	jobID   string
	version int64
}

// lease is one held lease: its slot is taken until its end has been answered or, when it is lost, until its
// handler has returned.
type lease struct {
	job  *Job
	ctx  context.Context
	stop context.CancelCauseFunc
	// over is closed when nothing can be sent under this lease any more.
	over chan struct{}

	// The rest is guarded by leases.mu.

	renewedAt instant
	dueAt     instant // of the next heartbeat
	deadline  instant // 0 without one
	newsAt    instant // when the news below have to be sent; 0 without any
	seq       int64
	progress  *progress
	pending   *checkpoint
	lost      *LeaseLost
	ending    bool // the handler has returned, its end is to be sent
	sent      bool // the end may have reached the service
}

func (l *lease) key() leaseKey { return leaseKey{l.job.ID, l.job.LeaseVersion} }

// leases are those that one worker holds.
type leases struct {
	handlers context.Context // what the handlers' contexts come from
	client   *Client
	length   time.Duration
	limit    int
	log      *slog.Logger
	// freed and nearer have a token when a slot became free, and when a lease ends before the watch looks again.
	freed, nearer chan struct{}
	// beat has a token when a heartbeat is due before the time that was planned.
	beat chan struct{}

	mu      sync.Mutex
	held    map[leaseKey]*lease
	newest  map[string]*lease
	planned instant
}

func newLeases(ctx context.Context, options WorkerOptions, client *Client) *leases {
	return &leases{
		handlers: ctx, client: client, length: options.Lease, limit: options.Concurrency, log: options.Logger,
		freed: make(chan struct{}, 1), nearer: make(chan struct{}, 1), beat: make(chan struct{}, 1),
		held: map[leaseKey]*lease{}, newest: map[string]*lease{},
	}
}

func token(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// slots returns how many more leases may be held, and for how many the end is on its way.
func (ls *leases) slots() (free, ending int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.held {
		if l.ending {
			ending++
		}
	}
	return ls.limit - len(ls.held), ending
}

func (ls *leases) count() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.held)
}

// hold takes leases that a call sent at sentAt was granted, and returns those that are new.
func (ls *leases) hold(jobs []*Job, sentAt instant, serverTime time.Time) []*lease {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var taken []*lease
	for _, job := range jobs {
		key := leaseKey{job.ID, job.LeaseVersion}
		if ls.held[key] != nil {
			continue
		}
		if old := ls.newest[job.ID]; old != nil {
			ls.lose(old, &LeaseLost{
				JobID: job.ID, PresentedVersion: old.job.LeaseVersion, CurrentVersion: &job.LeaseVersion,
				JobState: string(Running), Reason: "unknown",
			})
		}
		l := ls.make(job, sentAt, serverTime)
		ls.held[key], ls.newest[job.ID] = l, l
		taken = append(taken, l)
		ls.planBeat(l.dueAt)
		if ls.endsAt(l).sub(now()) < watchPause {
			token(ls.nearer)
		}
	}
	return taken
}

func (ls *leases) make(job *Job, sentAt instant, serverTime time.Time) *lease {
	received := now()
	l := &lease{job: job, over: make(chan struct{}), renewedAt: sentAt, dueAt: sentAt.add(ls.beatPause())}
	job.lease, job.leases, job.saving = l, ls, make(chan struct{}, 1)
	l.ctx, l.stop = context.WithCancelCause(ls.handlers)
	if job.DeadlineAt != nil {
		// It counts from the answer, not from the call: a call may have waited for longer than an attempt may
		// take. Then a heartbeat at once tells whether the answer was old.
		left := job.DeadlineAt.Sub(serverTime)
		l.deadline = received.add(left)
		if received.sub(sentAt) > time.Second {
			l.dueAt = received
		}
		stop := l.stop
		limited, cancel := context.WithDeadlineCause(
			l.ctx, time.Now().Add(left), ls.overByClock(l, "deadline_exceeded"))
		l.ctx, l.stop = limited, func(cause error) {
			stop(cause)
			cancel()
		}
	}
	return l
}

// beatPause is a third of the lease, a little less by chance: workers that started together do not beat together.
func (ls *leases) beatPause() time.Duration {
	return time.Duration(float64(ls.length) / 3 * (0.9 + 0.1*rand.Float64()))
}

// endsAt returns when the lease is over unless it is renewed.
func (ls *leases) endsAt(l *lease) instant {
	end := l.renewedAt.add(ls.length)
	if l.deadline != 0 {
		end = earlier(end, l.deadline)
	}
	return end
}

func (ls *leases) overByClock(l *lease, reason string) *LeaseLost {
	return &LeaseLost{JobID: l.job.ID, PresentedVersion: l.job.LeaseVersion, Reason: reason}
}

// watch stops the handlers whose lease runs out, until the context ends.
func (ls *leases) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ls.nearer:
		case <-timer.C:
		}
		timer.Reset(ls.expire())
	}
}

// expire loses the leases whose time is over, and returns how long to sleep until the next one's is.
func (ls *leases) expire() time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	pause := watchPause
	for _, l := range ls.held {
		if l.lost == nil && !l.ending && !ls.expireOne(l) {
			pause = min(pause, ls.endsAt(l).sub(now()))
		}
	}
	return pause
}

// expireOne loses the lease if its time is over. Only for one whose handler runs: an end that is under way counts
// as long as the service takes it.
func (ls *leases) expireOne(l *lease) bool {
	moment := now()
	if moment < ls.endsAt(l) {
		return false
	}
	reason := "expired"
	if l.deadline != 0 && moment >= l.deadline {
		reason = "deadline_exceeded"
	}
	ls.lose(l, ls.overByClock(l, reason))
	return true
}

// lose ends a lease: its handler is stopped, and nothing more is begun under its version.
func (ls *leases) lose(l *lease, lost *LeaseLost) {
	if l.lost != nil {
		return
	}
	l.lost = lost
	close(l.over)
	if l.ending {
		// Its end may be what ended it: the answer to that tells.
		return
	}
	l.stop(lost)
	ls.log.Warn("a lease is lost", "job_id", lost.JobID, "lease_version", lost.PresentedVersion, "reason", lost.Reason)
}

// lostBy records a lease that a call was told is over.
func (ls *leases) lostBy(l *lease, lost *LeaseLost) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.lose(l, lost)
}

// stopReason returns why the lease's handler has to stop, nil if it has not.
func (ls *leases) stopReason(l *lease) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.lost == nil && !l.ending {
		// The watch may be late: the process may just have been woken.
		ls.expireOne(l)
	}
	cause := context.Cause(l.ctx)
	var lost *LeaseLost
	if l.lost == nil && errors.As(cause, &lost) {
		// The context's own timer was first.
		ls.lose(l, lost)
	}
	if l.lost != nil {
		return l.lost
	}
	return cause
}

// stopAll tells all handlers to stop.
func (ls *leases) stopAll(cause error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.held {
		l.stop(cause)
	}
}

// beginEnd notes that the handler has returned. It returns false when the lease is lost: nothing is to be sent.
func (ls *leases) beginEnd(l *lease) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.ending = l.lost == nil
	return l.ending
}

// beginSend notes that the lease's end goes to the service. It returns false when the lease was lost before.
func (ls *leases) beginSend(l *lease) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.sent = l.sent || l.lost == nil
	return l.sent
}

// remove frees the leases' slots.
func (ls *leases) remove(ended ...*lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ended {
		l.stop(context.Canceled)
		if l.lost == nil {
			l.lost = ls.overByClock(l, "finished")
			close(l.over)
		}
		delete(ls.held, l.key())
		if ls.newest[l.job.ID] == l {
			delete(ls.newest, l.job.ID)
		}
	}
	token(ls.freed)
}

// abandon gives up what is still held. It returns the leases whose handlers run, which are to be released, and those
// whose end was not answered, which are not.
func (ls *leases) abandon() (running, unanswered []leaseKey) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for key, l := range ls.held {
		switch {
		case l.ending:
			unanswered = append(unanswered, key)
		case l.lost == nil:
			running = append(running, key)
			l.lost = ls.overByClock(l, "released")
			close(l.over)
		}
	}
	return running, unanswered
}

// progress and checkpoint are news of a handler that wait for a heartbeat.
type progress struct {
	Seq     int64    `json:"seq"`
	Percent *float64 `json:"percent,omitempty"`
	Message string   `json:"message,omitempty"`
}

type checkpoint struct {
	value json.RawMessage
	// answered takes nil when the checkpoint is stored, or why it is not.
	answered chan error
}
