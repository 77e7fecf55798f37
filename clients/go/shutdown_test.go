package fencepost_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
		return nil, syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
	})
	job := submit(t, fencepost.Submission{Kind: "kill", Queue: queue})
	go func() { ended <- signalled.Run(context.Background()) }()
	if err := received(t, ended); err != nil {
		t.Error(err)
	}
	finished(t, job.ID, fencepost.Succeeded)
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
