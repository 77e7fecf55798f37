package fencepost

import (
	"encoding/json"
	"errors"
	"time"
)

// Submission says what job to create. Only Kind is needed; a zero field is left to the service's default.
type Submission struct {
	Kind  string
	Queue string // "default"
	// Payload is written as JSON; a json.RawMessage is sent as it stands.
	Payload any
	// Priority orders jobs of a queue: the lower number is sooner.
	Priority int
	// RunAt or Delay say when the job is due, not both.
	RunAt time.Time
	Delay time.Duration
	// MaxAttempts is how many times the handler may run: 10.
	MaxAttempts int
	Backoff     *Backoff
	// MaxRuntime is the hard limit of one attempt, which heartbeats do not extend: none.
	MaxRuntime time.Duration
	// ProgressTimeout ends an attempt that reports no progress for so long: none.
	ProgressTimeout time.Duration
	Metadata        map[string]string
	// Parent creates the job only while that lease is held. Job.Submit sets it.
	Parent *Parent
	// IdempotencyKey makes two submissions one job. Without one a random key makes the client's own repeats safe.
	IdempotencyKey string
}

// Backoff is the wait after a failed attempt. What is empty or nil is left to the service's default.
type Backoff struct {
	Type   string         // exponential, linear or fixed: exponential
	Base   *time.Duration // of the first wait: 5 s
	Factor *float64       // from one wait to the next, 1 to 10: 2
	Max    *time.Duration // of every wait: an hour
	Jitter *float64       // a share, 0 to 1: 0.1
}

type backoffWire struct {
	Type   string   `json:"type,omitempty"`
	Base   *float64 `json:"base_seconds,omitempty"`
	Factor *float64 `json:"factor,omitempty"`
	Max    *float64 `json:"max_seconds,omitempty"`
	Jitter *float64 `json:"jitter,omitempty"`
}

// Parent is the lease under which a job is created.
type Parent struct {
	JobID        string `json:"job_id"`
	LeaseVersion int64  `json:"lease_version"`
}

type submissionWire struct {
	Kind            string            `json:"kind"`
	Queue           string            `json:"queue,omitempty"`
	Payload         any               `json:"payload,omitempty"`
	Priority        int               `json:"priority,omitempty"`
	RunAt           *time.Time        `json:"run_at,omitempty"`
	Delay           *float64          `json:"delay_seconds,omitempty"`
	MaxAttempts     int               `json:"max_attempts,omitempty"`
	Backoff         *Backoff          `json:"backoff,omitempty"`
	MaxRuntime      *float64          `json:"max_runtime_seconds,omitempty"`
	ProgressTimeout *float64          `json:"progress_timeout_seconds,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	Parent          *Parent           `json:"parent,omitempty"`
	IdempotencyKey  string            `json:"idempotency_key,omitempty"`
}

// MarshalJSON writes the backoff as the protocol has it.
func (b Backoff) MarshalJSON() ([]byte, error) {
	return json.Marshal(backoffWire{b.Type, optional(b.Base), b.Factor, optional(b.Max), b.Jitter})
}

// UnmarshalJSON reads the backoff of a job.
func (b *Backoff) UnmarshalJSON(data []byte) error {
	var wire backoffWire
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*b = Backoff{wire.Type, optionalDuration(wire.Base), wire.Factor, optionalDuration(wire.Max), wire.Jitter}
	return nil
}

func (s Submission) wire() submissionWire {
	wire := submissionWire{
		Kind: s.Kind, Queue: s.Queue, Payload: s.Payload, Priority: s.Priority, Delay: seconds(s.Delay),
		MaxAttempts: s.MaxAttempts, Backoff: s.Backoff, MaxRuntime: seconds(s.MaxRuntime),
		ProgressTimeout: seconds(s.ProgressTimeout), Metadata: s.Metadata, Parent: s.Parent,
	}
	if !s.RunAt.IsZero() {
		// An offset of minutes and seconds would lose the seconds.
		runAt := s.RunAt.UTC()
		wire.RunAt = &runAt
	}
	return wire
}

// followUp is the wire form of a job that comes with a completion, which is its parent and makes it safe to repeat.
func (s Submission) followUp() (submissionWire, error) {
	if s.Parent != nil || s.IdempotencyKey != "" {
		return submissionWire{}, errors.New("a follow-up job of a Complete has no Parent and no IdempotencyKey of its own")
	}
	return s.wire(), nil
}
