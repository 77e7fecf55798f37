"""A worker for one job, standard library only. The two writes to compare stand side by side, at the top.

It tells what happens to it in lines of JSON on stdout. Where it says ``pause`` it waits for a line on stdin,
so that demo.py can freeze the process exactly there. A worker to start from is examples/worker.py.
"""

import argparse
import json
import sqlite3
import sys
import threading
import uuid
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

Job = dict[str, Any]

CHARGE = "UPDATE accounts SET balance = balance - :amount WHERE name = :account"
TAKE_FENCE = """
INSERT INTO job_fences (job_id, stored_version) VALUES (:job_id, :lease_version)
ON CONFLICT (job_id) DO NOTHING
"""


class LeaseLost(Exception):
    """A newer holder of this job was here; the number is its version."""


def charge_unfenced(account: sqlite3.Connection, job: Job) -> str:
    with account:
        account.execute(CHARGE, job["payload"])
        return f"charges {job['payload']['amount']}"


def charge_fenced(account: sqlite3.Connection, job: Job) -> str:
    with account:  # One transaction: the fence and the charge, or neither.
        facts = {"job_id": job["id"], "lease_version": job["lease_version"]}
        if account.execute(TAKE_FENCE, facts).rowcount == 0:  # This line makes the difference.
            return charged_before(account, job)
        account.execute(CHARGE, job["payload"])
        return f"charges {job['payload']['amount']}"


def charged_before(account: sqlite3.Connection, job: Job) -> str:
    """Tell a successor, which may go on, from a worker that is stale, which has to stop."""
    query = "SELECT stored_version FROM job_fences WHERE job_id = :id"
    (stored_version,) = account.execute(query, {"id": job["id"]}).fetchone()
    if stored_version > job["lease_version"]:
        raise LeaseLost(stored_version)
    return f"finds the charge of version {stored_version}, charges nothing"


class Worker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.address: str = options.address
        self.name: str = options.name
        self.queue: str = options.queue
        self.lease_seconds: float = options.lease_seconds
        self.account = sqlite3.connect(options.account_file, timeout=30)
        # What handlers share with other threads of their process. Deadlocked: one of those keeps it for ever.
        self.lock = threading.Lock()
        if options.deadlocked:
            self.lock.acquire()
        self.seq = 0
        self.stop = threading.Event()
        self.done = threading.Event()

    def run(self) -> None:
        """Lease one job, handle it with heartbeats beside it, complete it."""
        job = self.lease()
        tell("leased", lease_version=job["lease_version"], previous=job["previous"])
        threading.Thread(target=self.beat, args=(job,)).start()
        try:
            self.handle(job)
        except LeaseLost as error:
            tell("refused", stored_version=error.args[0])
            return
        finally:
            self.done.set()
        status, answer = self.call(f"/v1/jobs/{job['id']}/complete", {"lease_version": job["lease_version"]})
        tell("completed" if status == 200 else "lease_lost", status=status, answer=answer)

    def lease(self) -> Job:
        """Return one job of the queue; wait until there is one."""
        wish = {"worker_id": self.name, "queues": [self.queue], "lease_seconds": self.lease_seconds}
        while True:
            request_id = uuid.uuid4().hex
            _, answer = self.call("/v1/leases", wish | {"wait_seconds": 20, "request_id": request_id})
            for job in answer["jobs"]:
                return dict(job)

    def handle(self, job: Job) -> None:
        if job["kind"] == "report":
            self.seq += 1  # Progress. From here on there is none before the lock is there.
            pause("before the lock")
            with self.lock:
                self.seq += 1
            return
        if self.stop.is_set():  # Looking before the write makes the window smaller. It does not close it.
            return
        pause("before the write")
        write = charge_fenced if job["kind"] == "charge.fenced" else charge_unfenced
        tell("wrote", what=write(self.account, job))
        pause("after the write")

    def beat(self, job: Job) -> None:
        """Three heartbeats for each lease, whatever the handler does."""
        path = f"/v1/jobs/{job['id']}/heartbeat"
        while not self.done.wait(job["lease_seconds"] / 3):
            body = {"lease_version": job["lease_version"], "progress": {"seq": self.seq}}
            status, answer = self.call(path, body)
            tell("heartbeat", status=status, answer=answer)
            if status != 200 or answer["cancel_requested"]:
                self.stop.set()
                return

    def call(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Post; return the status with the answer, or with the refusal."""
        headers = {"Content-Type": "application/json"}
        request = Request(self.address + path, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with urlopen(request, timeout=30) as answer:  # noqa: S310 - the address is ours
                return answer.status, json.load(answer)
        except HTTPError as refusal:
            return refusal.code, json.load(refusal)


def tell(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event} | facts) + "\n")
    sys.stdout.flush()


def pause(place: str) -> None:
    tell("pause", place=place)
    sys.stdin.readline()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("name")
    parser.add_argument("queue")
    parser.add_argument("lease_seconds", type=float)
    parser.add_argument("account_file")
    parser.add_argument(
        "--deadlocked", action="store_true", help="have another thread hold the lock for ever"
    )
    Worker(parser.parse_args()).run()
