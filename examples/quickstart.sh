#!/bin/sh
# The life of one job, with nothing but curl (and Python to pick values out of JSON).
# The same session stands in README.md, explained; `make serve` must be running.
set -eu

api=http://127.0.0.1:8000/v1
post() { curl -sS "$api/$1" -H 'Content-Type: application/json' -d "$2"; echo; }
pick() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }

# A producer enqueues a job; a worker leases it.
post jobs '{"kind": "email.send", "queue": "mail", "payload": {"to": "ada@example.com"}}'
lease=$(post leases '{"worker_id": "w1", "queues": ["mail"], "lease_seconds": 30}')
job=$(echo "$lease" | pick '["jobs"][0]["id"]')
version=$(echo "$lease" | pick '["jobs"][0]["lease_version"]')

# The worker reports progress, then success.
post "jobs/$job/heartbeat" '{"lease_version": '$version', "progress": {"seq": 1, "percent": 50}}'
post "jobs/$job/complete" '{"lease_version": '$version', "result": {"sent": true}}'
curl -sS "$api/jobs/$job" | pick '["state"]'
