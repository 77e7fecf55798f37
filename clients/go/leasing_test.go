package fencepost

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAWorkerSaysThatWhatAnswersItsLeaseCallsIsNotTheService(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls > 2 {
			cancel()
		}
		says(200, `{"status": "up"}`)(w, r)
	}))
	defer server.Close()
	worker := NewWorker(server.URL, WorkerOptions{
		Queues: []string{"q"}, IgnoreSignals: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err := worker.Run(ctx); err != nil || strings.Count(log.String(), "does not answer") != 1 {
		t.Errorf("%v %s", err, log.String())
	}
}
