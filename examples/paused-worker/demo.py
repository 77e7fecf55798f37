"""Two workers charge an account, and the first one freezes. Two build a report, and the first one is stuck.

Starts a service of its own and real processes, tells what happens, checks it, and ends with a table. Exit
code 0: all happened as told. 1: something did not.
"""

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from stage import Account, NotAsTold, Service, Stage, WorkerProcess

LEASE_SECONDS = 3
# What everybody waits for is the first worker's lease; the second one has nothing to gain from a short one.
LONG_LEASE_SECONDS = 30
PROGRESS_TIMEOUT_SECONDS = 3
LEASES_TO_WATCH = 3
AMOUNT = 100

Event = dict[str, Any]


class Play:
    """The scenes. Each returns its outcome in a few words, and raises NotAsTold on the way there."""

    def __init__(self, stage: Stage, service: Service) -> None:
        self._stage = stage
        self._service = service
        self._began = time.monotonic()

    def charge(self, *, kind: str, freeze_at: str) -> str:
        """A charge whose first worker freezes, and wakes up when the second one is done."""
        account = self._stage.new_account(f"{kind}-{freeze_at.partition(' ')[0]}")
        payload = {"account": "savings", "amount": AMOUNT}
        job_id = self._submit({"kind": kind, "payload": payload}, account)

        first = self._start("first", account, lease_seconds=LEASE_SECONDS)
        self._follow(first, until=freeze_at)
        first.freeze()
        self._say("first", f"is frozen right {freeze_at}, with SIGSTOP")
        # What it waits for is there already: when it wakes up, it goes on at once.
        first.nod()

        second = self._start("second", account, lease_seconds=LONG_LEASE_SECONDS)
        _expect(self._follow(second), event="completed")

        self._say("first", "is woken with SIGCONT, and goes on where it was")
        first.wake()
        end = self._follow(first)
        if kind == "charge.fenced" and freeze_at == "before the write":
            _expect(end, event="refused", stored_version=2)
        else:
            # The job was safe all the time; what the worker wrote elsewhere is there.
            _expect(end, event="lease_lost", reason="expired")

        balance = account.balance()
        charged = {1: "once", 2: "twice"}.get((account.OPENING_BALANCE - balance) // AMOUNT, "?")
        self._say("account", f"has a balance of {balance}: charged {charged}")
        return f"charged {charged}, job {self._job(job_id)['state']}"

    def stuck(self, *, progress_timeout_seconds: int | None) -> str:
        """A report whose first worker is stuck in a lock, while the heartbeats beside its handler go on."""
        account = self._stage.new_account(f"report-{progress_timeout_seconds}")
        job_id = self._submit(
            {
                "kind": "report",
                "backoff": {"base_seconds": 0},
                "progress_timeout_seconds": progress_timeout_seconds,
            },
            account,
        )
        first = self._start("first", account, "--deadlocked", lease_seconds=LEASE_SECONDS)
        self._follow(first, until="before the lock")
        first.nod()
        self._say("first", "waits for a lock that nobody gives back; its heartbeats go on")
        second = self._start("second", account, lease_seconds=LONG_LEASE_SECONDS)
        if progress_timeout_seconds is None:
            self._watch_heartbeats(first, job_id)
        else:
            _expect(self._follow(second), event="completed")
            self._await_refused_heartbeat(first)
        for worker in (first, second):
            worker.end()
        job = self._job(job_id)
        return f"{job['state']}, lease_version {job['lease_version']}"

    def _watch_heartbeats(self, first: WorkerProcess, job_id: str) -> None:
        """Let some lease lengths go by, which are three heartbeats each."""
        count = 3 * LEASES_TO_WATCH
        for _ in range(count):
            _expect(first.next_event(), event="heartbeat", status=200)
        self._say(
            "first", f"has sent {count} heartbeats in {LEASES_TO_WATCH} lease lengths, and each was accepted"
        )
        if self._service.get("/v1/leases?worker_id=second")["leases"]:
            raise NotAsTold("the second worker holds a lease")
        self._say("second", "has waited beside it, and got nothing")
        job = self._job(job_id)
        where = f"{job['state']} under lease_version {job['lease_version']}"
        self._say("service", f"the job is {where}, and will be while heartbeats come")

    def _await_refused_heartbeat(self, first: WorkerProcess) -> None:
        while (event := first.next_event())["status"] == 200:
            pass
        _expect(event, event="heartbeat", reason="stalled")
        self._tell_refusal(first, "its heartbeat", event)
        self._say("first", "is still stuck: only the end of its process helps, with SIGKILL")

    def _follow(self, worker: WorkerProcess, *, until: str = "") -> Event:
        """Tell what a worker does, up to a pause or to its end; return the last event."""
        while True:
            event = worker.next_event()
            match event["event"]:
                case "pause" if event["place"] == until:
                    return event
                case "pause":
                    worker.nod()
                case "leased":
                    self._tell_lease(worker, event)
                case "wrote":
                    self._say(worker.name, event["what"])
                case "refused":
                    newer = event["stored_version"]
                    self._say(
                        "account",
                        f"refuses the write of the {worker.name}: lease_version {newer} has charged",
                    )
                    return event
                case "lease_lost":
                    self._tell_refusal(worker, "complete", event)
                    return event
                case "completed":
                    self._say(worker.name, f"complete is answered 200, the job is {event['answer']['state']}")
                    return event

    def _tell_lease(self, worker: WorkerProcess, event: Event) -> None:
        if event["previous"] is not None:
            self._say("service", f"has ended the attempt of the first worker: {event['previous']['outcome']}")
        self._say(worker.name, f"leases the job, lease_version {event['lease_version']}")

    def _tell_refusal(self, worker: WorkerProcess, call: str, event: Event) -> None:
        answer = event["answer"]
        versions = f"version {answer['presented_version']}, now {answer['current_version']}"
        self._say(
            worker.name,
            f"{call} is answered {event['status']} {answer['code']}, {answer['reason']} ({versions})",
        )

    def _start(self, name: str, account: Account, *options: str, lease_seconds: int) -> WorkerProcess:
        return self._stage.start_worker(name, account, *options, lease_seconds=lease_seconds)

    def _submit(self, body: dict[str, Any], account: Account) -> str:
        """Create the job in the queue of this scene."""
        given = {name: value for name, value in body.items() if value is not None}
        return self._service.submit(given | {"queue": account.name})

    def _job(self, job_id: str) -> dict[str, Any]:
        return dict(self._service.get(f"/v1/jobs/{job_id}"))

    def _say(self, who: str, what: str) -> None:
        print(f"  {time.monotonic() - self._began:5.1f} s  {who:<7}  {what}", flush=True)


# A title, the scene, and what the demonstration says will happen.
SCENES: list[tuple[str, Callable[[Play], str], str]] = [
    (
        "1. A charge without a fence; the worker freezes before its write",
        partial(Play.charge, kind="charge.unfenced", freeze_at="before the write"),
        "charged twice, job succeeded",
    ),
    (
        "2. A charge with a fence; the worker freezes before its write",
        partial(Play.charge, kind="charge.fenced", freeze_at="before the write"),
        "charged once, job succeeded",
    ),
    (
        "3. A charge with a fence; the worker freezes after its write",
        partial(Play.charge, kind="charge.fenced", freeze_at="after the write"),
        "charged once, job succeeded",
    ),
    (
        "4. A stuck handler, without progress_timeout_seconds",
        partial(Play.stuck, progress_timeout_seconds=None),
        "running, lease_version 1",
    ),
    (
        f"5. A stuck handler, with progress_timeout_seconds = {PROGRESS_TIMEOUT_SECONDS}",
        partial(Play.stuck, progress_timeout_seconds=PROGRESS_TIMEOUT_SECONDS),
        "succeeded, lease_version 2",
    ),
]


def perform() -> bool:
    """Play all scenes and print the table; return whether each ended as told."""
    print("Starting Fencepost with its bundled PostgreSQL.", flush=True)
    with Stage() as stage:
        play = Play(stage, stage.start_service())
        outcomes = []
        for title, scene, _ in SCENES:
            print(f"\n{title}", flush=True)
            outcomes.append(scene(play))
    print(f"\n{'':<66}{'what happened':<30}as told")
    for (title, _, told), outcome in zip(SCENES, outcomes, strict=True):
        print(f"{title:<66}{outcome:<30}{'yes' if outcome == told else f'no: {told}'}")
    return all(outcome == told for (_, _, told), outcome in zip(SCENES, outcomes, strict=True))


def main() -> int:
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        return 0 if perform() else 1
    except NotAsTold as error:
        print(f"not as told: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _expect(told: Event, /, **facts: object) -> None:
    """Raise NotAsTold unless a worker told these facts; the answer of the service is looked into as well."""
    known = told.get("answer", {}) | told
    if facts.items() - {(name, known.get(name)) for name in facts}:
        raise NotAsTold(f"expected {facts}, and a worker told {told}")


def _end_in_order(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
