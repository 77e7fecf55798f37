package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

const (
	// How long a lease call may take beyond its wait.
	answerSlack = 10 * time.Second
	// Between an empty answer that came at once and the next call.
	emptyPause = 100 * time.Millisecond
	// How long a lease call waits for ends to be answered.
	endPause = 20 * time.Millisecond
	// For calls that are made once.
	onceTimeout = 5 * time.Second
)

type leaseRequest struct {
	WorkerID     string   `json:"worker_id"`
	Queues       []string `json:"queues"`
	MaxJobs      int      `json:"max_jobs"`
	WaitSeconds  float64  `json:"wait_seconds"`
	LeaseSeconds float64  `json:"lease_seconds"`
	RequestID    string   `json:"request_id"`
}

// granted is the answer to a lease call, and when that was sent.
type granted struct {
	Jobs       []*Job    `json:"jobs"`
	ServerTime time.Time `json:"server_time"`

	sentAt     instant
	retryAfter time.Duration
}

func (g *granted) read(body []byte) error {
	var said granted
	if err := json.Unmarshal(body, &said); err != nil {
		return err
	}
	if said.Jobs == nil {
		return errors.New("the answer has no jobs, not even none")
	}
	g.Jobs, g.ServerTime = said.Jobs, said.ServerTime
	return nil
}

// leaseJobs leases for the free slots, one call at a time, until the context ends or the service refuses.
func (s *session) leaseJobs(ctx context.Context) {
	for ctx.Err() == nil {
		free := s.freeSlots(ctx)
		if free == 0 {
			return
		}
		answer, err := s.lease(ctx, free)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.refuse(err)
			}
			return
		case ctx.Err() != nil:
			// The answer was faster than the shutdown.
			s.giveBack(keysOf(answer.Jobs))
		default:
			s.take(ctx, answer)
		}
	}
}

// freeSlots waits until there is a free slot, and a moment longer while as many slots as are free wait for the
// answer to an end: two calls for a half each cost twice as much as one. It returns 0 when the context ends.
func (s *session) freeSlots(ctx context.Context) int {
	// Handlers that are about to return count among those.
	giveWay(func() int {
		_, ending := s.leases.slots()
		return ending
	})
	moment := time.NewTimer(endPause)
	defer moment.Stop()
	isOver := false
	for {
		free, ending := s.leases.slots()
		if free > 0 && (isOver || ending < free) {
			return free
		}
		select {
		case <-ctx.Done():
			return 0
		case <-moment.C:
			isOver = true
		case <-s.leases.freed:
		}
	}
}

// lease makes one call, and repeats it until it is answered: as it was for as long as the service remembers its
// request_id, which is one lease, and after that with a new one. Its error is a *Problem, or the context's.
func (s *session) lease(ctx context.Context, maxJobs int) (granted, error) {
	var between pauses
	for {
		body, err := encode(leaseRequest{
			WorkerID: s.options.WorkerID, Queues: s.options.Queues, MaxJobs: maxJobs,
			WaitSeconds: inSeconds(s.options.Wait), LeaseSeconds: inSeconds(s.options.Lease), RequestID: randomUUID(),
		})
		if err != nil {
			return granted{}, err
		}
		answer := granted{sentAt: now()}
		call := call{method: http.MethodPost, path: "/v1/leases", body: body, read: answer.read}
		for now().sub(answer.sentAt) <= s.options.Lease {
			got, err := s.calls.once(ctx, call, s.options.Wait+answerSlack)
			switch {
			case err == nil && got.status == http.StatusOK:
				answer.retryAfter = got.retryAfter()
				return answer, nil
			case err == nil:
				return granted{}, refusal(got)
			case !sleep(ctx, between.next(got.retryAfter())):
				return granted{}, context.Cause(ctx)
			}
		}
	}
}

// take starts the handlers of what was granted.
func (s *session) take(ctx context.Context, answer granted) {
	if len(answer.Jobs) == 0 {
		pause := answer.retryAfter
		if now().sub(answer.sentAt) < emptyPause {
			pause = max(pause, emptyPause)
		}
		sleep(ctx, pause)
		return
	}
	if now().sub(answer.sentAt) >= s.options.Lease {
		s.confirm(ctx, &answer)
	}
	for _, l := range s.leases.hold(answer.Jobs, answer.sentAt, answer.ServerTime) {
		s.start(l)
	}
}

// confirm asks which leases of an old answer are held, and keeps those. The process may have been stopped with the
// answer unread, or the call has waited for longer than a lease is.
func (s *session) confirm(ctx context.Context, answer *granted) {
	keys := keysOf(answer.Jobs)
	sentAt := now()
	results, err := s.callForMany(ctx, "heartbeat", keys, nil)
	var held []*Job
	for i, job := range answer.Jobs {
		if err == nil && results[i].Status == "ok" {
			held = append(held, job)
		} else {
			s.log.Warn("a lease is lost", "job_id", job.ID, "lease_version", job.LeaseVersion, "reason", "expired")
		}
	}
	answer.Jobs, answer.sentAt = held, sentAt
}

func keysOf(jobs []*Job) []leaseKey {
	keys := make([]leaseKey, len(jobs))
	for i, job := range jobs {
		keys[i] = leaseKey{job.ID, job.LeaseVersion}
	}
	return keys
}

// callForMany makes one try of a call for leases that are not held here.
func (s *session) callForMany(
	ctx context.Context, verb string, keys []leaseKey, more map[string]any,
) ([]endResult, error) {
	items := make([]map[string]any, len(keys))
	for i, key := range keys {
		items[i] = map[string]any{"job_id": key.jobID, "lease_version": key.version}
		for name, value := range more {
			items[i][name] = value
		}
	}
	body, err := encode(map[string]any{"items": items})
	if err != nil {
		return nil, err
	}
	var results []endResult
	call := call{
		method: http.MethodPost, path: "/v1/leases/" + verb, body: body, read: resultsInto(&results, len(keys)),
	}
	got, err := s.calls.once(ctx, call, onceTimeout)
	if err == nil && got.status != http.StatusOK {
		err = refusal(got)
	}
	return results, err
}
