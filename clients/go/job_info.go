package fencepost

import (
	"encoding/json"
	"errors"
	"time"
)

// JobInfo is a job as the service knows it.
type JobInfo struct {
	ID          string            `json:"id"`
	Queue       string            `json:"queue"`
	Kind        string            `json:"kind"`
	State       State             `json:"state"`
	Priority    int               `json:"priority"`
	Payload     json.RawMessage   `json:"payload"`
	Metadata    map[string]string `json:"metadata"`
	RunAt       time.Time         `json:"run_at"`
	CreatedAt   time.Time         `json:"created_at"`
	FinishedAt  *time.Time        `json:"finished_at"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	Backoff     Backoff           `json:"backoff"`
	// MaxRuntime and ProgressTimeout are 0 when the job has no such clock.
	MaxRuntime      time.Duration `json:"-"`
	ProgressTimeout time.Duration `json:"-"`
	// LeaseVersion is that of the last grant. It is nobody's token: only a handler has one.
	LeaseVersion   int64           `json:"lease_version"`
	Lease          *LeaseInfo      `json:"lease"`
	Result         json.RawMessage `json:"result"`
	Error          *JobError       `json:"error"`
	Checkpoint     json.RawMessage `json:"checkpoint"`
	Parent         *Parent         `json:"parent"`
	IdempotencyKey string          `json:"idempotency_key"`
}

// State is where a job is in its life.
type State string

// The states of a job.
const (
	Scheduled State = "scheduled"
	Ready     State = "ready"
	Running   State = "running"
	Succeeded State = "succeeded"
	Dead      State = "dead"
	Cancelled State = "cancelled"
)

// IsFinished tells whether nothing will happen to the job any more, unless it is redriven.
func (s State) IsFinished() bool { return s == Succeeded || s == Dead || s == Cancelled }

// LeaseInfo says who runs a job.
type LeaseInfo struct {
	WorkerID        string        `json:"worker_id"`
	LeaseVersion    int64         `json:"lease_version"`
	GrantedAt       time.Time     `json:"granted_at"`
	ExpiresAt       time.Time     `json:"expires_at"`
	DeadlineAt      *time.Time    `json:"deadline_at"`
	Progress        *ProgressInfo `json:"progress"`
	CancelRequested bool          `json:"cancel_requested"`
}

// ProgressInfo is the last report of a handler.
type ProgressInfo struct {
	Seq     int64    `json:"seq"`
	Percent *float64 `json:"percent"`
	Message string   `json:"message"`
}

// JobError says how an attempt failed.
type JobError struct {
	Type    string          `json:"type"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details"`
}

// read takes the answer that shows a job. What is no job came from something else than the service.
func (j *JobInfo) read(body []byte) error {
	if err := json.Unmarshal(body, j); err != nil {
		return err
	}
	if j.ID == "" {
		return errors.New("the answer is no job")
	}
	return nil
}

// UnmarshalJSON reads the job's durations, which are seconds in the protocol.
func (j *JobInfo) UnmarshalJSON(data []byte) error {
	type plain JobInfo
	wire := struct {
		*plain
		MaxRuntime      float64 `json:"max_runtime_seconds"`
		ProgressTimeout float64 `json:"progress_timeout_seconds"`
	}{plain: (*plain)(j)}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	j.MaxRuntime, j.ProgressTimeout = duration(wire.MaxRuntime), duration(wire.ProgressTimeout)
	return nil
}
