"""One generator a measurement, each on empty tables; it yields its readings as it has them."""

from collections.abc import Iterator
from dataclasses import astuple

from benchmarks.peers.databases import TableCounts, count_tables
from benchmarks.peers.results import Reading, percentile
from benchmarks.peers.stage import Stage, Target
from benchmarks.peers.systems import System

PICKUP_JOBS = 200
PICKUP_PER_SECOND = 50
PICKUP_WARM_UP = 10
PACES = (200, 1000)
CLIENTS = (1, 16, 64)


def enqueue(stage: Stage, system: System) -> Iterator[Reading]:
    """Jobs one a call, from one and from many clients in one process; WAL of the middle one."""
    with stage.fresh(system) as target:
        for clients in CLIENTS:
            n = stage.sizes.enqueued(clients)
            stage.databases.checkpoint()
            before = stage.databases.wal_position()
            yield Reading(
                f"enqueue_c{clients}", stage.call(target, "enqueue", n=n, clients=clients), "jobs/s"
            )
            if clients == 16 and target.database is not None:
                # Each connection's first job warms up, and counts.
                wal = (stage.databases.wal_position() - before) / (n + clients)
                yield Reading("enqueue_wal", wal, "bytes/job")


def drain(stage: Stage, system: System) -> Iterator[Reading]:
    """Fill by the bulk call, then let one worker process empty the queue; with all that PostgreSQL counts."""
    n = min(stage.sizes.jobs, system.most_jobs)
    databases = stage.databases
    with stage.fresh(system) as target:
        databases.checkpoint()
        wal = [databases.wal_position()]
        filled = stage.fill(target, n)
        if filled is not None and not system.drain_only:
            yield Reading("bulk", filled, "jobs/s")
        wal.append(databases.wal_position())
        commits = databases.commits(target.database) if target.database else 0
        drained = stage.drain(target, n)
        wal.append(databases.wal_position())
        yield Reading("drain", n / drained.seconds, "jobs/s")
        yield Reading("drain_handled", n / drained.handled_seconds, "jobs/s")
        yield Reading("drain_worker_cpu", drained.worker_cpu_seconds / n * 1e6, "us/job")
        yield Reading("drain_service_cpu", drained.service_cpu_seconds / n * 1e6, "us/job")
        if target.database is None:
            return
        yield Reading("bulk_wal", (wal[1] - wal[0]) / n, "bytes/job")
        yield Reading("drain_wal", (wal[2] - wal[1]) / n, "bytes/job")
        yield Reading("job_wal", (wal[2] - wal[0]) / n, "bytes/job")
        yield from table_readings(target, n, prefix="")
        yield Reading("drain_commits", (databases.commits(target.database) - commits) / n, "commits/job")


def two_workers(stage: Stage, system: System) -> Iterator[Reading]:
    """Drain the same with two worker processes."""
    n = min(stage.sizes.jobs, system.most_jobs)
    with stage.fresh(system) as target:
        stage.fill(target, n)
        yield Reading("drain_two_workers", n / stage.drain(target, n, workers=2).seconds, "jobs/s")


def pickup(stage: Stage, system: System) -> Iterator[Reading]:
    """Milliseconds from the enqueue call to the start of the handler; an idle worker, one job each 20 ms."""
    n = PICKUP_JOBS + PICKUP_WARM_UP
    with stage.fresh(system) as target:
        found, _ = stage.latencies(
            target, conf=target.pickup_conf, n=n, per_second=PICKUP_PER_SECOND, clients=4
        )
    milliseconds = found[PICKUP_WARM_UP:]
    yield from _percentiles(milliseconds, "pickup")
    yield Reading("pickup_max", max(milliseconds), "ms")


def paced(stage: Stage, system: System) -> Iterator[Reading]:
    """The same with more jobs a second than some can take; the first half second warms up."""
    for per_second in PACES:
        n = per_second * stage.sizes.paced_seconds
        with stage.fresh(system) as target:
            found, kept = stage.latencies(
                target, conf=target.paced_conf, n=n, per_second=per_second, clients=16
            )
        yield from _percentiles(found[per_second // 2 :], f"paced_{per_second}")
        yield Reading(f"paced_{per_second}_offered", kept, "jobs/s")


def table_readings(target: Target, n: int, *, prefix: str) -> Iterator[Reading]:
    """What n jobs have done to the tables of the system's schema, a job."""
    if target.service is not None:
        # Its sessions hand their counters in when they end, or ten seconds after their last statement.
        target.service.stop()
    found: TableCounts = count_tables(target.database_url, target.system.schema)
    names = ("inserts", "updates", "hot_updates", "deletes", "dead_tuples")
    for name, value in zip(names, astuple(found), strict=False):
        yield Reading(f"{prefix}{name}", value / n, "tuples/job")
    if found.updated:
        yield Reading(f"{prefix}hot_share", found.hot_updated / found.updated, "ratio")
    yield Reading(f"{prefix}table_bytes", found.table_bytes / n, "bytes/job")
    yield Reading(f"{prefix}index_bytes", found.index_bytes / n, "bytes/job")
    yield Reading(f"{prefix}autovacuums", found.autovacuums, "count")


def _percentiles(milliseconds: list[float], name: str) -> Iterator[Reading]:
    for percent in (50, 95, 99):
        yield Reading(f"{name}_p{percent}", percentile(milliseconds, percent), "ms")
