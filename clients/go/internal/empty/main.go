// An empty handler in Go, for benchmarks/clients: empty worker | loop URL QUEUE SLOTS JOBS
//
// worker runs the client's worker until SIGTERM; loop is the least that does the same with net/http.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"

	"fencepost"
)

func main() {
	mode, url, queue := os.Args[1], os.Args[2], os.Args[3]
	slots, jobs := number(os.Args[4]), number(os.Args[5])
	var err error
	if mode == "worker" {
		worker := fencepost.NewWorker(url, fencepost.WorkerOptions{Queues: []string{queue}, Concurrency: slots})
		worker.HandleOthers(func(context.Context, *fencepost.Job) (any, error) { return nil, nil })
		err = worker.Run(context.Background())
	} else {
		err = loop(url, queue, slots, jobs)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

type item struct {
	JobID        string `json:"job_id"`
	LeaseVersion int64  `json:"lease_version"`
}

func loop(url, queue string, slots, jobs int) error {
	wish := map[string]any{"worker_id": "loop", "queues": []string{queue}, "max_jobs": slots, "lease_seconds": 60}
	for jobs > 0 {
		var leased struct {
			Jobs []struct {
				ID           string          `json:"id"`
				LeaseVersion int64           `json:"lease_version"`
				Payload      json.RawMessage `json:"payload"`
			} `json:"jobs"`
		}
		if err := post(url+"/v1/leases", wish, &leased); err != nil {
			return err
		}
		items := make([]item, len(leased.Jobs))
		for i, job := range leased.Jobs {
			items[i] = item{job.ID, job.LeaseVersion}
		}
		var settled struct{ Results []json.RawMessage }
		if err := post(url+"/v1/leases/complete", map[string]any{"items": items}, &settled); err != nil {
			return err
		}
		jobs -= len(items)
	}
	return nil
}

func post(url string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := http.Post(url, "application/json", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s was answered %s", url, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
