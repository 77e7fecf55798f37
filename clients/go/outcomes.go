package fencepost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// What is left of the message of a failure that was refused.
const reducedCharacters = 1_000

// Complete is what a handler returns as its result to have follow-up jobs created in the same transaction.
type Complete struct {
	Result any
	// Enqueue are at most 100 jobs, without Parent and IdempotencyKey: this job and lease become their parent.
	Enqueue []Submission
}

type settled struct{}

// Settled is what a handler returns as its result when it has completed the job in its own SQL transaction
// (Job.CompleteIn): nothing is sent.
var Settled any = settled{}

// Fail is an error that says how the attempt failed. Any other error fails the job too, with the name of its type.
type Fail struct {
	Message string
	// Type is for those who look for a cause: "fail" when empty.
	Type string
	// Details are kept as JSON.
	Details any
	// Permanent makes the job dead: another try is useless.
	Permanent bool
	// RetryAfter replaces the job's backoff; negative is at once, 0 is the backoff.
	RetryAfter time.Duration

	cause error
}

func (f Fail) Error() string { return f.Message }

// Unwrap returns the error that Permanent or RetryAfter was given.
func (f Fail) Unwrap() error { return f.cause }

// Permanent makes an error one that makes the job dead. No error stays none.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return Fail{Type: typeName(err), Message: err.Error(), Permanent: true, cause: err}
}

// RetryAfter makes an error one after which the job is tried again when the pause is over. No error stays none.
func RetryAfter(pause time.Duration, err error) error {
	if err == nil {
		return nil
	}
	if pause == 0 {
		pause = -1
	}
	return Fail{Type: typeName(err), Message: err.Error(), RetryAfter: pause, cause: err}
}

// Release is an error that gives the job back, and its attempt too: it cannot be done now.
type Release struct {
	// Delay is how long nobody is to have it; 0 is not at all, and so is a time that has passed.
	Delay time.Duration
	// Reason is for people; it may be empty.
	Reason string
}

func (r Release) Error() string { return "released: " + r.Reason }

type verb string

const (
	nothing  verb = ""
	complete verb = "complete"
	fail     verb = "fail"
	release  verb = "release"
)

// outcome is what is to be sent for a handler that has returned.
type outcome struct {
	verb verb
	item json.RawMessage
}

type completion struct {
	leaseKeyWire
	Result  json.RawMessage  `json:"result,omitempty"`
	Enqueue []submissionWire `json:"enqueue,omitempty"`
}

type failure struct {
	leaseKeyWire
	Error             failureError `json:"error"`
	Retryable         *bool        `json:"retryable,omitempty"`
	RetryAfterSeconds *float64     `json:"retry_after_seconds,omitempty"`
}

type failureError struct {
	Type    string          `json:"type"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details,omitempty"`
}

type releasing struct {
	leaseKeyWire
	DelaySeconds *float64 `json:"delay_seconds,omitempty"`
	Reason       string   `json:"reason,omitempty"`
}

type leaseKeyWire struct {
	JobID        string `json:"job_id"`
	LeaseVersion int64  `json:"lease_version"`
}

func (k leaseKey) wire() leaseKeyWire { return leaseKeyWire{k.jobID, k.version} }

// outcomeOf is decide for values that may do anything: the methods of an error that is a nil pointer panic, for one.
// They are a handler's, and fail its job as a panic of the handler does.
func outcomeOf(key leaseKey, result any, err error, stop error) (decided outcome) {
	defer func() {
		if value := recover(); value != nil {
			decided = decide(key, nil, panicked(value), stop)
		}
	}()
	return decide(key, result, err, stop)
}

// decide says what to send for what a handler returned; stop is why it had to stop, nil if it had not.
func decide(key leaseKey, result any, err error, stop error) outcome {
	if returned, isError := result.(error); err == nil && isError && isOutcome(returned) {
		// An outcome that is returned as the result means the same.
		err = returned
	}
	given, isReleased := findRelease(err)
	switch {
	case errors.Is(stop, ErrLeaseLost):
		return outcome{}
	case err == nil:
		return completed(key, result)
	case isReleased:
		return released(key, given)
	case errors.Is(stop, ErrShutdown):
		return released(key, Release{Reason: "the worker shut down"})
	}
	failed := asFail(err)
	if errors.Is(stop, ErrCancelled) {
		failed.Type = "cancelled"
	}
	return failedWith(key, failed)
}

