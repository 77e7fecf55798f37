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
		says(503, ""), says(503, ""), says(503, ""), says(200, aJob))
	for range [2]int{} {
		if _, err := client.Get(context.Background(), "j"); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(log.String(), "does not answer") != 1 || strings.Count(log.String(), "answers again") != 1 {
		t.Error(log.String())
	}
}
