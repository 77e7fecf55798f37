"""The same drain with something in the way: an old snapshot, or a million rows that are not to run."""

from collections.abc import Iterator

import psycopg

from benchmarks.peers.databases import multiply_rows, old_snapshot, vacuum
from benchmarks.peers.measures import table_readings
from benchmarks.peers.results import Reading
from benchmarks.peers.stage import BATCH, Stage, Target
from benchmarks.peers.systems import System

CYCLES = 5
_DAY_SECONDS = 86_400
# A million jobs by a system's own calls take minutes, even with a thousand a call.
_LOAD_SECONDS = 1200


def churn(stage: Stage, system: System) -> Iterator[Reading]:
    """Fill and drain five times, free and under an old snapshot in turn; then look at the tables.

    A snapshot holds back the vacuum of its own database only, so the two run on one server.
    """
    n = min(stage.sizes.jobs, system.most_backlog_jobs)
    with (
        stage.fresh(system, "free") as free,
        stage.fresh(system, "pinned") as pinned,
        old_snapshot(pinned.database_url),
    ):
        pair = {"free": free, "pinned": pinned}
        for cycle in range(1, CYCLES + 1):
            for name in ("free", "pinned") if cycle % 2 else ("pinned", "free"):
                stage.fill(pair[name], n)
                drained = stage.drain(pair[name], n, ever=n * cycle)
                yield Reading(f"churn_{name}_cycle{cycle}", n / drained.handled_seconds, "jobs/s")
        for name, target in pair.items():
            yield from table_readings(target, n * CYCLES, prefix=f"churn_{name}_")


def finished(stage: Stage, system: System) -> Iterator[Reading]:
    """Drain while a million finished jobs are kept; nothing for a system that deletes them."""
    if not system.keeps_finished:
        return
    with stage.fresh(system) as target:
        loaded = BATCH if system.backlog else stage.sizes.rows
        stage.fill(target, loaded, seconds=_LOAD_SECONDS)
        stage.drain(target, loaded, seconds=_LOAD_SECONDS)
        _grow(stage, target, where=system.finished)
        yield from _drain_beside(stage, target, "finished_drain")


def scheduled(stage: Stage, system: System) -> Iterator[Reading]:
    """Drain while a million jobs are due tomorrow."""
    with stage.fresh(system) as target:
        loaded = BATCH if system.backlog else stage.sizes.rows
        stage.fill(target, loaded, delay_seconds=_DAY_SECONDS, seconds=_LOAD_SECONDS)
        _grow(stage, target, where="true")
        yield from _drain_beside(stage, target, "scheduled_drain")


def pending(stage: Stage, system: System) -> Iterator[Reading]:
    """Drain the first of a million jobs that are all due."""
    n = min(stage.sizes.jobs, system.most_backlog_jobs)
    with stage.fresh(system) as target:
        stage.fill(target, BATCH if system.backlog else stage.sizes.rows, seconds=_LOAD_SECONDS)
        _grow(stage, target, where="true")
        drained = stage.drain(target, n, until_empty=False)
        yield Reading("pending_drain", n / drained.handled_seconds, "jobs/s")


def _grow(stage: Stage, target: Target, *, where: str | None) -> None:
    """Bring the backlog to its full size, vacuumed and analyzed."""
    backlog = target.system.backlog
    if backlog is not None and where is not None:
        multiply_rows(target.database_url, backlog, where=where, rows=stage.sizes.rows)
        return
    with psycopg.connect(target.database_url, autocommit=True) as connection:
        vacuum(connection)


def _drain_beside(stage: Stage, target: Target, metric: str) -> Iterator[Reading]:
    n = min(stage.sizes.jobs, target.system.most_backlog_jobs)
    stage.databases.checkpoint()
    stage.fill(target, n)
    drained = stage.drain(target, n, until_empty=False)
    yield Reading(metric, n / drained.handled_seconds, "jobs/s")
