package fencepost

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// script answers one request after the other; the last answer stays.
type script struct {
	mu       sync.Mutex
	answers  []http.HandlerFunc
	requests []*http.Request
	bodies   []string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
	answer := s.answers[min(len(s.requests), len(s.answers))-1]
	s.mu.Unlock()
	answer(w, r)
}

// seen returns what has been asked so far.
func (s *script) seen() ([]*http.Request, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests, s.bodies
}

func says(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func hangsUp(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }

func scripted(t *testing.T, options ClientOptions, answers ...http.HandlerFunc) (*Client, *script) {
	t.Helper()
	s := &script{answers: answers}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	if options.Logger == nil {
		options.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return NewClient(server.URL+"/", options), s
}

const aJob = `{"id": "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d", "state": "ready"}`

func TestASubmissionWithoutAnAnswerIsSentAgainAsItWas(t *testing.T) {
	client, s := scripted(t, ClientOptions{},
		hangsUp, says(503, ""), says(429, ""), says(408, ""), says(200, "<html>"), says(201, aJob))
	submitted, err := client.Submit(context.Background(), Submission{Kind: "k"})
	if err != nil || !submitted.Created || submitted.Job.State != Ready {
		t.Fatalf("%+v %v", submitted, err)
	}
	requests, bodies := s.seen()
	if len(requests) != 6 {
		t.Errorf("%d requests", len(requests))
	}
	for i, request := range requests {
		key := request.Header.Get("Idempotency-Key")
		if key != requests[0].Header.Get("Idempotency-Key") || len(key) != 38 || bodies[i] != bodies[0] {
			t.Errorf("request %d: %s %s", i, key, bodies[i])
		}
	}
}

func TestEachItemOfABatchHasAKeyOfItsOwnAtEveryTry(t *testing.T) {
	client, s := scripted(t, ClientOptions{}, says(500, ""), says(201, `{"jobs": [{"created": true}, {"created": false}]}`))
	submitted, err := client.SubmitMany(context.Background(), []Submission{{Kind: "k"}, {Kind: "k", IdempotencyKey: "mine"}})
	if err != nil || !submitted[0].Created || submitted[1].Created {
		t.Fatalf("%+v %v", submitted, err)
	}
	_, bodies := s.seen()
	if bodies[0] != bodies[1] || strings.Count(bodies[0], `"idempotency_key":"`) != 2 ||
		!strings.Contains(bodies[0], `"mine"`) {
		t.Error(bodies)
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	client, s := scripted(t, ClientOptions{APIKey: "secret"}, says(422, `{"code": "idempotency_key_reused", "job_id": "j",
		"detail": "d", "request_id": "r", "errors": [{"pointer": "/kind", "message": "m"}]}`))
	_, err := client.Submit(context.Background(), Submission{Kind: "k", IdempotencyKey: ` "odd`})
	var problem *Problem
	if !errors.Is(err, ErrIdempotencyKeyReused) || !errors.As(err, &problem) || problem.Status != 422 ||
		problem.JobID != "j" || problem.RequestID != "r" || problem.Errors[0].Pointer != "/kind" {
		t.Fatalf("%#v", err)
	}
	requests, _ := s.seen()
	header := requests[0].Header
	if len(requests) != 1 || header.Get("Authorization") != "Bearer secret" ||
		header.Get("Idempotency-Key") != `" \"odd"` {
		t.Errorf("%d requests, %v", len(requests), header)
	}
}

func TestTheLastErrorIsRaisedWhenThePatienceIsOver(t *testing.T) {
	client, s := scripted(t, ClientOptions{RetryFor: 300 * time.Millisecond}, says(503, `{"code": "unavailable"}`))
	_, err := client.Get(context.Background(), "j")
	var problem *Problem
	if !errors.Is(err, ErrUnavailable) || !errors.As(err, &problem) || problem.Code != "unavailable" {
		t.Fatal(err)
	}
	if requests, _ := s.seen(); len(requests) < 2 {
		t.Error("it was not repeated")
	}
}

func TestWithoutPatienceThereIsOneTry(t *testing.T) {
	client, s := scripted(t, ClientOptions{RetryFor: -1}, hangsUp)
	_, err := client.Get(context.Background(), "j")
	requests, _ := s.seen()
	if !errors.Is(err, ErrUnavailable) || len(requests) != 1 {
		t.Fatalf("%v after %d requests", err, len(requests))
	}
}

func TestACallEndsWithItsContextAndSaysWhatHappenedBefore(t *testing.T) {
	client, _ := scripted(t, ClientOptions{}, says(503, `{"code": "unavailable"}`, "Retry-After", "20"))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := client.Get(ctx, "j")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "unavailable") {
		t.Fatal(err)
	}
}

func TestARedriveThatWasDoneWithoutAnAnswerIsNoRefusal(t *testing.T) {
	refused := says(409, `{"code": "not_redrivable"}`)
	client, _ := scripted(t, ClientOptions{}, hangsUp, refused, says(200, aJob))
	job, err := client.Redrive(context.Background(), "j", time.Time{})
	if err != nil || job.State != Ready {
		t.Fatalf("%+v %v", job, err)
	}
	client, _ = scripted(t, ClientOptions{}, refused)
	var problem *Problem
	if _, err := client.Redrive(context.Background(), "j", time.Time{}); !errors.As(err, &problem) {
		t.Fatal(err)
	}
}

func TestARedriveThatWasRefusedForAFinishedJobIsARefusalAfterARepeatToo(t *testing.T) {
	refused := says(409, `{"code": "not_redrivable", "job_state": "succeeded"}`)
	client, _ := scripted(t, ClientOptions{}, says(503, ""), refused, says(200, aJob))
	var problem *Problem
	if job, err := client.Redrive(context.Background(), "j", time.Time{}); !errors.As(err, &problem) {
		t.Fatalf("%+v %v", job, err)
	}
}

func TestAnAnswerThatHasNoJobIsNotTheServices(t *testing.T) {
	elses := says(200, `{"status": "up"}`)
	batch := says(201, `{"jobs": [{"created": true, "job": `+aJob+`}]}`)
	for name, ask := range map[string]func(*Client) error{
		"Submit": func(c *Client) error { _, err := c.Submit(context.Background(), Submission{Kind: "k"}); return err },
		"Get":    func(c *Client) error { _, err := c.Get(context.Background(), "j"); return err },
		"SubmitMany": func(c *Client) error {
			_, err := c.SubmitMany(context.Background(), []Submission{{Kind: "k"}})
			return err
		},
	} {
		answer := says(200, aJob)
		if name == "SubmitMany" {
			answer = batch
		}
		client, s := scripted(t, ClientOptions{}, elses, answer)
		if err := ask(client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if requests, _ := s.seen(); len(requests) != 2 {
			t.Errorf("%s: %d requests", name, len(requests))
		}
	}
}

func TestWhatNoCallCanBeMadeOfIsAnErrorAtOnce(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, each := range []struct{ address, key string }{
		{"127.0.0.1:8000", ""}, {"localhost:8000", ""}, {"", ""}, {"http://", ""}, {"http://127.0.0.1:8000\n", ""},
		{"http://127.0.0.1:8000", "secret\n"},
	} {
		_, err := NewClient(each.address, ClientOptions{APIKey: each.key, Logger: logger}).Get(context.Background(), "j")
		if err == nil || errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("client of %q: %v", each.address, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = NewWorker(each.address, WorkerOptions{Queues: []string{"q"}, APIKey: each.key, Logger: logger}).Run(ctx)
		if err == nil || ctx.Err() != nil {
			t.Errorf("worker of %q: %v", each.address, err)
		}
		cancel()
	}
	if log.Len() > 0 {
		t.Error(log.String())
	}
}

func TestAnIdempotencyKeyThatNoHeaderCanHaveIsAnErrorAtOnce(t *testing.T) {
	client, s := scripted(t, ClientOptions{}, says(201, aJob))
	_, err := client.Submit(context.Background(), Submission{Kind: "k", IdempotencyKey: "two\nlines"})
	if requests, _ := s.seen(); err == nil || errors.Is(err, ErrUnavailable) || len(requests) > 0 {
		t.Fatal(err)
	}
}

func TestRetryAfterIsANumberOfSecondsOrADate(t *testing.T) {
	inAMinute := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	for text, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-3": 0, "7": 7 * time.Second, "Thu, 01 Jan 1970 00:00:00 GMT": 0, inAMinute: time.Minute,
	} {
		got := answer{header: http.Header{"Retry-After": {text}}}.retryAfter()
		if got > want || got < want-2*time.Second {
			t.Errorf("%q is %v", text, got)
		}
	}
}

type traced struct{ http.RoundTripper }

func TestTheProgramsTransportIsUsedWrappedOrNot(t *testing.T) {
	wrapped := traced{http.DefaultTransport}
	if got := ownTransport(wrapped); got != wrapped {
		t.Errorf("%T", got)
	}
	impatient := http.DefaultTransport.(*http.Transport).Clone()
	impatient.ResponseHeaderTimeout = time.Second
	if got := ownTransport(impatient).(*http.Transport); got == impatient || got.ResponseHeaderTimeout != 0 {
		t.Errorf("%+v", got)
	}
}

func TestARedirectIsARefusalAndNotFollowed(t *testing.T) {
	client, s := scripted(t, ClientOptions{}, says(302, "", "Location", "/elsewhere"))
	var problem *Problem
	if _, err := client.Get(context.Background(), "j"); !errors.As(err, &problem) || problem.Status != 302 {
		t.Fatal(err)
	}
	if requests, _ := s.seen(); len(requests) != 1 {
		t.Error("it was followed")
	}
}

func TestPausesAreDoubledUpToTenSecondsAndDrawnBetweenHalfAndTheWhole(t *testing.T) {
	for round := 0; round < 200; round++ {
		var between pauses
		for _, whole := range []float64{0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10} {
			pause := between.next(0).Seconds()
			if pause < whole/2 || pause > whole {
				t.Fatalf("%v where the whole is %v", pause, whole)
			}
		}
		if pause := between.next(time.Minute); pause != time.Minute {
			t.Fatalf("%v, though Retry-After asked for a minute", pause)
		}
	}
}

func TestTheLogTellsOnceThatTheServiceIsAwayAndOnceThatItIsBack(t *testing.T) {
	var log bytes.Buffer
	client, _ := scripted(t, ClientOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))},
		says(503, ""), says(429, ""), says(200, "<html>"), says(200, aJob))
	for range [2]int{} {
		if _, err := client.Get(context.Background(), "j"); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(log.String(), "does not answer") != 1 || strings.Count(log.String(), "answers again") != 1 {
		t.Error(log.String())
	}
}
