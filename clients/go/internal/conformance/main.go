// The adapter by which the conformance suite (clients/conformance) drives this client: a handler that does the steps
// of a payload, a producer that submits what it is told, and a file of events.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"fencepost"
)

type settings struct {
	URL     string            `json:"url"`
	Events  string            `json:"events"`
	Role    string            `json:"role"`
	APIKey  string            `json:"api_key"`
	Worker  workerSettings    `json:"worker"`
	Produce []json.RawMessage `json:"produce"`
}

type workerSettings struct {
	Queues       []string `json:"queues"`
	Concurrency  int      `json:"concurrency"`
	LeaseSeconds float64  `json:"lease_seconds"`
	WaitSeconds  float64  `json:"wait_seconds"`
	DrainSeconds float64  `json:"drain_seconds"`
	GraceSeconds float64  `json:"grace_seconds"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var told settings
	if err := json.Unmarshal([]byte(os.Getenv("CONFORMANCE")), &told); err != nil {
		return fmt.Errorf("CONFORMANCE: %w", err)
	}
	events, err := openEvents(told.Events)
	if err != nil {
		return err
	}
	if told.Role == "producer" {
		return produce(told, events)
	}
	worker := fencepost.NewWorker(told.URL, fencepost.WorkerOptions{
		Queues:      told.Worker.Queues,
		Concurrency: told.Worker.Concurrency,
		Lease:       span(told.Worker.LeaseSeconds),
		Wait:        span(told.Worker.WaitSeconds),
		Drain:       span(told.Worker.DrainSeconds),
		Grace:       span(told.Worker.GraceSeconds),
		APIKey:      told.APIKey,
	})
	worker.Handle("scripted", func(ctx context.Context, job *fencepost.Job) (any, error) {
		return perform(ctx, job, events)
	})
	events.write(map[string]any{"event": "ready"})
	return worker.Run(context.Background())
}

// span reads a setting, in which 0 is meant.
func span(seconds float64) time.Duration {
	if seconds == 0 {
		return -1
	}
	return duration(seconds)
}

// duration is the one that is nearest: what is cut off instead would make 1.014999999 s of 1.015.
func duration(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}
