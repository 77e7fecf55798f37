package fencepost_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"fencepost"
)

// How long a test waits for what has to come; nothing takes so long.
const patience = 60 * time.Second

// service returns the address of a real service: tests/clients/test_go.py starts one.
func service(t testing.TB) string {
	t.Helper()
	url := os.Getenv("FENCEPOST_TEST_URL")
	if url == "" {
		t.Skip("FENCEPOST_TEST_URL names no service")
	}
	return url
}

// within returns a context that ends when the test has waited for too long.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// queueOf returns a queue of the test's own.
func queueOf(t testing.TB) string {
	t.Helper()
	return "go-" + time.Now().Format("150405.000000000")
}

func client(t testing.TB) *fencepost.Client {
	t.Helper()
	return fencepost.NewClient(service(t), fencepost.ClientOptions{Logger: quiet()})
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)) }

// working is a worker that runs until the test is over, or stop is called.
type working struct {
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// work runs a worker with handlers on the test's queue.
func work(
	t testing.TB, options fencepost.WorkerOptions, handlers map[string]fencepost.Handler,
) *working {
	t.Helper()
	options.IgnoreSignals = true
	if options.Logger == nil {
		options.Logger = quiet()
	}
	worker := fencepost.NewWorker(service(t), options)
	for kind, handler := range handlers {
		worker.Handle(kind, handler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &working{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.err = worker.Run(ctx)
	}()
	t.Cleanup(func() { w.stop(t) })
	return w
}

// stop ends the worker and waits for it.
func (w *working) stop(t testing.TB) {
	t.Helper()
	w.cancel()
	select {
	case <-w.ended:
	case <-time.After(patience):
		t.Fatal("the worker does not end")
	}
	if w.err != nil {
		t.Errorf("Run returned %v", w.err)
	}
}

func submit(t testing.TB, submission fencepost.Submission) *fencepost.JobInfo {
	t.Helper()
	submitted, err := client(t).Submit(within(t), submission)
	if err != nil {
		t.Fatal(err)
	}
	return submitted.Job
}

// finished waits for a job's end, which has to be in the given state.
func finished(t testing.TB, jobID string, state fencepost.State) *fencepost.JobInfo {
	t.Helper()
	job, err := client(t).Wait(within(t), jobID)
	if err != nil {
		t.Fatal(err)
	}
	if job.State != state {
		t.Fatalf("the job is %s, not %s: %+v", job.State, state, job.Error)
	}
	return job
}

// until asks for a job until it is as wanted.
func until(t testing.TB, jobID string, wanted func(*fencepost.JobInfo) bool) *fencepost.JobInfo {
	t.Helper()
	ctx := within(t)
	for {
		job, err := client(t).Get(ctx, jobID)
		if err != nil {
			t.Fatal(err)
		}
		if wanted(job) {
			return job
		}
		if !pause(ctx) {
			t.Fatalf("the job never is as wanted: %+v", job)
		}
	}
}

func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}

// received waits for a value.
func received[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

// counted is a set of counters.
type counted struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counted) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[name]++
}

func mustBe(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("the error is %v, not %v", err, target)
	}
}
