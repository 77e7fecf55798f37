package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"fencepost"
)

func produce(told settings, events *events) error {
	client := fencepost.NewClient(told.URL, fencepost.ClientOptions{APIKey: told.APIKey})
	for _, each := range told.Produce {
		submitted, err := submit(client, each)
		for _, one := range submitted {
			events.write(map[string]any{"event": "submitted", "id": one.Job.ID, "created": one.Created})
		}
		if err != nil {
			refused := map[string]any{"event": "refused", "code": codeOf(err)}
			var problem *fencepost.Problem
			if errors.As(err, &problem) {
				refused["status"] = problem.Status
			}
			events.write(refused)
		}
	}
	events.write(map[string]any{"event": "done"})
	return nil
}

func submit(client *fencepost.Client, call json.RawMessage) ([]fencepost.Submitted, error) {
	var told struct {
		Submit     json.RawMessage   `json:"submit"`
		SubmitMany []json.RawMessage `json:"submit_many"`
	}
	if err := json.Unmarshal(call, &told); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if told.Submit != nil {
		one, err := submission(told.Submit)
		if err != nil {
			return nil, err
		}
		submitted, err := client.Submit(ctx, one)
		if err != nil {
			return nil, err
		}
		return []fencepost.Submitted{submitted}, nil
	}
	many := make([]fencepost.Submission, len(told.SubmitMany))
	for i, body := range told.SubmitMany {
		one, err := submission(body)
		if err != nil {
			return nil, err
		}
		many[i] = one
	}
	return client.SubmitMany(ctx, many)
}

// submission reads a job body of the protocol.
func submission(body json.RawMessage) (fencepost.Submission, error) {
	var told struct {
		Kind                   string             `json:"kind"`
		Queue                  string             `json:"queue"`
		Payload                json.RawMessage    `json:"payload"`
		Priority               int                `json:"priority"`
		RunAt                  time.Time          `json:"run_at"`
		DelaySeconds           float64            `json:"delay_seconds"`
		MaxAttempts            int                `json:"max_attempts"`
		Backoff                *fencepost.Backoff `json:"backoff"`
		MaxRuntimeSeconds      float64            `json:"max_runtime_seconds"`
		ProgressTimeoutSeconds float64            `json:"progress_timeout_seconds"`
		Metadata               map[string]string  `json:"metadata"`
		IdempotencyKey         string             `json:"idempotency_key"`
	}
	if err := json.Unmarshal(body, &told); err != nil {
		return fencepost.Submission{}, err
	}
	made := fencepost.Submission{
		Kind: told.Kind, Queue: told.Queue, Priority: told.Priority, RunAt: told.RunAt,
		MaxAttempts: told.MaxAttempts, Backoff: told.Backoff, Metadata: told.Metadata,
		IdempotencyKey:  told.IdempotencyKey,
		Delay:           duration(told.DelaySeconds),
		MaxRuntime:      duration(told.MaxRuntimeSeconds),
		ProgressTimeout: duration(told.ProgressTimeoutSeconds),
	}
	if told.Payload != nil {
		made.Payload = told.Payload
	}
	return made, nil
}
