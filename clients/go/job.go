package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"time"
)

// Job is what a handler is given: a job, and the lease under which it may be done. Its methods are safe for use by
// many goroutines, until the handler returns.
type Job struct {
	ID       string            `json:"id"`
	Queue    string            `json:"queue"`
	Kind     string            `json:"kind"`
	Payload  json.RawMessage   `json:"payload"`
	Metadata map[string]string `json:"metadata"`
	Priority int               `json:"priority"`
	// Attempt counts from 1.
	Attempt     int `json:"attempt"`
	MaxAttempts int `json:"max_attempts"`
	// LeaseVersion is the fencing token. It belongs beside everything that the handler writes.
	LeaseVersion int64 `json:"lease_version"`
	// DeadlineAt is when the attempt ends on the service's clock, nil when it need not end. The handler's context
	// has the same deadline on the local clock.
	DeadlineAt *time.Time `json:"deadline_at"`
	// Checkpoint is what an earlier attempt stored last, the JSON value null if none did.
	Checkpoint json.RawMessage `json:"checkpoint"`
	// Previous says how the attempt before ended; nil for the first.
	Previous    *Previous `json:"previous"`
	CreatedAt   time.Time `json:"created_at"`
	RunAt       time.Time `json:"run_at"`
	Parent      *Parent   `json:"parent"`
	Traceparent string    `json:"traceparent"`
	Tracestate  string    `json:"tracestate"`

	lease  *lease
	leases *leases
	saving chan struct{}
}

// Previous says how the attempt before this one ended.
type Previous struct {
	Attempt int       `json:"attempt"`
	Outcome string    `json:"outcome"`
	Error   *JobError `json:"error"`
}

// Decode reads the payload into a value. Use a json.Decoder with UseNumber where whole numbers above 2^53 matter in an
// untyped value.
func (j *Job) Decode(into any) error { return json.Unmarshal(j.Payload, into) }

// Progress reports that the handler gets on, which resets the clock of a job with a progress timeout. The percentage
// is 0 to 100, and NoPercent when it is not known. It does not wait: the next heartbeat takes the last report along,
// within a second.
func (j *Job) Progress(percent float64, message string) {
	if math.IsNaN(percent) || math.IsInf(percent, 0) || percent == NoPercent {
		j.leases.report(j.lease, nil, message)
		return
	}
	j.leases.report(j.lease, &percent, message)
}

// NoPercent is the percentage of a Progress that knows none.
const NoPercent = -1.0

// SaveCheckpoint stores a value for the next attempt, if there is one. It returns when the service has it; the error
// is a *LeaseLost when the lease is over, and a *Problem when the value is not acceptable. It also works, and is most
// useful, with a context that has ended with ErrCancelled or ErrShutdown.
func (j *Job) SaveCheckpoint(ctx context.Context, value any) error {
	encoded, err := encode(value)
	if err != nil {
		return err
	}
	// One at a time, so that what is stored last is what was saved last.
	select {
	case j.saving <- struct{}{}:
		defer func() { <-j.saving }()
	case <-j.lease.over:
		return j.leases.check(j.lease)
	}
	stored, err := j.leases.store(j.lease, encoded)
	if err != nil {
		return err
	}
	for stopped := ctx.Done(); ; {
		select {
		case err := <-stored.answered:
			return err
		case <-j.lease.over:
			return j.leases.check(j.lease)
		case <-stopped:
			cause := context.Cause(ctx)
			if !errors.Is(cause, ErrCancelled) && !errors.Is(cause, ErrShutdown) {
				return cause
			}
			// The lease is held until the handler returns, and what is saved now may be worth most.
			stopped = nil
		}
	}
}

// IdempotencyKey names a step of the job for a remote API: the same at every attempt, another for every job and step.
func (j *Job) IdempotencyKey(step string) string { return j.ID + ":" + step }

// Submit creates a job only while the lease is held, and only once however often the handler runs: its idempotency
// key is that of the step. The error is a *LeaseLost when the lease is over.
func (j *Job) Submit(ctx context.Context, step string, submission Submission) (Submitted, error) {
	if err := j.leases.check(j.lease); err != nil {
		return Submitted{}, err
	}
	submission.Parent = &Parent{JobID: j.ID, LeaseVersion: j.LeaseVersion}
	submission.IdempotencyKey = j.IdempotencyKey(step)
	submitted, err := j.leases.client.Submit(ctx, submission)
	return submitted, j.noteLost(err)
}

// Verify asks the service whether the lease is held; the error is a *LeaseLost when it is not. Nothing keeps it held
// afterwards: a check is no fence.
func (j *Job) Verify(ctx context.Context) error {
	if err := j.leases.check(j.lease); err != nil {
		return err
	}
	body, err := encode(map[string]any{"lease_version": j.LeaseVersion})
	if err != nil {
		return err
	}
	client := j.leases.client
	call := call{method: http.MethodPost, path: jobPath(j.ID) + "/verify", body: body}
	got, err := client.calls.untilAnswered(ctx, call, client.patience)
	if err != nil || got.status == http.StatusNoContent {
		return err
	}
	err = refusal(got)
	if errors.Is(err, ErrJobNotFound) {
		err = &LeaseLost{JobID: j.ID, PresentedVersion: j.LeaseVersion, Reason: "unknown", cause: err}
	}
	return j.noteLost(err)
}

// noteLost stops the handler when an error of a call under its lease says that this is over.
func (j *Job) noteLost(err error) error {
	var lost *LeaseLost
	if errors.As(err, &lost) {
		j.leases.lostBy(j.lease, lost)
	}
	return err
}
