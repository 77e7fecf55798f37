package fencepost

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// run works until the context ends, a signal comes or the service refuses; then it shuts down.
func (s *session) run(ctx context.Context, signals <-chan os.Signal) error {
	if s.options.HTTPClient == nil {
		defer s.calls.http.CloseIdleConnections()
	}
	leasing, stopLeasing := context.WithCancel(ctx)
	defer stopLeasing()
	beside, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	var leaser, helpers sync.WaitGroup
	spawn(&leaser, func() { s.leaseJobs(leasing) })
	spawn(&helpers, func() { s.leases.watch(beside) })
	spawn(&helpers, func() { s.heartbeats.run(beside) })
	spawn(&helpers, func() { s.ends.run(beside) })

	var refused error
	select {
	case <-ctx.Done():
	case <-signals:
	case refused = <-s.refused:
		s.log.Error("the service refuses the set-up; the worker ends", "error", refused.Error())
	}
	s.log.Info("the worker drains", "held", s.leases.count())
	stopLeasing()
	leaser.Wait()
	s.drain(signals)
	running, unanswered := s.leases.abandon()
	stopBeside()
	helpers.Wait()
	s.giveBack(running)
	s.releaseUnread(unanswered)
	s.log.Info("the worker has drained", "handlers_left", len(running), "ends_unanswered", len(unanswered))
	return refused
}

func spawn(group *sync.WaitGroup, run func()) {
	group.Add(1)
	go func() {
		defer group.Done()
		run()
	}()
}

// drain lets the handlers go on for a while, then tells them to stop; it returns when no lease is held, or when
// the grace is over.
func (s *session) drain(signals <-chan os.Signal) {
	if !s.waitUntilIdle(s.options.Drain, signals) {
		s.leases.stopAll(ErrShutdown)
		s.waitUntilIdle(s.options.Grace, nil)
	}
}

// waitUntilIdle returns false when leases are held after a while, or when a signal comes.
func (s *session) waitUntilIdle(longest time.Duration, signals <-chan os.Signal) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	for s.leases.count() > 0 {
		select {
		case <-timer.C:
			return false
		case <-signals:
			return false
		case <-s.leases.freed:
		}
	}
	return true
}

// giveBack releases leases that nobody here will work any more.
func (s *session) giveBack(keys []leaseKey) {
	for len(keys) > 0 {
		part := keys[:min(len(keys), maxEndItems)]
		keys = keys[len(part):]
		more := map[string]any{"reason": "the worker shut down"}
		if _, err := s.callForMany(context.Background(), string(release), part, more); err != nil {
			s.log.Warn("jobs cannot be released; their leases run out", "count", len(part), "error", err.Error())
		}
	}
}

// releaseUnread releases what came with an answer that was never read. Outcomes that were not answered are no
// such thing: their side effects are done.
func (s *session) releaseUnread(unanswered []leaseKey) {
	call := call{method: http.MethodGet, path: "/v1/leases?worker_id=" + url.QueryEscape(s.options.WorkerID)}
	got, err := s.calls.once(context.Background(), call, onceTimeout)
	var listed struct {
		Leases []leaseKeyWire `json:"leases"`
	}
	if err != nil || got.status != http.StatusOK || json.Unmarshal(got.body, &listed) != nil {
		return
	}
	known := map[leaseKey]bool{}
	for _, key := range unanswered {
		known[key] = true
	}
	var unread []leaseKey
	for _, each := range listed.Leases {
		if key := (leaseKey{each.JobID, each.LeaseVersion}); !known[key] {
			unread = append(unread, key)
		}
	}
	s.giveBack(unread)
}
