"""A database of its own for each measurement, and the operations on it: no HTTP, one process."""

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg

from app.domain.calls import Completion, Heartbeat
from app.domain.job import JobSpec, LeasedJob, Token
from app.domain.retention import Retention
from app.main import migrate
from app.operations import heartbeat, lease, settle, submit
from app.operations.context import Context
from app.operations.heads import Beginning, Heads
from app.operations.lease import Wish
from app.operations.settle import Completing
from app.operations.upkeep import make_partitions
from app.store.engine import Database
from benchmarks.meter import Meter, backend_of
from benchmarks.stocks import PAYLOAD, Stock

LEASE_SECONDS = 3600

_numbers = itertools.count()


class Silence:
    """Nobody waits."""

    def jobs_ready(self, counts: Mapping[str, int]) -> None: ...

    def job_scheduled(self, due_in_seconds: float) -> None: ...

    def jobs_finished(self, job_ids: Iterable[str]) -> None: ...


class NoHeads(Heads):
    """Every claim begins at the top."""

    def begin(self, names: Iterable[str], *, at_top: bool = False) -> Beginning:
        del at_top
        return super().begin(names, at_top=True)


@dataclass(frozen=True, slots=True)
class Ground:
    """The operations on one database; each call takes some jobs and tells how many they were."""

    url: str
    context: Context
    connection: psycopg.Connection
    meter: Meter

    async def enqueue(self, job_count: int, *, queue: str = "q0", priority: int = 0) -> int:
        spec = JobSpec(kind="growth", queue=queue, priority=priority, payload=PAYLOAD)
        return len(await submit.submit_batch(self.context, [spec] * job_count))

    async def lease(self, wishes: Sequence[Wish]) -> list[LeasedJob]:
        grants = await lease.lease_jobs(self.context, wishes)
        return [job for jobs in grants.jobs.values() for job in jobs]

    async def heartbeat(self, jobs: Sequence[LeasedJob]) -> int:
        beats = [Heartbeat(Token(job.id, job.lease_version), seq=1) for job in jobs]
        return len(await heartbeat.heartbeat_leases(self.context, beats))

    async def complete(self, jobs: Sequence[LeasedJob]) -> int:
        requests = [
            Completing(Completion(Token(job.id, job.lease_version), result=None, fingerprint=b"0" * 16))
            for job in jobs
        ]
        return len(await settle.complete_leases(self.context, requests, with_jobs=False))


def wish(*queues: str, max_jobs: int) -> Wish:
    return Wish(
        worker_id="worker", queues=queues, max_jobs=max_jobs, lease_seconds=LEASE_SECONDS, request=None
    )


@asynccontextmanager
async def ground(
    server_url: str, stock: Stock | None = None, *, heads: Heads | None = None
) -> AsyncIterator[Ground]:
    """Make a migrated database with a stock in it; it is dropped afterwards."""
    name = f"ground{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        url = server_url.replace("/postgres?", f"/{name}?")
        migrate(url)
        database = Database(url, pool_size=1)
        try:
            context = Context(database, Retention(), Silence(), heads or Heads())
            await make_partitions(context)
            with psycopg.connect(url, autocommit=True) as connection:
                if stock is not None:
                    stock.fill(connection)
                yield Ground(url, context, connection, Meter(await backend_of(database), connection))
        finally:
            await database.close()
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
