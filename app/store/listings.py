"""Pages of jobs, newest first; composed, since filters come in every mix.

A page walks the index of one table from the top: of ``jobs`` without a state, else of the table whose rows
are in that state. Where only ``jobs`` has the filter's column, or the order, the two are joined, and the
planner chooses which of them is walked (docs/decisions/0009).
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    FromClause,
    Select,
    SmallInteger,
    Text,
    Uuid,
    and_,
    case,
    column,
    exists,
    func,
    literal_column,
    or_,
    select,
    table,
)

from app.domain.calls import JobFilter
from app.domain.job import JobState
from app.domain.retention import Retention
from app.store.engine import Connection
from app.store.reads import ID_SLACK

_FILTERED = ("queue", "kind", "parent_job_id")
_READY_KEY = ("queue", "priority", "run_at", "job_id")
_UNFINISHED_TABLES = {JobState.READY: "ready", JobState.SCHEDULED: "scheduled", JobState.RUNNING: "leases"}


async def list_job_ids(
    conn: Connection, job_filter: JobFilter, *, retention: Retention, max_rows: int, before_id: str | None
) -> list[str]:
    """Return one page of ids, newest first; ``before_id`` is the last id of the page before, or None."""
    statement = _page(job_filter, retention=retention, max_rows=max_rows, before_id=before_id)
    return [row.job_id for row in await conn.execute(statement)]


def _page(
    job_filter: JobFilter, *, retention: Retention, max_rows: int, before_id: str | None
) -> Select[Any]:
    """Walk the table of the state asked for, and jobs too where only it has what the filter names."""
    if job_filter.state is None:
        jobs = _table("jobs", *_FILTERED)
        source, columns = select(jobs.c.job_id).where(_is_kept(jobs, retention)), jobs
    elif job_filter.state.is_terminal:
        source, columns = _finished_ids(job_filter.state, retention=retention, job_filter=job_filter)
    else:
        source, columns = _unfinished_ids(job_filter.state, job_filter)
    return _narrowed(source, columns, job_filter, before_id=before_id).limit(max_rows)


_Source = tuple[Select[Any], FromClause]


def _is_kept(jobs: FromClause, retention: Retention) -> ColumnElement[bool]:
    """Leave out what is past its retention; young jobs cannot be, so they are not looked up."""
    finished = _table("finished", "state")
    shortest = min(retention.finished_seconds, retention.dead_seconds)
    is_dead = finished.c.state == JobState.DEAD.value
    kept_seconds = case((is_dead, retention.dead_seconds), else_=retention.finished_seconds)
    is_over = select(finished.c.job_id).where(
        finished.c.job_id == jobs.c.job_id,
        finished.c.finished_at <= _ago(shortest),
        finished.c.finished_at <= _ago(kept_seconds),
    )
    return or_(jobs.c.created_at > _ago(shortest), ~exists(is_over))


def _unfinished_ids(state: JobState, job_filter: JobFilter) -> _Source:
    place = _table(_UNFINISHED_TABLES[state], "queue")
    is_found_there = {
        JobState.READY: False,
        JobState.SCHEDULED: job_filter.kind is None and job_filter.parent_id is None,
        JobState.RUNNING: not _names_a_job_column(job_filter),
    }
    if is_found_there[state]:
        return select(place.c.job_id), place
    jobs = _table("jobs", *_FILTERED)
    key = _READY_KEY if state is JobState.READY else ("job_id",)
    same = and_(*(jobs.c[name] == place.c[name] for name in key))
    return select(jobs.c.job_id).join_from(jobs, place, same), jobs


def _names_a_job_column(job_filter: JobFilter) -> bool:
    return any((job_filter.queue, job_filter.kind, job_filter.parent_id))


def _finished_ids(state: JobState, *, retention: Retention, job_filter: JobFilter) -> _Source:
    finished = _table("finished", *_FILTERED, "state")
    seconds = retention.dead_seconds if state is JobState.DEAD else retention.finished_seconds
    # The state is written into the text: the planner then knows which partitions are meant.
    source = select(finished.c.job_id).where(
        finished.c.state == literal_column(f"'{state.value}'"), finished.c.finished_at > _ago(seconds)
    )
    if job_filter.created_after is not None:
        source = source.where(finished.c.finished_at >= job_filter.created_after - ID_SLACK)
    if state is not JobState.SUCCEEDED or not _names_a_job_column(job_filter):
        return source, finished
    jobs = _table("jobs", *_FILTERED)
    return source.join(jobs, jobs.c.job_id == finished.c.job_id), jobs


def _ago(seconds: object) -> ColumnElement[datetime]:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _narrowed(
    source: Select[Any], columns: FromClause, job_filter: JobFilter, *, before_id: str | None
) -> Select[Any]:
    equal = {"queue": job_filter.queue, "kind": job_filter.kind, "parent_job_id": job_filter.parent_id}
    for name, value in equal.items():
        if value is not None:
            source = source.where(columns.c[name] == value)
    job_id = columns.c.job_id
    if before_id is not None:
        source = source.where(job_id < before_id)
    if job_filter.created_after is not None:
        source = source.where(job_id >= func.fencepost.first_job_id_at(job_filter.created_after))
    if job_filter.created_before is not None:
        source = source.where(job_id < func.fencepost.first_job_id_at(job_filter.created_before))
    return source.order_by(job_id.desc())


def _table(name: str, *columns: str) -> FromClause:
    types = {"parent_job_id": Uuid(as_uuid=False)}
    return table(
        name,
        column("job_id", Uuid(as_uuid=False)),
        *(column(each, DateTime(timezone=True)) for each in ("created_at", "run_at", "finished_at")),
        column("priority", SmallInteger()),
        *(column(each, types.get(each, Text())) for each in columns),
        schema="fencepost",
    )
