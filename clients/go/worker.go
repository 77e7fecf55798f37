package fencepost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The largest number of jobs that a lease call may ask for, and of items that a heartbeat call may have.
const maxConcurrency = 1000

// WorkerOptions are those of a Worker. Only Queues is needed. For a duration, zero is the default that is named
// here, and a negative one is zero.
type WorkerOptions struct {
	// Queues are those that this worker serves, 1 to 32.
	Queues []string
	// Concurrency is how many handlers run at once, at most 1,000: 10.
	Concurrency int
	// Lease is how long a dead worker keeps a job: 60 s. It says nothing of how long a handler may run.
	Lease time.Duration
	// Wait is how long a lease call waits for work: 20 s, and never more than a third of a Lease.
	Wait time.Duration
	// Drain is how long handlers may go on after the worker was told to end: 20 s.
	Drain time.Duration
	// Grace is how long handlers may take after they were told to stop: 5 s.
	Grace time.Duration
	// WorkerID is for people, and has to be new for every Run: the host's name and random characters.
	WorkerID string
	// APIKey is the secret of a key with the scope work, and produce too if handlers submit jobs.
	APIKey string
	// IgnoreSignals leaves SIGTERM and SIGINT to the program: end the context instead.
	IgnoreSignals bool
	// HTTPClient sends the calls. It must not have a Timeout: a lease call waits.
	HTTPClient *http.Client
	// Logger hears of lost leases, of mistakes in the set-up, of the service's absence and of the shutdown, never
	// of payloads; slog.Default().
	Logger *slog.Logger
}

// Handler does a job. What it returns decides how the job ends: see Complete, Settled, Fail and Release for what is
// more than a result or an error.
//
// The context ends when the handler has to stop; context.Cause tells why: ErrLeaseLost, ErrCancelled or
// ErrShutdown. Its deadline is the job's. A panic fails the job.
type Handler func(ctx context.Context, job *Job) (any, error)

// HandlerOf makes a Handler of a function that takes the payload as a T. A payload that is none makes the job dead.
func HandlerOf[T any](handler func(ctx context.Context, job *Job, payload T) (any, error)) Handler {
	return func(ctx context.Context, job *Job) (any, error) {
		var payload T
		if err := job.Decode(&payload); err != nil {
			return nil, Fail{Type: "payload_refused", Message: err.Error(), Permanent: true}
		}
		return handler(ctx, job, payload)
	}
}

// Worker runs handlers for the jobs of some queues. Configure it before Run.
type Worker struct {
	baseURL  string
	options  WorkerOptions
	handlers map[string]Handler
	others   Handler
}

// NewWorker makes a worker for the service at an address such as http://127.0.0.1:8000.
func NewWorker(baseURL string, options WorkerOptions) *Worker {
	return &Worker{baseURL: baseURL, options: options, handlers: map[string]Handler{}}
}

// Handle sets the handler for jobs of a kind.
func (w *Worker) Handle(kind string, handler Handler) { w.handlers[kind] = handler }

// HandleOthers sets the handler for jobs of all kinds that have none of their own. Without it such a job is failed
// with the type unknown_kind, and tried again, by then perhaps by a worker that knows it.
func (w *Worker) HandleOthers(handler Handler) { w.others = handler }

// Run works until the context ends or, unless IgnoreSignals is set, SIGTERM or SIGINT comes. Then it leases nothing
// more, lets the handlers go on for Drain, tells those that are left to stop, and gives their jobs back after Grace.
// A second signal shortens the Drain.
//
// It returns nil after that, a *Problem when the service refuses the set-up (a wrong key or option), and another error
// when no call can be made with it. A handler that does not stop goes on after Run has returned; its job is released,
// and nothing it returns counts.
func (w *Worker) Run(ctx context.Context) error {
	options, err := w.options.complete()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 2)
	if !options.IgnoreSignals {
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
	}
	session := newSession(ctx, w, options)
	if session.calls.mistake != nil {
		return session.calls.mistake
	}
	return session.run(ctx, signals)
}

func (o WorkerOptions) complete() (WorkerOptions, error) {
	if len(o.Queues) == 0 {
		return o, errors.New("fencepost: a worker needs a queue")
	}
	o.Concurrency = orDefault(o.Concurrency, 10)
	if o.Concurrency < 1 || o.Concurrency > maxConcurrency {
		return o, fmt.Errorf("fencepost: the concurrency is 1 to %d, not %d", maxConcurrency, o.Concurrency)
	}
	if o.Lease < 0 {
		return o, errors.New("fencepost: a lease cannot be negative")
	}
	o.Lease = orDefault(o.Lease, time.Minute)
	// The lease counts from before the call.
	o.Wait = min(max(orDefault(o.Wait, 20*time.Second), 0), o.Lease/3)
	o.Drain = max(orDefault(o.Drain, 20*time.Second), 0)
	o.Grace = max(orDefault(o.Grace, 5*time.Second), 0)
	o.WorkerID = orDefault(o.WorkerID, newWorkerID())
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = o.Logger.With("worker_id", o.WorkerID)
	return o, nil
}

// newWorkerID returns a name that no other process has, nor the last one on this host.
func newWorkerID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		}
		return '-'
	}, host)
	host = strings.TrimLeft(host, ".-")
	return fmt.Sprintf("%.100s-%s", orDefault(host, "worker"), randomUUID()[:8])
}

// session is one Run of a worker.
type session struct {
	options    WorkerOptions
	handlers   map[string]Handler
	others     Handler
	calls      *caller
	client     *Client
	log        *slog.Logger
	leases     *leases
	heartbeats *heartbeats
	ends       *ends
	// refused takes the first mistake in the set-up that a call finds.
	refused chan error
}

func newSession(ctx context.Context, w *Worker, options WorkerOptions) *session {
	calls := newCaller(w.baseURL, options.APIKey, options.HTTPClient, options.Logger)
	s := &session{
		options: options, handlers: w.handlers, others: w.others, calls: calls, client: newClient(calls, 0, 0),
		log: options.Logger, refused: make(chan error, 1),
	}
	// Handlers outlive the end of the context: they are drained.
	s.leases = newLeases(context.WithoutCancel(ctx), options, s.client)
	s.heartbeats = newHeartbeats(calls, s.leases, options)
	s.ends = newEnds(calls, s.leases, options.Logger)
	return s
}

// refuse tells the session that the service does not take its calls.
func (s *session) refuse(err error) {
	select {
	case s.refused <- err:
	default:
	}
}

// start runs a job's handler in a goroutine of its own, and reports how it ends.
func (s *session) start(l *lease) {
	handler, found := s.handlers[l.job.Kind]
	if !found {
		handler = s.others
	}
	if handler == nil {
		s.settle(l, nil, Fail{Type: "unknown_kind", Message: "this worker has no handler for the kind " + l.job.Kind})
		return
	}
	go func() {
		var result any
		var err error = Fail{Type: "goexit", Message: "the handler ended its goroutine"}
		defer func() {
			if value := recover(); value != nil {
				err = panicked(value)
			}
			s.settle(l, result, err)
		}()
		result, err = handler(l.ctx, l.job)
	}()
}

func (s *session) settle(l *lease, result any, err error) {
	// A look at the clock comes first: the process may just have been woken.
	s.ends.add(l, outcomeOf(l.key(), result, err, s.leases.stopReason(l)))
}
