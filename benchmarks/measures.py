"""One function a measurement; each works on one running service and returns a number."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg

from benchmarks.load import Connection

PAYLOAD = {"text": "x" * 186}
BATCH = 1000
LEASE_SECONDS = 600


class Target:
    """A service's port, its process and its database, for the counters."""

    def __init__(self, port: int, pid: int, database_url: str) -> None:
        self.port = port
        self.pid = pid
        self.database_url = database_url

    def cpu_seconds(self) -> float:
        """Return what the process has had of the processors, the kernel's work for it included."""
        # The name of a program, in brackets, may hold blanks.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def number(self, query: str) -> float:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return float(row[0]) if row and row[0] is not None else 0.0


async def single_enqueue(target: Target, *, clients: int, jobs: int) -> float:
    """Return jobs a second, one POST a job."""
    body = json.dumps({"kind": "bench", "queue": "single", "payload": PAYLOAD}).encode()
    left = iter(range(jobs))

    async def client(connection: Connection) -> None:
        for _ in left:
            status, _ = await connection.call("/v1/jobs", body)
            if status != 201:
                raise RuntimeError(f"answered {status}")

    return jobs / await _timed(target, clients, client)


async def batch_enqueue(
    target: Target, *, queue: str, clients: int, batches: int, kind: str = "bench", payload: object = PAYLOAD
) -> float:
    """Return jobs a second, BATCH jobs a POST."""
    job = {"kind": kind, "queue": queue, "payload": payload}
    body = json.dumps({"jobs": [job] * BATCH}).encode()
    left = iter(range(batches))

    async def client(connection: Connection) -> None:
        for _ in left:
            status, _ = await connection.call("/v1/jobs/batch", body)
            if status != 201:
                raise RuntimeError(f"answered {status}")

    return batches * BATCH / await _timed(target, clients, client)


async def drain(
    target: Target, *, queue: str, clients: int, max_jobs: int, jobs: int, combined: bool = False
) -> float:
    """Return jobs a second, leased and completed ``max_jobs`` at a time; ``jobs`` must be enqueued.

    ``combined`` completes in the call that leases the next jobs.
    """
    return await (_drain_combined if combined else _drain_in_two)(
        target, queue=queue, clients=clients, max_jobs=max_jobs, jobs=jobs
    )


async def _drain_combined(target: Target, *, queue: str, clients: int, max_jobs: int, jobs: int) -> float:
    done = 0

    async def client(connection: Connection) -> None:
        nonlocal done
        wish = {"worker_id": "w", "queues": [queue], "max_jobs": max_jobs, "lease_seconds": LEASE_SECONDS}
        items: list[dict[str, object]] = []
        while items or done < jobs:
            answer = await connection.call_json("/v1/leases", wish | {"complete": items}, expect=200)
            if any(result["status"] != "ok" for result in answer["completed"]):
                raise RuntimeError("a lease was lost")
            done += len(items)
            items = [{"job_id": job["id"], "lease_version": job["lease_version"]} for job in answer["jobs"]]
            if not items:
                return

    seconds = await _timed(target, clients, client)
    return done / seconds


async def _drain_in_two(target: Target, *, queue: str, clients: int, max_jobs: int, jobs: int) -> float:
    done = 0

    async def client(connection: Connection) -> None:
        nonlocal done
        wish = json.dumps(
            {"worker_id": "w", "queues": [queue], "max_jobs": max_jobs, "lease_seconds": LEASE_SECONDS}
        ).encode()
        while done < jobs:
            _, answer = await connection.call("/v1/leases", wish)
            leased = json.loads(answer)["jobs"]
            if not leased:
                return
            if max_jobs == 1:
                body = json.dumps({"lease_version": leased[0]["lease_version"]}).encode()
                status, _ = await connection.call(f"/v1/jobs/{leased[0]['id']}/complete", body)
            else:
                items = [{"job_id": job["id"], "lease_version": job["lease_version"]} for job in leased]
                status, _ = await connection.call(
                    "/v1/leases/complete", json.dumps({"items": items}).encode()
                )
            if status != 200:
                raise RuntimeError(f"answered {status}")
            done += len(leased)

    seconds = await _timed(target, clients, client)
    return done / seconds


async def pick_up_latencies(target: Target, *, samples: int) -> list[float]:
    """Return milliseconds from the moment an enqueue is sent until a parked worker has the job."""
    producer, worker = await Connection.open(target.port), await Connection.open(target.port)
    job = json.dumps({"kind": "bench", "queue": "latency", "payload": {"i": 1}}).encode()
    wish = {"worker_id": "w", "queues": ["latency"], "wait_seconds": 20, "lease_seconds": LEASE_SECONDS}
    found = []
    for _ in range(samples):
        poll = asyncio.create_task(worker.call_json("/v1/leases", wish, expect=200))
        await asyncio.sleep(0.01)
        sent_at = time.perf_counter()
        await producer.call("/v1/jobs", job)
        leased = (await poll)["jobs"][0]
        found.append((time.perf_counter() - sent_at) * 1000)
        await producer.call_json(
            f"/v1/jobs/{leased['id']}/complete", {"lease_version": leased["lease_version"]}, expect=200
        )
    producer.close()
    worker.close()
    return sorted(found)


async def wal_bytes(target: Target, work: Callable[[], Awaitable[object]], *, jobs: int) -> float:
    """Return the write-ahead log bytes a job that ``work`` wrote, full page images included."""
    position = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
    before = target.number(position)
    await work()
    return (target.number(position) - before) / jobs


async def hot_ratio(target: Target, *, leases: int, beats: int) -> float:
    """Return the share of heartbeat updates that were heap-only, from n_tup_hot_upd."""
    connection = await Connection.open(target.port)
    await batch_enqueue(target, queue="hot", clients=1, batches=-(-leases // BATCH))
    wish = {"worker_id": "w", "queues": ["hot"], "max_jobs": leases, "lease_seconds": LEASE_SECONDS}
    leased = (await connection.call_json("/v1/leases", wish, expect=200))["jobs"]
    updates = "SELECT {} FROM pg_stat_user_tables WHERE relname = 'leases'"
    before = [target.number(updates.format(column)) for column in ("n_tup_hot_upd", "n_tup_upd")]
    for beat in range(beats):
        items = [
            {"job_id": job["id"], "lease_version": job["lease_version"], "progress": {"seq": beat}}
            for job in leased
        ]
        for start in range(0, len(items), 100):
            await connection.call_json(
                "/v1/leases/heartbeat", {"items": items[start : start + 100]}, expect=200
            )
    for job in leased:
        await connection.call(
            f"/v1/jobs/{job['id']}/release", json.dumps({"lease_version": job["lease_version"]}).encode()
        )
    connection.close()
    # Backends report their counters at most once a second, and when they are idle.
    await asyncio.sleep(1.5)
    hot, total = (
        target.number(updates.format(column)) - old
        for column, old in zip(("n_tup_hot_upd", "n_tup_upd"), before, strict=True)
    )
    return hot / total


async def _timed(target: Target, clients: int, client: Callable[[Connection], Awaitable[None]]) -> float:
    connections = [await Connection.open(target.port) for _ in range(clients)]
    started_at = time.perf_counter()
    await asyncio.gather(*map(client, connections))
    seconds = time.perf_counter() - started_at
    for connection in connections:
        connection.close()
    return seconds
