package fencepost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"fencepost"
)

const benchConcurrency = 100

// An empty handler through the worker. Compare with BenchmarkRawCalls: go test -bench=. -count=3.
func BenchmarkWorker(b *testing.B) {
	queue := queueOf(b)
	fill(b, queue, b.N)
	var done atomic.Int64
	all := make(chan struct{})
	worker := fencepost.NewWorker(service(b), fencepost.WorkerOptions{
		Queues: []string{queue}, Concurrency: benchConcurrency, IgnoreSignals: true, Logger: quiet(),
	})
	worker.Handle("empty", func(context.Context, *fencepost.Job) (any, error) {
		if done.Add(1) == int64(b.N) {
			close(all)
		}
		return nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	b.ResetTimer()
	go func() { ended <- worker.Run(ctx) }()
	received(b, all)
	cancel()
	if err := received(b, ended); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// The same calls without the worker: lease as many, complete them, again.
func BenchmarkRawCalls(b *testing.B) {
	queue := queueOf(b)
	fill(b, queue, b.N)
	b.ResetTimer()
	for done := 0; done < b.N; {
		var leased struct {
			Jobs []struct {
				ID           string `json:"id"`
				LeaseVersion int64  `json:"lease_version"`
			} `json:"jobs"`
		}
		post(b, "/v1/leases", map[string]any{
			"worker_id": "raw", "queues": []string{queue}, "max_jobs": benchConcurrency,
		}, &leased)
		items := make([]map[string]any, len(leased.Jobs))
		for i, job := range leased.Jobs {
			items[i] = map[string]any{"job_id": job.ID, "lease_version": job.LeaseVersion}
		}
		post(b, "/v1/leases/complete", map[string]any{"items": items}, nil)
		done += len(items)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

func fill(b *testing.B, queue string, count int) {
	b.Helper()
	for left := count; left > 0; left -= 1000 {
		some := make([]fencepost.Submission, min(left, 1000))
		for i := range some {
			some[i] = fencepost.Submission{Kind: "empty", Queue: queue}
		}
		if _, err := client(b).SubmitMany(within(b), some); err != nil {
			b.Fatal(err)
		}
	}
}

func post(b *testing.B, path string, body, into any) {
	b.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.Post(service(b)+path, "application/json", bytes.NewReader(encoded))
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatal(fmt.Errorf("%s: %s %w", path, answer, err))
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			b.Fatal(err)
		}
	}
}
