package main

import (
	"encoding/json"
	"os"

	"fencepost"
)

// events are lines in a file that the suite reads while they are written.
type events struct {
	file *os.File
}

func openEvents(path string) (*events, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &events{file}, err
}

func (e *events) write(event map[string]any) {
	line, err := json.Marshal(event)
	if err == nil {
		_, err = e.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

func (e *events) of(job *fencepost.Job, name string, more map[string]any) {
	event := map[string]any{"event": name, "job_id": job.ID, "lease_version": job.LeaseVersion}
	for key, value := range more {
		event[key] = value
	}
	e.write(event)
}
