package fencepost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const longPoll = 20 * time.Second

// ClientOptions are those of a Client. The zero value serves.
type ClientOptions struct {
	// APIKey is the secret of a key with the scope produce.
	APIKey string
	// Timeout is how long one try is waited for: 10 s.
	Timeout time.Duration
	// RetryFor is how long a call without an answer is repeated: 30 s. Negative is no repeat.
	RetryFor time.Duration
	// HTTPClient sends the calls; its Transport is the place for tracing. It should not have a Timeout of its own.
	HTTPClient *http.Client
	// Logger hears when the service goes away, and when it is back; slog.Default().
	Logger *slog.Logger
}

// Client submits jobs and looks at them. It is safe for use by many goroutines.
//
// Its errors are a *Problem when the service refused, a *LeaseLost when that was because of a lease, an *Unavailable
// when no answer came in time, or the context's.
type Client struct {
	calls    *caller
	patience patience
}

// Submitted is a job that was asked for.
type Submitted struct {
	Job *JobInfo `json:"job"`
	// Created is false when the idempotency key was known: the job is from an earlier call.
	Created bool `json:"created"`
}

// NewClient makes a client of the service at an address such as http://127.0.0.1:8000.
func NewClient(baseURL string, options ClientOptions) *Client {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	calls := newCaller(baseURL, options.APIKey, options.HTTPClient, options.Logger)
	return newClient(calls, options.Timeout, options.RetryFor)
}

func newClient(calls *caller, timeout, retryFor time.Duration) *Client {
	if retryFor < 0 {
		// Shorter than any pause.
		retryFor = 1
	}
	return &Client{
		calls:    calls,
		patience: patience{try: orDefault(timeout, 10*time.Second), total: orDefault(retryFor, 30*time.Second)},
	}
}

func orDefault[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

// Submit creates a job. When it returns without an error, the job is committed.
func (c *Client) Submit(ctx context.Context, submission Submission) (Submitted, error) {
	// The key is made before the first try, so that a repeat asks for the same job.
	key, err := quotedKey(orDefault(submission.IdempotencyKey, randomUUID()))
	if err != nil {
		return Submitted{}, err
	}
	body, err := encode(submission.wire())
	if err != nil {
		return Submitted{}, err
	}
	job := &JobInfo{}
	got, err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/jobs", body: body, header: map[string]string{"Idempotency-Key": key},
		read: job.read,
	})
	if err != nil {
		return Submitted{}, err
	}
	return Submitted{Job: job, Created: got.status == http.StatusCreated}, nil
}

// SubmitMany creates jobs in one transaction, all or none, and returns them in the same order.
func (c *Client) SubmitMany(ctx context.Context, submissions []Submission) ([]Submitted, error) {
	items := make([]submissionWire, len(submissions))
	for i, submission := range submissions {
		items[i] = submission.wire()
		items[i].IdempotencyKey = orDefault(submission.IdempotencyKey, randomUUID())
	}
	body, err := encode(map[string]any{"jobs": items})
	if err != nil {
		return nil, err
	}
	var batch struct {
		Jobs []Submitted `json:"jobs"`
	}
	read := func(body []byte) error {
		if err := json.Unmarshal(body, &batch); err != nil {
			return err
		}
		if len(batch.Jobs) != len(items) {
			return errors.New("the answer has not one job for each that was submitted")
		}
		return nil
	}
	if _, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/jobs/batch", body: body, read: read}); err != nil {
		return nil, err
	}
	return batch.Jobs, nil
}

// Get returns a job as it is now.
func (c *Client) Get(ctx context.Context, jobID string) (*JobInfo, error) {
	return c.get(ctx, jobPath(jobID))
}

func (c *Client) get(ctx context.Context, path string) (*JobInfo, error) {
	job := &JobInfo{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: path, read: job.read}); err != nil {
		return nil, err
	}
	return job, nil
}

// Wait returns a job when it is finished. When the context ends before, the context's error comes with the job as
// it was last seen, nil if it never was.
func (c *Client) Wait(ctx context.Context, jobID string) (*JobInfo, error) {
	path := fmt.Sprintf("%s?wait_seconds=%v", jobPath(jobID), inSeconds(longPoll))
	waiting := *c
	waiting.patience.try += longPoll
	seen, err := c.Get(ctx, jobID)
	for err == nil && !seen.State.IsFinished() {
		var job *JobInfo
		if job, err = waiting.get(ctx, path); err == nil {
			seen = job
		}
	}
	return seen, err
}

// Cancel asks for a job to be cancelled. One that runs is Running in the answer: its handler is told, and decides.
// With force the lease is taken away at once. The reason may be empty.
func (c *Client) Cancel(ctx context.Context, jobID, reason string, force bool) (*JobInfo, error) {
	body := map[string]any{"force": force}
	if reason != "" {
		body["reason"] = reason
	}
	job, _, err := c.change(ctx, jobID, "/cancel", body)
	return job, err
}

// Redrive brings a dead or cancelled job back, at runAt or, when that is zero, at once.
func (c *Client) Redrive(ctx context.Context, jobID string, runAt time.Time) (*JobInfo, error) {
	body := map[string]any{}
	if !runAt.IsZero() {
		body["run_at"] = runAt.UTC()
	}
	job, got, err := c.change(ctx, jobID, "/redrive", body)
	var problem *Problem
	if got.repeated && errors.As(err, &problem) && problem.Code == "not_redrivable" && !problem.JobState.IsFinished() {
		// The try that was not answered has done it.
		return c.Get(ctx, jobID)
	}
	return job, err
}

func (c *Client) change(
	ctx context.Context, jobID, verb string, body map[string]any,
) (*JobInfo, answer, error) {
	encoded, err := encode(body)
	if err != nil {
		return nil, answer{}, err
	}
	job := &JobInfo{}
	got, err := c.do(ctx, call{method: http.MethodPost, path: jobPath(jobID) + verb, body: encoded, read: job.read})
	if err != nil {
		return nil, got, err
	}
	return job, got, nil
}

// do makes a call, and an error of a refusal.
func (c *Client) do(ctx context.Context, call call) (answer, error) {
	got, err := c.calls.untilAnswered(ctx, call, c.patience)
	if err != nil {
		return answer{}, err
	}
	if got.status >= 300 {
		return got, refusal(got)
	}
	return got, nil
}

func jobPath(jobID string) string { return "/v1/jobs/" + url.PathEscape(jobID) }

// quotedKey writes an idempotency key as a header's quoted string (RFC 8941), which keeps blanks at its ends.
func quotedKey(key string) (string, error) {
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", fmt.Errorf("fencepost: an idempotency key is printable ASCII text, not %q", key)
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`, nil
}
