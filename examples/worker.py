"""A minimal correct worker, standard library only: python worker.py http://127.0.0.1:8000 my-queue"""

import json
import os
import sys
import threading
import time
import uuid
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

if len(sys.argv) != 3:
    sys.exit(f"usage: {sys.argv[0]} http://127.0.0.1:8000 my-queue")
ADDRESS, QUEUE = sys.argv[1:]
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('API_KEY', '')}"}
WISH = {"worker_id": f"worker-{uuid.uuid4()}", "queues": [QUEUE], "wait_seconds": 20, "lease_seconds": 30}


def call(path: str, body: dict[str, Any]) -> Any:
    """Post until there is an answer, since every call here may be repeated; None: the lease is lost."""
    request = Request(ADDRESS + path, json.dumps(body).encode(), HEADERS)  # noqa: S310
    while True:
        try:
            with urlopen(request, timeout=30) as answer:  # noqa: S310 - the address is ours
                return json.load(answer)
        except HTTPError as refusal:
            if refusal.code in (404, 409):
                return None
            if refusal.code < 500 and refusal.code not in (408, 429):
                raise
        except (OSError, HTTPException):
            pass
        time.sleep(1)


def handle(job: dict[str, Any], stop: threading.Event) -> Any:
    """Do the work; give up when ``stop`` is set: the lease is lost, or a cancel was asked for."""
    if stop.wait(job["payload"]["seconds"]):
        raise InterruptedError("told to stop")
    return f"waited {job['payload']['seconds']} s"


def beat(path: str, job: dict[str, Any], stop: threading.Event, done: threading.Event) -> None:
    while not done.wait(job["lease_seconds"] / 3) and not stop.is_set():
        answer = call(f"{path}/heartbeat", {"lease_version": job["lease_version"]})
        if answer is None or answer["cancel_requested"]:
            stop.set()


def run(job: dict[str, Any]) -> Any:
    path, stop, done = f"/v1/jobs/{job['id']}", threading.Event(), threading.Event()
    threading.Thread(target=beat, args=(path, job, stop, done), daemon=True).start()
    try:
        verb, outcome = "complete", {"result": handle(job, stop)}
        json.dumps(outcome)  # A result that is no JSON is a failure as well.
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is reported
        # The service takes no message of a megabyte.
        verb, outcome = "fail", {"error": {"type": type(error).__name__, "message": str(error)[:10_000]}}
    done.set()
    token = {"lease_version": job["lease_version"]}
    try:
        ended = call(f"{path}/{verb}", token | outcome)
    except HTTPError as refusal:
        if verb == "fail" or refusal.code not in (400, 413, 422):
            raise
        refused = {"type": "result_refused", "message": refusal.read().decode()}
        ended = call(f"{path}/fail", token | {"error": refused, "retryable": False})
    return ended or {"state": "lost"}


while True:
    for leased in call("/v1/leases", WISH | {"request_id": uuid.uuid4().hex})["jobs"]:
        print(leased["id"], run(leased)["state"], flush=True)