func completed(key leaseKey, result any) outcome {
	item := completion{leaseKeyWire: key.wire()}
	if pointed, isPointer := result.(*Complete); isPointer && pointed != nil {
		result = *pointed
	}
	switch returned := result.(type) {
	case settled:
		return outcome{}
	case Complete:
		result = returned.Result
		for _, submission := range returned.Enqueue {
			followUp, err := submission.followUp()
			if err != nil {
				return resultRefused(key, err.Error())
			}
			item.Enqueue = append(item.Enqueue, followUp)
		}
	}
	var err error
	if result != nil {
		if item.Result, err = encode(result); err != nil {
			return resultRefused(key, err.Error())
		}
	}
	encoded, err := encode(item)
	if err != nil {
		return resultRefused(key, err.Error())
	}
	return outcome{complete, encoded}
}

// resultRefused ends a job whose outcome cannot be sent: it would be the same at every try.
func resultRefused(key leaseKey, message string) outcome {
	return failedWith(key, Fail{Type: "result_refused", Message: message, Permanent: true})
}

// reduced returns what is sent instead of an end that was refused alone: for a result a failure that says why, for a
// report the same one without what may be too much of it. It finds nothing when that would be what was refused.
func reduced(key leaseKey, refused outcome, detail string) (outcome, bool) {
	switch refused.verb {
	case complete:
		return resultRefused(key, firstCharacters(detail)), true
	case fail:
		var item failure
		if json.Unmarshal(refused.item, &item) != nil {
			return outcome{}, false
		}
		item.Error = failureError{Type: item.Error.Type, Message: firstCharacters(item.Error.Message)}
		return lesser(refused, item)
	}
	var item releasing
	if json.Unmarshal(refused.item, &item) != nil {
		return outcome{}, false
	}
	item.Reason = ""
	return lesser(refused, item)
}

func lesser(refused outcome, item any) (outcome, bool) {
	encoded, err := encode(item)
	return outcome{refused.verb, encoded}, err == nil && !bytes.Equal(encoded, refused.item)
}

// firstCharacters cuts a message to what every service takes.
func firstCharacters(text string) string {
	if characters := []rune(text); len(characters) > reducedCharacters {
		return string(characters[:reducedCharacters])
	}
	return text
}

func failedWith(key leaseKey, failed Fail) outcome {
	item := failure{leaseKeyWire: key.wire(), Error: failureError{Type: failed.Type, Message: failed.Message}}
	if failed.Details != nil {
		details, err := encode(failed.Details)
		if err != nil {
			details, _ = encode(map[string]any{"dropped": true, "reason": err.Error()})
		}
		item.Error.Details = details
	}
	if failed.Permanent {
		item.Retryable = new(bool)
	}
	if failed.RetryAfter != 0 {
		pause := inSeconds(max(failed.RetryAfter, 0))
		item.RetryAfterSeconds = &pause
	}
	// Nothing is left in it that cannot be written.
	encoded, _ := encode(item)
	return outcome{fail, encoded}
}

func released(key leaseKey, given Release) outcome {
	encoded, _ := encode(releasing{key.wire(), seconds(max(given.Delay, 0)), given.Reason})
	return outcome{release, encoded}
}

func asFail(err error) Fail {
	failed, isFail := findFail(err)
	if !isFail {
		return Fail{Type: typeName(err), Message: err.Error()}
	}
	if failed.Type == "" {
		failed.Type = "fail"
	}
	return failed
}

func isOutcome(err error) bool {
	_, isFail := findFail(err)
	_, isRelease := findRelease(err)
	return isFail || isRelease
}

// The methods of these are there for pointers too: an outcome may be returned as either.

func (f Fail) fail() Fail { return f }

func (r Release) release() Release { return r }

func findFail(err error) (Fail, bool) {
	var found interface{ fail() Fail }
	if !errors.As(err, &found) {
		return Fail{}, false
	}
	return found.fail(), true
}

func findRelease(err error) (Release, bool) {
	var found interface{ release() Release }
	if !errors.As(err, &found) {
		return Release{}, false
	}
	return found.release(), true
}

// typeName names the first type in the chain that says more than that it is an error.
func typeName(err error) string {
	for each := err; each != nil; each = errors.Unwrap(each) {
		name := strings.TrimPrefix(fmt.Sprintf("%T", each), "*")
		if !strings.HasPrefix(name, "errors.") && !strings.HasPrefix(name, "fmt.") {
			return name
		}
	}
	return "error"
}

// panicked is the failure of a handler that panicked.
func panicked(value any) Fail {
	const most = 8 << 10
	stack := string(debug.Stack())
	if len(stack) > most {
		stack = strings.ToValidUTF8(stack[:most], "")
	}
	return Fail{Type: "panic", Message: fmt.Sprint(value), Details: map[string]string{"stack": stack}}
}
