package fencepost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"
)

const (
	maxEndItems = 250
	endTimeout  = 30 * time.Second
)

// ends send what the handlers' outcomes are: for each verb one call at a time, which takes all that has gathered.
type ends struct {
	calls   *caller
	leases  *leases
	log     *slog.Logger
	senders map[verb]*sender
}

type end struct {
	lease *lease
	item  json.RawMessage
}

type endResult struct {
	Status string `json:"status"`
	Reason string `json:"reason"`
}

func newEnds(calls *caller, leases *leases, log *slog.Logger) *ends {
	e := &ends{calls: calls, leases: leases, log: log, senders: map[verb]*sender{}}
	for _, verb := range []verb{complete, fail, release} {
		e.senders[verb] = &sender{ends: e, verb: verb, wake: make(chan struct{}, 1)}
	}
	return e
}

// add has an outcome sent. The lease's slot is free when it has been answered, or when there is nothing to send.
func (e *ends) add(l *lease, outcome outcome) {
	if outcome.verb == nothing || !e.leases.beginEnd(l) {
		e.leases.remove(l)
		return
	}
	e.senders[outcome.verb].add(end{lease: l, item: outcome.item})
}

// run sends until the context ends.
func (e *ends) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, each := range e.senders {
		running.Add(1)
		go func(s *sender) {
			defer running.Done()
			s.run(ctx)
		}(each)
	}
	running.Wait()
}

// sender sends the ends of one verb.
type sender struct {
	*ends
	verb verb
	wake chan struct{}

	mu    sync.Mutex
	queue []end
}

func (s *sender) add(one end) {
	s.mu.Lock()
	s.queue = append(s.queue, one)
	s.mu.Unlock()
	token(s.wake)
}

func (s *sender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for ctx.Err() == nil {
			// Handlers that are about to return come along.
			giveWay(s.size)
			batch := s.take()
			if len(batch) == 0 {
				break
			}
			s.send(ctx, batch)
		}
	}
}

func (s *sender) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// giveWay lets other goroutines run as long as a number grows by that.
func giveWay(size func() int) {
	for seen := -1; size() > seen; {
		seen = size()
		runtime.Gosched()
	}
}

// take returns the ends of the next call. What was lost before it could be sent is dropped.
func (s *sender) take() []end {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch []end
	size, taken := 0, 0
	for _, one := range s.queue {
		if len(batch) == maxEndItems || len(batch) > 0 && size+len(one.item) > maxCallBytes {
			break
		}
		taken++
		if !s.leases.beginSend(one.lease) {
			s.leases.remove(one.lease)
			continue
		}
		size += len(one.item)
		batch = append(batch, one)
	}
	s.queue = append([]end(nil), s.queue[taken:]...)
	return batch
}

// send returns when the ends have been answered, or the context has ended.
func (s *sender) send(ctx context.Context, batch []end) {
	results, err := s.post(ctx, batch)
	var refused *Problem
	switch {
	case err == nil:
		s.note(batch, results)
	case ctx.Err() != nil:
		// Not answered: it stays held, and the shutdown looks after it.
	case errors.As(err, &refused) && len(batch) > 1:
		// One of them is to blame.
		for _, one := range batch {
			s.send(ctx, []end{one})
		}
	case errors.As(err, &refused):
		s.replace(batch[0], refused)
	}
}

// post makes one call. Its error is a *Problem when an item is not acceptable; any other means that the context
// has ended.
func (s *sender) post(ctx context.Context, batch []end) ([]endResult, error) {
	items := make([][]byte, len(batch))
	for i, one := range batch {
		items[i] = one.item
	}
	var results []endResult
	call := call{
		method: http.MethodPost, path: "/v1/leases/" + string(s.verb), body: itemsBody(items),
		read: resultsInto(&results, len(batch)), isHolders: true,
	}
	got, err := s.calls.untilAnswered(ctx, call, patience{try: endTimeout})
	switch {
	case err != nil:
		return nil, err
	case got.status != http.StatusOK:
		return nil, asProblem(refusal(got))
	}
	return results, nil
}

// resultsInto reads the answer to a call for many, which has one result for each item.
func resultsInto[T any](results *[]T, count int) func(body []byte) error {
	return func(body []byte) error {
		var answer struct {
			Results []T `json:"results"`
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return err
		}
		if len(answer.Results) != count {
			return errors.New("there is not one result for each item")
		}
		*results = answer.Results
		return nil
	}
}

func itemsBody(items [][]byte) []byte {
	var body bytes.Buffer
	body.WriteString(`{"items":[`)
	body.Write(bytes.Join(items, []byte(",")))
	body.WriteString("]}")
	return body.Bytes()
}

func asProblem(err error) *Problem {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem
	}
	return &Problem{Detail: err.Error()}
}

// replace sends what is left to say for a job whose end was refused. With nothing left its lease runs out.
func (s *sender) replace(one end, refused *Problem) {
	key := one.lease.key()
	said := s.log.With("verb", string(s.verb), "job_id", key.jobID, "lease_version", key.version)
	said.Error("the service does not take an outcome", "error", refused.Error())
	instead, found := reduced(key, outcome{s.verb, one.item}, orDefault(refused.Detail, refused.Error()))
	if !found {
		said.Error("there is nothing left to send for a job; its lease runs out")
		s.leases.remove(one.lease)
		return
	}
	s.senders[instead.verb].add(end{lease: one.lease, item: instead.item})
}

func (s *sender) note(batch []end, results []endResult) {
	ended := make([]*lease, len(batch))
	for i, result := range results {
		ended[i] = batch[i].lease
		if result.Status != "ok" && result.Status != "replayed" {
			key := ended[i].key()
			s.log.Warn("a lease is lost", "verb", string(s.verb), "job_id", key.jobID, "lease_version", key.version,
				"reason", orDefault(result.Reason, result.Status))
		}
	}
	s.leases.remove(ended...)
}
