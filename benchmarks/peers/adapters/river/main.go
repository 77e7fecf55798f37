// The River adapter: the same operations and events as ../shell.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sys/unix"
)

const stopTimeout = 5 * time.Second

// settings are the worker's, from PEER_CONF.
type settings struct {
	MaxWorkers                    int `json:"max_workers"`
	FetchCooldownMilliseconds     int `json:"fetch_cooldown_milliseconds"`
	FetchPollIntervalMilliseconds int `json:"fetch_poll_interval_milliseconds"`
}

// clientConfig is what a producer is given; a worker adds its queue.
type clientConfig struct {
	river.Config
	maxWorkers int
}

// arguments are what any of the operations may be given.
type arguments struct {
	N            int `json:"n"`
	Clients      int `json:"clients"`
	Batch        int `json:"batch"`
	DelaySeconds int `json:"delay_seconds"`
	PerSecond    int `json:"per_second"`
}

// payload is what every system is given as a job: a number, and for the latencies when the enqueue call started.
type payload struct {
	I int   `json:"i"`
	T int64 `json:"t,omitempty"`
}

func (payload) Kind() string { return "bench" }

type worker struct {
	river.WorkerDefaults[payload]
	handle func(payload)
}

func (w *worker) Work(_ context.Context, job *river.Job[payload]) error {
	w.handle(job.Args)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		emit("ERROR", map[string]any{"detail": err.Error()})
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var given arguments
	if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
		return err
	}
	switch operation := os.Args[1]; operation {
	case "setup":
		return setUp(ctx)
	case "enqueue":
		return enqueue(ctx, given)
	case "bulk":
		return bulk(ctx, given)
	case "pace":
		return pace(ctx, given)
	case "drain":
		return work(ctx, counter(given.N))
	case "watch":
		return work(ctx, watch(given.N))
	default:
		return fmt.Errorf("unknown operation %s", operation)
	}
}

func setUp(ctx context.Context) error {
	pool, err := openPool(ctx, 2)
	if err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	pool.Close()
	emit("RESULT", nil)
	return nil
}

func enqueue(ctx context.Context, given arguments) error {
	client, err := openAndWarmUp(ctx, given.Clients)
	if err != nil {
		return err
	}
	var next atomic.Int64
	startedAt := now()
	err = together(given.Clients, func() error {
		for i := int(next.Add(1)) - 1; i < given.N; i = int(next.Add(1)) - 1 {
			if _, err := client.Insert(ctx, payload{I: i}, nil); err != nil {
				return err
			}
		}
		return nil
	})
	emitResult(startedAt, given.N)
	return err
}

func bulk(ctx context.Context, given arguments) error {
	client, err := openProducer(ctx, 1)
	if err != nil {
		return err
	}
	var options *river.InsertOpts
	if given.DelaySeconds > 0 {
		options = &river.InsertOpts{ScheduledAt: time.Now().Add(time.Duration(given.DelaySeconds) * time.Second)}
	}
	startedAt := now()
	for start := 0; start < given.N; start += given.Batch {
		params := make([]river.InsertManyParams, min(given.Batch, given.N-start))
		for i := range params {
			params[i] = river.InsertManyParams{Args: payload{I: start + i}, InsertOpts: options}
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	emitResult(startedAt, given.N)
	return nil
}

func pace(ctx context.Context, given arguments) error {
	client, err := openAndWarmUp(ctx, given.Clients)
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	var underWay sync.WaitGroup
	startedAt := now()
	first := time.Now()
	for i := range given.N {
		// The schedule is kept whatever the answers do.
		time.Sleep(time.Until(first.Add(time.Duration(i) * time.Second / time.Duration(given.PerSecond))))
		calledAt := now()
		underWay.Go(func() {
			if _, err := client.Insert(ctx, payload{I: i, T: calledAt}, nil); err != nil {
				emit("ERROR", map[string]any{"detail": err.Error()})
			}
		})
	}
	underWay.Wait()
	emitResult(startedAt, given.N)
	return nil
}

// counter tells when the n-th handler runs.
func counter(n int) func(payload) {
	var handled atomic.Int64
	return func(payload) {
		if handled.Add(1) == int64(n) {
			emit("HANDLED", nil)
		}
	}
}

// watch tells how long each of n jobs was under way; jobs without a start time only warm up.
func watch(n int) func(payload) {
	var mutex sync.Mutex
	milliseconds := make([]float64, 0, n)
	return func(job payload) {
		at := now()
		if job.T == 0 {
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		milliseconds = append(milliseconds, float64(at-job.T)/1e6)
		if len(milliseconds) == n {
			emit("WATCHED", map[string]any{"milliseconds": milliseconds})
		}
	}
}

func work(ctx context.Context, handle func(payload)) error {
	pool, err := openPool(ctx, 10)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{handle: handle})
	config, err := newConfig()
	if err != nil {
		return err
	}
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: config.maxWorkers}}
	config.Workers = workers
	client, err := river.NewClient(riverpgxv5.New(pool), &config.Config)
	if err != nil {
		return err
	}
	emit("START", nil)
	if err := client.Start(ctx); err != nil {
		return err
	}
	emit("READY", nil)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() && strings.TrimSpace(lines.Text()) != "stop" {
	}
	stopping, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return client.StopAndCancel(stopping)
}

// openAndWarmUp enqueues a job a connection, so that none is opened in the measured time.
func openAndWarmUp(ctx context.Context, clients int) (*river.Client[pgx.Tx], error) {
	client, err := openProducer(ctx, clients)
	if err != nil {
		return nil, err
	}
	return client, together(clients, func() error {
		_, err := client.Insert(ctx, payload{I: -1}, nil)
		return err
	})
}

// openProducer opens a client that only inserts.
func openProducer(ctx context.Context, clients int) (*river.Client[pgx.Tx], error) {
	pool, err := openPool(ctx, clients)
	if err != nil {
		return nil, err
	}
	config, err := newConfig()
	if err != nil {
		return nil, err
	}
	return river.NewClient(riverpgxv5.New(pool), &config.Config)
}

// newConfig gives producers the worker's cooldown as well: it bounds how often a producer notifies.
func newConfig() (*clientConfig, error) {
	var conf settings
	if err := json.Unmarshal([]byte(os.Getenv("PEER_CONF")), &conf); err != nil {
		return nil, err
	}
	return &clientConfig{
		Config: river.Config{
			FetchCooldown:     time.Duration(conf.FetchCooldownMilliseconds) * time.Millisecond,
			FetchPollInterval: time.Duration(conf.FetchPollIntervalMilliseconds) * time.Millisecond,
			Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		},
		maxWorkers: conf.MaxWorkers,
	}, nil
}

func openPool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("PEER_URL"))
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	config.MinConns = int32(connections)
	return pgxpool.NewWithConfig(ctx, config)
}

// together runs n copies of one function at the same time and returns one of their errors.
func together(n int, function func() error) error {
	failures := make(chan error, n)
	for range n {
		go func() { failures <- function() }()
	}
	var failure error
	for range n {
		if err := <-failures; err != nil {
			failure = err
		}
	}
	return failure
}

// now is the clock that all processes of the machine share; time.Now's monotonic part cannot be read.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

var output sync.Mutex

func emit(event string, members map[string]any) {
	line := map[string]any{"event": event, "at": now()}
	for name, value := range members {
		line[name] = value
	}
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

func emitResult(startedAt int64, n int) {
	emit("RESULT", map[string]any{"seconds": float64(now()-startedAt) / 1e9, "n": n})
}
