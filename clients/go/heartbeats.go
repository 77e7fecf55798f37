package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"time"
)

const (
	never = instant(math.MaxInt64)
	// How long news may wait for others; with the way to the service it stays within a second.
	newsPause = 500 * time.Millisecond
	// Well below the 16 MiB that the service takes in a call for many.
	maxCallBytes = 8 << 20
)

// heartbeats renew all held leases, one call at a time, and carry what the handlers have to say.
type heartbeats struct {
	calls  *caller
	leases *leases
	third  time.Duration
}

func newHeartbeats(calls *caller, leases *leases, options WorkerOptions) *heartbeats {
	return &heartbeats{calls: calls, leases: leases, third: options.Lease / 3}
}

// heartbeat is one item of a call.
type heartbeat struct {
	JobID        string          `json:"job_id"`
	LeaseVersion int64           `json:"lease_version"`
	Progress     *progress       `json:"progress,omitempty"`
	Checkpoint   json.RawMessage `json:"checkpoint,omitempty"`

	lease   *lease
	pending *checkpoint
}

type heartbeatResult struct {
	LeaseLost
	Status          string `json:"status"`
	CancelRequested bool   `json:"cancel_requested"`
}

// run beats until the context ends.
func (h *heartbeats) run(ctx context.Context) {
	var failures pauses
	var notBefore instant
	for {
		at := h.leases.nextBeat(notBefore)
		if !h.sleepUntil(ctx, at) {
			return
		}
		if now() < at {
			continue
		}
		if again, failed := h.beat(ctx); failed {
			notBefore = now().add(failures.next(again))
		} else {
			failures, notBefore = pauses{}, 0
		}
	}
}

// sleepUntil also returns when a beat is wanted earlier. It returns false when the context ends.
func (h *heartbeats) sleepUntil(ctx context.Context, at instant) bool {
	timer := time.NewTimer(min(at.sub(now()), watchPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-h.leases.beat:
	case <-timer.C:
	}
	return true
}

// beat sends what is due. It returns whether that failed, and how long the service wants to be left alone then.
func (h *heartbeats) beat(ctx context.Context) (time.Duration, bool) {
	items := h.leases.beats()
	if len(items) == 0 {
		return 0, false
	}
	got, err := h.send(ctx, items)
	if err != nil {
		return got.retryAfter(), true
	}
	if got.isUnacceptable() {
		return h.sendApart(ctx, items)
	}
	return 0, false
}

// sendApart finds the news that the service does not take: all leases without news, then the news one by one.
func (h *heartbeats) sendApart(ctx context.Context, items []heartbeat) (time.Duration, bool) {
	plain := make([]heartbeat, len(items))
	for i, item := range items {
		plain[i] = heartbeat{JobID: item.JobID, LeaseVersion: item.LeaseVersion, lease: item.lease}
	}
	if got, err := h.send(ctx, plain); err != nil || got.status != http.StatusOK {
		return got.retryAfter(), true
	}
	for _, item := range items {
		for _, news := range item.apart() {
			got, err := h.send(ctx, []heartbeat{news})
			if err != nil {
				return got.retryAfter(), true
			}
			if got.status != http.StatusOK {
				h.leases.dropNews(news, refusal(got))
			}
		}
	}
	return 0, false
}

// apart returns an item for the progress and one for the checkpoint, as far as there are any.
func (b heartbeat) apart() []heartbeat {
	var news []heartbeat
	if b.Progress != nil {
		news = append(news, heartbeat{
			JobID: b.JobID, LeaseVersion: b.LeaseVersion, lease: b.lease, Progress: b.Progress,
		})
	}
	if b.pending != nil {
		news = append(news, heartbeat{
			JobID: b.JobID, LeaseVersion: b.LeaseVersion, lease: b.lease, Checkpoint: b.Checkpoint, pending: b.pending,
		})
	}
	return news
}

// send makes one try. With status 200 the results have been noted; an error means that there was no usable answer.
func (h *heartbeats) send(ctx context.Context, items []heartbeat) (answer, error) {
	body, err := encode(map[string]any{"items": items})
	if err != nil {
		return answer{}, err
	}
	sentAt := now()
	var results []heartbeatResult
	call := call{
		method: http.MethodPost, path: "/v1/leases/heartbeat", body: body,
		read: resultsInto(&results, len(items)), isHolders: true,
	}
	got, err := h.calls.once(ctx, call, h.third)
	if err == nil && got.status == http.StatusOK {
		h.leases.noteBeats(items, results, sentAt)
	}
	return got, err
}

// nextBeat plans the time of the next call.
func (ls *leases) nextBeat(notBefore instant) instant {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	at := never
	for _, l := range ls.held {
		if l.lost != nil {
			continue
		}
		at = earlier(at, l.dueAt)
		if l.newsAt != 0 {
			at = earlier(at, l.newsAt)
		}
	}
	ls.planned = later(at, notBefore)
	return ls.planned
}

// planBeat wakes the heartbeats if they sleep for longer than until the given time.
func (ls *leases) planBeat(at instant) {
	if at < ls.planned {
		ls.planned = at
		token(ls.beat)
	}
}

// beats returns the items of the next call: all leases when one of them is due, else those that have news.
func (ls *leases) beats() []heartbeat {
	ls.expire()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	moment := now()
	isDue := false
	for _, l := range ls.held {
		isDue = isDue || l.lost == nil && l.dueAt <= moment
	}
	var items []heartbeat
	left := maxCallBytes
	for _, l := range ls.held {
		if l.lost != nil || !isDue && l.newsAt == 0 {
			continue
		}
		item := heartbeat{JobID: l.job.ID, LeaseVersion: l.job.LeaseVersion, lease: l, Progress: l.progress}
		if l.pending != nil && (len(l.pending.value) <= left || left == maxCallBytes) {
			left -= len(l.pending.value)
			item.pending, item.Checkpoint = l.pending, l.pending.value
		}
		items = append(items, item)
	}
	return items
}

// noteBeats takes the answer to a call that was sent at sentAt.
func (ls *leases) noteBeats(items []heartbeat, results []heartbeatResult, sentAt instant) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for i, item := range items {
		l, result := item.lease, results[i]
		if result.Status != "ok" {
			ls.lose(l, result.lost(l))
			continue
		}
		l.renewedAt = later(l.renewedAt, sentAt)
		l.dueAt = sentAt.add(ls.beatPause())
		ls.clearNews(item, nil)
		if result.CancelRequested && l.lost == nil && !l.ending {
			l.stop(ErrCancelled)
		}
	}
}

