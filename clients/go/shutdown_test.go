package fencepost_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost"
)

// shouts is a log that may be written and read at once.
type shouts struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shouts) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(line)
}

func (s *shouts) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestAShutdownLetsHandlersFinish(t *testing.T) {
	job := submit(t, fencepost.Submission{Kind: "slow", Queue: queueOf(t)})
	runs, goOn := make(chan struct{}, 1), make(chan struct{})
	worker := work(t, fencepost.WorkerOptions{Queues: []string{job.Queue}, Drain: patience}, handlers{
		"slow": func(ctx context.Context, _ *fencepost.Job) (any, error) {
			runs <- struct{}{}
			<-goOn
			return "done", ctx.Err()
		},
	})
	received(t, runs)
	worker.cancel()
	close(goOn)
	worker.stop(t)
	if end := finished(t, job.ID, fencepost.Succeeded); string(end.Result) != `"done"` {
		t.Errorf("%s", end.Result)
	}
}

func TestAShutdownGivesBackWhatIsNotFinished(t *testing.T) {
	queue := queueOf(t)
	polite := submit(t, fencepost.Submission{Kind: "polite", Queue: queue, Payload: "secret"})
	stubborn := submit(t, fencepost.Submission{Kind: "stubborn", Queue: queue})
	runs, causes, never := make(chan struct{}, 2), make(chan error, 1), make(chan struct{})
	returned := make(chan struct{})
	log := &shouts{}
	worker := work(t, fencepost.WorkerOptions{
		Queues: []string{queue}, Drain: -1, Grace: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}, handlers{
		"polite": func(ctx context.Context, _ *fencepost.Job) (any, error) {
			runs <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		},
		"stubborn": func(context.Context, *fencepost.Job) (any, error) {
			defer close(returned)
			runs <- struct{}{}
			<-never
			return "too late", nil
		},
	})
	received(t, runs)
	received(t, runs)
	worker.stop(t)
	mustBe(t, received(t, causes), fencepost.ErrShutdown)
	for _, job := range []*fencepost.JobInfo{polite, stubborn} {
		seen, err := client(t).Get(within(t), job.ID)
		if err != nil || seen.State != fencepost.Ready || seen.Attempt != 0 {
			t.Errorf("%+v %v", seen, err)
		}
	}
	close(never)
	received(t, returned)
	text := log.String()
	if !strings.Contains(text, "drains") || !strings.Contains(text, "has drained") || !strings.Contains(text, "handlers_left=1") {
		t.Error(text)
	}
	if strings.Contains(text, "secret") {
		t.Error("the log has a payload")
	}
}

func TestASignalEndsTheWorker(t *testing.T) {
	ended := make(chan error, 1)
	queue := queueOf(t)
	signalled := fencepost.NewWorker(service(t), fencepost.WorkerOptions{Queues: []string{queue}, Logger: quiet()})
	signalled.HandleOthers(func(context.Context, *fencepost.Job) (any, error) {
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return nil, err
		}
		return nil, self.Signal(syscall.SIGTERM)
	})
	job := submit(t, fencepost.Submission{Kind: "kill", Queue: queue})
	go func() { ended <- signalled.Run(context.Background()) }()
	if err := received(t, ended); err != nil {
		t.Error(err)
	}
	finished(t, job.ID, fencepost.Succeeded)
}

func TestAWorkerThatHasEndedLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	queue := queueOf(t)
	jobs := make([]fencepost.Submission, 20)
	for i := range jobs {
		jobs[i] = fencepost.Submission{Kind: "quick", Queue: queue}
	}
	submitter := http.DefaultTransport.(*http.Transport).Clone()
	defer submitter.CloseIdleConnections()
	producer := fencepost.NewClient(service(t), fencepost.ClientOptions{HTTPClient: &http.Client{Transport: submitter}})
	if _, err := producer.SubmitMany(within(t), jobs); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}, len(jobs))
	worker := work(t, fencepost.WorkerOptions{Queues: []string{queue}, Concurrency: 100}, handlers{
		"quick": func(context.Context, *fencepost.Job) (any, error) {
			done <- struct{}{}
			return nil, nil
		},
	})
	for range jobs {
		received(t, done)
	}
	worker.stop(t)
	submitter.CloseIdleConnections()
	for ctx := within(t); runtime.NumGoroutine() > before; {
		if !pause(ctx) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, not %d: %s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestARefusedSetUpIsAnError(t *testing.T) {
	err := fencepost.NewWorker(service(t), fencepost.WorkerOptions{
		Queues: []string{"no queue"}, Logger: quiet(),
	}).Run(within(t))
	var problem *fencepost.Problem
	if !errors.As(err, &problem) || problem.Status != 422 {
		t.Fatal(err)
	}
}

func TestOptionsThatCannotBeAreAnErrorBeforeAnyCall(t *testing.T) {
	for _, options := range []fencepost.WorkerOptions{
		{},
		{Queues: []string{"q"}, Concurrency: 1001},
		{Queues: []string{"q"}, Concurrency: -1},
		{Queues: []string{"q"}, Lease: -1},
	} {
		if err := fencepost.NewWorker("http://127.0.0.1:1", options).Run(context.Background()); err == nil {
			t.Errorf("%+v is accepted", options)
		}
	}
}
