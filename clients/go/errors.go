package fencepost

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// What went wrong, for errors.Is. The first three are also the causes with which a handler's context ends
// (context.Cause).
var (
	// ErrLeaseLost says that the lease is over: somebody else may have the job. Errors that match it are a
	// *LeaseLost.
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrCancelled says that somebody asked for the job to be cancelled.
	ErrCancelled = errors.New("a cancel was asked for")
	// ErrShutdown says that the worker shuts down and that the time to finish is over.
	ErrShutdown = errors.New("the worker shuts down")
	// ErrJobNotFound says that no job has this id, or that its retention is over.
	ErrJobNotFound = errors.New("there is no such job")
	// ErrIdempotencyKeyReused says that the key belongs to another request.
	ErrIdempotencyKeyReused = errors.New("the idempotency key belongs to another request")
	// ErrUnavailable says that no answer came in time. Errors that match it are an *Unavailable.
	ErrUnavailable = errors.New("the service does not answer")
)

// Problem is a refusal by the service (RFC 9457). Decide by Code; the sentence in Detail may change.
type Problem struct {
	Status    int          `json:"status"`
	Code      string       `json:"code"`
	Title     string       `json:"title"`
	Detail    string       `json:"detail"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors"`
	// JobID and JobState are those of the job that stands in the way, where there is one.
	JobID    string `json:"job_id"`
	JobState State  `json:"job_state"`
}

// FieldError says what is wrong at one place of the request.
type FieldError struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

func (p *Problem) Error() string {
	if p.Code == "" {
		return fmt.Sprintf("the service answered %d", p.Status)
	}
	text := fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Detail)
	for _, each := range p.Errors {
		text += fmt.Sprintf(" (%s: %s)", each.Pointer, each.Message)
	}
	return text
}

// Is tells errors.Is which of the package's errors this is.
func (p *Problem) Is(target error) bool {
	switch p.Code {
	case "job_not_found":
		return target == ErrJobNotFound
	case "idempotency_key_reused":
		return target == ErrIdempotencyKeyReused
	}
	return false
}

// LeaseLost says which lease is over, and why.
type LeaseLost struct {
	JobID string `json:"job_id"`
	// PresentedVersion is the lease_version that is over.
	PresentedVersion int64 `json:"presented_version"`
	// CurrentVersion and JobState are what the service knows of the job; nil and empty when it was not asked.
	CurrentVersion *int64 `json:"current_version"`
	JobState       string `json:"job_state"`
	// Reason is expired, stalled, deadline_exceeded, failed, released, cancelled, finished or unknown.
	Reason string `json:"reason"`

	cause error
}

func (l *LeaseLost) Error() string {
	return fmt.Sprintf("the lease of job %s under version %d is lost (%s)", l.JobID, l.PresentedVersion, l.Reason)
}

// Is tells errors.Is that this is ErrLeaseLost.
func (l *LeaseLost) Is(target error) bool { return target == ErrLeaseLost }

// Unwrap returns the *Problem or the database's error that said so, nil when the clock did.
func (l *LeaseLost) Unwrap() error { return l.cause }

// Unavailable says how long a call was repeated in vain. The call may have been done all the same.
type Unavailable struct {
	After time.Duration
	// Last is what happened to the last try: no answer, or a *Problem of 408, 429, 500 or above.
	Last error
}

func (u *Unavailable) Error() string {
	return fmt.Sprintf("no answer in %s: %v", u.After.Round(time.Millisecond), u.Last)
}

// Is tells errors.Is that this is ErrUnavailable.
func (u *Unavailable) Is(target error) bool { return target == ErrUnavailable }

// Unwrap returns what happened to the last try.
func (u *Unavailable) Unwrap() error { return u.Last }

// refusal makes an error of an answer that is no success.
func refusal(a answer) error {
	problem := &Problem{}
	if json.Unmarshal(a.body, problem) != nil {
		// Not ours: a proxy answered.
		problem = &Problem{Detail: http.StatusText(a.status)}
	}
	problem.Status = a.status
	if problem.Code != "lease_lost" {
		return problem
	}
	lost := &LeaseLost{cause: problem}
	if err := json.Unmarshal(a.body, lost); err != nil {
		return problem
	}
	return lost
}
