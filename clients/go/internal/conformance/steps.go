package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"fencepost"
)

// step is one of a payload's steps: the member that is set says which.
type step struct {
	Sleep      *float64        `json:"sleep"`
	Hold       bool            `json:"hold"`
	Stubborn   *float64        `json:"stubborn"`
	Progress   *progressStep   `json:"progress"`
	Checkpoint json.RawMessage `json:"checkpoint"`
	Submit     json.RawMessage `json:"submit"`
	Name       string          `json:"name"`
	Verify     bool            `json:"verify"`
	Return     json.RawMessage `json:"return"`
	Complete   *completeStep   `json:"complete"`
	Fail       *failStep       `json:"fail"`
	Raise      *string         `json:"raise"`
	Release    *releaseStep    `json:"release"`
	Settled    bool            `json:"settled"`
}

type progressStep struct {
	Percent *float64 `json:"percent"`
	Message string   `json:"message"`
}

type completeStep struct {
	Result  json.RawMessage   `json:"result"`
	Enqueue []json.RawMessage `json:"enqueue"`
}

type failStep struct {
	Message           string          `json:"message"`
	Type              string          `json:"type"`
	Retryable         *bool           `json:"retryable"`
	RetryAfterSeconds *float64        `json:"retry_after_seconds"`
	Details           json.RawMessage `json:"details"`
}

type releaseStep struct {
	DelaySeconds float64 `json:"delay_seconds"`
	Reason       string  `json:"reason"`
}

// handling is one run of the handler.
type handling struct {
	job     *fencepost.Job
	events  *events
	stopped sync.Once
}

func perform(ctx context.Context, job *fencepost.Job, events *events) (any, error) {
	h := &handling{job: job, events: events}
	events.of(job, "started", nil)
	unwatch := context.AfterFunc(ctx, func() { h.noteStop(ctx) })
	result, err := h.steps(ctx)
	unwatch()
	how := "returned"
	if err != nil {
		how = "raised"
	}
	events.of(job, "ended", map[string]any{"how": how})
	return result, err
}

func (h *handling) steps(ctx context.Context) (any, error) {
	var payload struct {
		Steps []step `json:"steps"`
	}
	if err := h.job.Decode(&payload); err != nil {
		return nil, err
	}
	for _, each := range payload.Steps {
		if result, err, isFinal := each.outcome(); isFinal {
			return result, err
		}
		if err := h.do(ctx, each); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// do is for the steps after which the handler goes on.
func (h *handling) do(ctx context.Context, each step) error {
	switch {
	case each.Sleep != nil:
		return h.sleep(ctx, *each.Sleep)
	case each.Hold:
		<-ctx.Done()
		h.noteStop(ctx)
		return context.Cause(ctx)
	case each.Stubborn != nil:
		time.Sleep(duration(*each.Stubborn))
		return nil
	case each.Progress != nil:
		percent := fencepost.NoPercent
		if each.Progress.Percent != nil {
			percent = *each.Progress.Percent
		}
		h.job.Progress(percent, each.Progress.Message)
		return nil
	case each.Checkpoint != nil:
		return h.noteRefusal(h.job.SaveCheckpoint(ctx, each.Checkpoint))
	case each.Submit != nil:
		child, err := submission(each.Submit)
		if err != nil {
			return err
		}
		_, err = h.job.Submit(ctx, each.Name, child)
		return h.noteRefusal(err)
	case each.Verify:
		return h.noteRefusal(h.job.Verify(ctx))
	}
	return errors.New("the adapter does not know this step")
}

// outcome is for the steps that end the handler.
func (s step) outcome() (result any, err error, isFinal bool) {
	switch {
	case s.Return != nil:
		return s.Return, nil, true
	case s.Complete != nil:
		done := fencepost.Complete{Result: s.Complete.Result}
		for _, body := range s.Complete.Enqueue {
			followUp, err := submission(body)
			if err != nil {
				return nil, err, true
			}
			done.Enqueue = append(done.Enqueue, followUp)
		}
		return done, nil, true
	case s.Fail != nil:
		return nil, s.Fail.failure(), true
	case s.Raise != nil:
		return nil, errors.New(*s.Raise), true
	case s.Release != nil:
		return nil, fencepost.Release{Delay: duration(s.Release.DelaySeconds), Reason: s.Release.Reason}, true
	case s.Settled:
		return fencepost.Settled, nil, true
	}
	return nil, nil, false
}

func (f failStep) failure() error {
	failed := fencepost.Fail{Message: f.Message, Type: f.Type, Permanent: f.Retryable != nil && !*f.Retryable}
	if f.Details != nil {
		failed.Details = f.Details
	}
	if f.RetryAfterSeconds != nil {
		failed.RetryAfter = span(*f.RetryAfterSeconds)
	}
	return failed
}

func (h *handling) sleep(ctx context.Context, seconds float64) error {
	timer := time.NewTimer(duration(seconds))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		h.noteStop(ctx)
		return context.Cause(ctx)
	}
}

// noteStop writes the event once, whoever notices first.
func (h *handling) noteStop(ctx context.Context) {
	h.stopped.Do(func() {
		reason := fmt.Sprint(context.Cause(ctx))
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, fencepost.ErrLeaseLost):
			reason = "lease_lost"
		case errors.Is(cause, fencepost.ErrCancelled):
			reason = "cancelled"
		case errors.Is(cause, fencepost.ErrShutdown):
			reason = "shutdown"
		}
		h.events.of(h.job, "stopped", map[string]any{"reason": reason})
	})
}

func (h *handling) noteRefusal(err error) error {
	if err != nil {
		h.events.of(h.job, "error", map[string]any{"code": codeOf(err)})
	}
	return err
}

func codeOf(err error) string {
	var problem *fencepost.Problem
	switch {
	case errors.Is(err, fencepost.ErrLeaseLost):
		return "lease_lost"
	case errors.As(err, &problem):
		return problem.Code
	case errors.Is(err, fencepost.ErrUnavailable):
		return "unavailable"
	}
	return err.Error()
}