// dropNews takes back the news of a heartbeat that was refused.
func (ls *leases) dropNews(item heartbeat, refused error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if item.pending == nil {
		ls.log.Warn("the service does not take a progress report",
			"job_id", item.JobID, "lease_version", item.LeaseVersion, "error", refused.Error())
	}
	ls.clearNews(item, refused)
}

func (ls *leases) clearNews(item heartbeat, answer error) {
	l := item.lease
	if item.Progress != nil && l.progress == item.Progress {
		l.progress = nil
	}
	if item.pending != nil {
		item.pending.answered <- answer
		if l.pending == item.pending {
			l.pending = nil
		}
	}
	switch {
	case l.pending != nil:
		l.newsAt = now()
	case l.progress != nil:
		l.newsAt = now().add(newsPause)
	default:
		l.newsAt = 0
	}
}

// report has progress sent with a heartbeat within a second.
func (ls *leases) report(l *lease, percent *float64, message string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.lost != nil || l.ending {
		return
	}
	l.seq++
	l.progress = &progress{Seq: l.seq, Percent: percent, Message: message}
	ls.haveNews(l, now().add(newsPause))
}

// store has a checkpoint sent with a heartbeat at once. It returns why not when the lease is over.
func (ls *leases) store(l *lease, value json.RawMessage) (*checkpoint, error) {
	if err := ls.check(l); err != nil {
		return nil, err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.pending = &checkpoint{value: value, answered: make(chan error, 1)}
	ls.haveNews(l, now())
	return l.pending, nil
}

func (ls *leases) haveNews(l *lease, at instant) {
	if l.newsAt == 0 || at < l.newsAt {
		l.newsAt = at
	}
	ls.planBeat(l.newsAt)
}

// check returns a *LeaseLost when the lease is over.
func (ls *leases) check(l *lease) error {
	var lost *LeaseLost
	if errors.As(ls.stopReason(l), &lost) {
		return lost
	}
	return nil
}

// lost completes what a result says of a lease that is over.
func (r heartbeatResult) lost(l *lease) *LeaseLost {
	lost := r.LeaseLost
	lost.JobID, lost.PresentedVersion = l.job.ID, l.job.LeaseVersion
	lost.Reason = orDefault(lost.Reason, "unknown")
	return &lost
}
