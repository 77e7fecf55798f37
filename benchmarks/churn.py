"""A steady load with everything in it that comes and goes.

Producers keep a fixed rate; workers take what is there, and treat it as chance says: done, failed, released,
given up without a word. Connections are opened anew all the time, and some polls are cut while they wait.

    Log        how long each call took, and what no call may be answered
    producer   submits, single and in batches, with keys and delays; reads, lists and cancels
    worker     leases with a wait; heartbeats with progress; ends what it leased
    idler      parks polls on queues where nothing comes, and cuts some
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load import Connection

Json = dict[str, Any]

QUEUES = ("first", "second", "third")
BATCH = 5
LEASE_SECONDS = 20
# A lease that is given up runs out soon, so that its job comes back in the same window.
SHORT_LEASE_SECONDS = 1
CALLS_A_CONNECTION = 200
_PAYLOAD = {"text": "x" * 186}


@dataclass
class Log:
    """``calls`` are (when it was answered, milliseconds) by name; ``faults`` counts what must not be."""

    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    submitted: list[float] = field(default_factory=list)
    conflicts: int = 0

    def note(self, name: str, began_at: float) -> None:
        now = time.monotonic()
        self.calls.setdefault(name, []).append((now, (now - began_at) * 1000))


class Client:
    """One caller; its connection is replaced after some calls, and after every error."""

    def __init__(self, port: int, log: Log) -> None:
        self._port = port
        self._log = log
        self._connection: Connection | None = None
        self._calls_left = 0

    async def call(
        self,
        name: str,
        path: str,
        body: Json | None = None,
        *,
        allowed: tuple[int, ...] = (200,),
        key: str | None = None,
    ) -> Json:
        """Make one call; an answer of another status than those allowed is a fault, and empty."""
        began_at = time.monotonic()
        try:
            connection = await self._ready_connection()
            method = "GET" if body is None else "POST"
            content = b"" if body is None else json.dumps(body).encode()
            status, answer = await connection.call(path, content, method=method, key=key)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            self._log.faults[f"{name}: {type(error).__name__}"] += 1
            return {}
        self._log.note(name, began_at)
        if status not in allowed:
            self._log.faults[f"{name}: {status} {answer[:200].decode(errors='replace')}"] += 1
            return {}
        if status == 409:
            self._log.conflicts += 1
        found: Json = json.loads(answer) if answer else {}
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _ready_connection(self) -> Connection:
        if self._connection is None or self._calls_left <= 0:
            self.close()
            self._connection = await Connection.open(self._port)
            self._calls_left = random.randint(1, CALLS_A_CONNECTION)
        self._calls_left -= 1
        return self._connection


async def produce(client: Client, log: Log, *, name: str, calls_a_second: float, until: float) -> None:
    """Submit at a fixed rate; what the service does not keep up with is missing from ``log.submitted``."""
    next_at = time.monotonic() + random.random() / calls_a_second
    number = 0
    while next_at < until:
        await asyncio.sleep(next_at - time.monotonic())
        next_at = max(next_at + 1 / calls_a_second, time.monotonic())
        number += 1
        roll = random.random()
        if roll < 0.2:
            await _submit_batch(client, log, key=f"{name}-{number}")
            continue
        key = f"{name}-{number}" if roll < 0.7 else None
        job = _job()
        created = await client.call("submit", "/v1/jobs", job, allowed=(201,), key=key)
        if not created:
            continue
        log.submitted.append(time.monotonic())
        if key is not None and random.random() < 0.05:
            await client.call("submit again", "/v1/jobs", job, key=key)
        await _look_or_cancel(client, created)


async def _submit_batch(client: Client, log: Log, *, key: str) -> None:
    jobs = [_job() | {"idempotency_key": f"{key}-{position}"} for position in range(BATCH)]
    created = await client.call("submit batch", "/v1/jobs/batch", {"jobs": jobs}, allowed=(201,))
    log.submitted += [time.monotonic()] * len(created.get("jobs", ()))


async def _look_or_cancel(client: Client, job: Json) -> None:
    roll = random.random()
    if roll < 0.03:
        body = {"force": roll < 0.015}
        # The worker may have been faster.
        await client.call("cancel", f"/v1/jobs/{job['id']}/cancel", body, allowed=(200, 202, 409))
    elif roll < 0.15:
        await client.call("read", f"/v1/jobs/{job['id']}")
    elif roll < 0.2:
        await client.call("read attempts", f"/v1/jobs/{job['id']}/attempts")
    elif roll < 0.25:
        await client.call("list", f"/v1/jobs?limit=50&queue={job['queue']}")


def _job() -> Json:
    job: Json = {
        "kind": "soak",
        "queue": random.choice(QUEUES),
        "payload": _PAYLOAD,
        "priority": random.randint(0, 3),
        "max_attempts": 1000,
        "backoff": {"type": "fixed", "base_seconds": 0.5},
    }
    if random.random() < 0.2:
        job["delay_seconds"] = round(random.uniform(0.1, 3.0), 3)
    return job


async def work(client: Client, *, name: str, is_over: asyncio.Event) -> None:
    """Lease and end jobs until told to stop."""
    number = 0
    while not is_over.is_set():
        number += 1
        is_given_up = random.random() < 0.05
        wish: Json = {
            "worker_id": name,
            "queues": random.sample(QUEUES, random.randint(1, len(QUEUES))),
            "max_jobs": random.choice((1, 2, 10)),
            "wait_seconds": 1,
            "lease_seconds": SHORT_LEASE_SECONDS if is_given_up else LEASE_SECONDS,
        }
        if number % 2:
            wish["request_id"] = str(number)
        # The wait is in the time: that says how the poll found its queues, not how fast the call is.
        leased = (await client.call("lease (wait included)", "/v1/leases", wish)).get("jobs", [])
        if leased and not is_given_up:
            await _end(client, leased)


async def _end(client: Client, leased: list[Json]) -> None:
    for seq in range(random.randint(0, 2)):
        items = [_item(job) | {"progress": {"seq": seq, "percent": 40 * seq}} for job in leased]
        await client.call("heartbeat batch", "/v1/leases/heartbeat", {"items": items})
    if len(leased) > 1 and random.random() < 0.5:
        items = [_item(job) | {"result": {"ok": True}} for job in leased]
        await client.call("complete batch", "/v1/leases/complete", {"items": items})
        return
    for job in leased:
        await _end_one(client, job)


async def _end_one(client: Client, job: Json) -> None:
    # A forced cancel ends a lease under its holder.
    allowed = (200, 409)
    path, body = f"/v1/jobs/{job['id']}", {"lease_version": job["lease_version"]}
    roll = random.random()
    if roll < 0.08:
        report = body | {"error": {"type": "Chance", "message": "it was its turn"}}
        await client.call("fail", f"{path}/fail", report, allowed=allowed)
    elif roll < 0.14:
        await client.call("release", f"{path}/release", body, allowed=allowed)
    else:
        if roll < 0.6:
            beat = body | {"progress": {"seq": 5}, "checkpoint": {"at": 5}}
            await client.call("heartbeat", f"{path}/heartbeat", beat, allowed=allowed)
        await client.call("complete", f"{path}/complete", body | {"result": {"ok": True}}, allowed=allowed)


def _item(job: Json) -> Json:
    return {"job_id": job["id"], "lease_version": job["lease_version"]}


async def idle(port: int, log: Log, *, name: str, until: float) -> None:
    """Park poll after poll where nothing comes, each on a connection of its own; cut half of them."""
    body = json.dumps({"worker_id": name, "queues": [f"idle-{name}"], "wait_seconds": 5}).encode()
    while time.monotonic() < until:
        connection = await Connection.open(port)
        patience_seconds = random.choice((10.0, random.uniform(0.1, 3.0)))
        try:
            status, _ = await asyncio.wait_for(connection.call("/v1/leases", body), patience_seconds)
            log.faults[f"parked poll: {status}"] += status != 200
        except TimeoutError:
            log.faults["parked poll: no answer"] += patience_seconds == 10.0
        except (OSError, asyncio.IncompleteReadError) as error:
            log.faults[f"parked poll: {type(error).__name__}"] += 1
        finally:
            connection.close()
