#!/bin/sh
# A worker that froze and lost its job is refused everywhere, and changes nothing.
# The same session stands in README.md, explained; `make serve` must be running.
set -eu

api=http://127.0.0.1:8000/v1
post() { curl -sS "$api/$1" -H 'Content-Type: application/json' -d "$2"; echo; }
pick() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }

# The first worker leases for one second and freezes; the second one waits for the job.
post jobs '{"kind": "report.build", "queue": "reports"}'
first=$(post leases '{"worker_id": "frozen", "queues": ["reports"], "lease_seconds": 1}')
second=$(post leases '{"worker_id": "second", "queues": ["reports"], "wait_seconds": 10}')
job=$(echo "$first" | pick '["jobs"][0]["id"]')
stale=$(echo "$first" | pick '["jobs"][0]["lease_version"]')
current=$(echo "$second" | pick '["jobs"][0]["lease_version"]')
before=$(curl -sS "$api/jobs/$job")

# The first one wakes up; each of these is refused with 409 lease_lost.
post "jobs/$job/heartbeat" '{"lease_version": '$stale'}'
post "jobs/$job/complete" '{"lease_version": '$stale', "result": "old"}'
post "jobs/$job/fail" '{"lease_version": '$stale', "error": {"message": "too late"}}'
post "jobs/$job/release" '{"lease_version": '$stale'}'
post jobs '{"kind": "report.mail", "parent": {"job_id": "'$job'", "lease_version": '$stale'}}'

# The second one finishes as if nothing had happened.
after=$(curl -sS "$api/jobs/$job")
test "$before" = "$after" && echo "nothing was changed"
post "jobs/$job/complete" '{"lease_version": '$current', "result": "new"}' | pick '["result"]'
curl -sS "$api/jobs/$job/attempts"; echo
