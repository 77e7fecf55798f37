"""Insert many jobs by COPY: one log record a page instead of one a row, and no row comes back.

What submissions.INSERT_JOBS does for a few, for hundreds: the same rows, the same ids. It takes more round
trips, so it pays from COPY_FROM jobs on.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import compress
from operator import attrgetter

from app.domain.job import JobSpec
from app.store.arrays import escaped
from app.store.columns import backoff_text, metadata_text
from app.store.engine import Connection
from app.store.reads import read_now
from app.store.submissions import InsertedJob

COPY_FROM = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = "\\N"
# The backslash first: the others bring one along.
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

_ALWAYS = ("queue", "kind", "priority", "max_attempts")
# Of these a column that no job of the call sets is left out.
_SELDOM = (
    "payload",
    "max_runtime_seconds",
    "progress_timeout_seconds",
    "traceparent",
    "tracestate",
    "idempotency_key",
)


async def copy_jobs(
    conn: Connection, specs: Sequence[tuple[int, JobSpec, str | None]]
) -> dict[int, InsertedJob]:
    """Insert (position, spec, id of a claimed key or None); return what became of each.

    Needs a transaction: the rows of jobs come before those of ready and scheduled.
    """
    now = await read_now(conn)
    fresh_ids = new_job_ids(now, [position for position, _, _ in specs])
    inserted = {
        position: _inserted(now, position, spec, given_id or fresh_id)
        for (position, spec, given_id), fresh_id in zip(specs, fresh_ids, strict=True)
    }
    rows = list(inserted.values())
    columns = {"job_id": [row.job_id for row in rows]} | _times(rows)
    columns |= _columns([spec for _, spec, _ in specs])
    await _copy(conn, "jobs", columns)
    waiting = {name: columns[name] for name in ("job_id", "run_at", "priority", "queue")}
    waiting |= dict.fromkeys(("lease_version", "attempt"), ["0"] * len(rows))
    for table, is_there in (("ready", True), ("scheduled", False)):
        chosen = [row.is_due is is_there for row in rows]
        if any(chosen):
            await _copy(conn, table, {name: list(compress(waiting[name], chosen)) for name in waiting})
    return inserted


def new_job_ids(now: datetime, positions: Sequence[int]) -> list[str]:
    """Return an id for each position, as the SQL function new_job_id makes them.

    UUIDv7 of ``now`` plus the position in microseconds: milliseconds, four steps of rand_a a microsecond,
    62 random bits.
    """
    start = (now - _EPOCH) // _MICROSECOND
    noise = os.urandom(8 * len(positions)).hex()
    ids = []
    for number, position in enumerate(positions):
        milliseconds, rest = divmod(start + position, 1000)
        time = f"{milliseconds:012x}"
        low = noise[16 * number : 16 * number + 16]
        variant = "89ab"[int(low[0], 16) & 3]
        ids.append(f"{time[:8]}-{time[8:]}-7{rest * 4096 // 1000:03x}-{variant}{low[1:4]}-{low[4:]}")
    return ids


def _inserted(now: datetime, position: int, spec: JobSpec, job_id: str) -> InsertedJob:
    created_at = now + timedelta(microseconds=position)
    if spec.run_at is not None:
        run_at, is_due = spec.run_at, spec.run_at <= now
    elif spec.delay_seconds:
        run_at, is_due = created_at + timedelta(seconds=spec.delay_seconds), False
    else:
        run_at, is_due = created_at, True
    return InsertedJob(
        job_id=job_id,
        created_at=created_at,
        run_at=run_at,
        is_due=is_due,
        due_in_seconds=(run_at - now).total_seconds(),
    )


def _times(rows: Sequence[InsertedJob]) -> dict[str, list[str]]:
    created = [row.created_at.isoformat() for row in rows]
    due = [
        text if row.run_at is row.created_at else row.run_at.isoformat()
        for text, row in zip(created, rows, strict=True)
    ]
    return {"created_at": created, "run_at": due}


def _columns(specs: Sequence[JobSpec]) -> dict[str, list[str]]:
    """Return what was asked for, column by column: a loop for each column runs in C, one for each job not."""
    columns = {name: _texts(list(map(attrgetter(name), specs))) for name in _ALWAYS}
    columns |= {
        name: _texts(values) for name in _SELDOM if _is_set(values := list(map(attrgetter(name), specs)))
    }
    if _is_set(parents := [spec.parent for spec in specs]):
        columns["parent_job_id"] = _texts([parent and parent.job_id for parent in parents])
        columns["parent_lease_version"] = _texts([parent and parent.lease_version for parent in parents])
    if any(metadatas := [spec.metadata for spec in specs]):
        columns["metadata"] = _texts([metadata_text(metadata) for metadata in metadatas])
    if _is_set(backoffs := [backoff_text(spec.backoff) for spec in specs]):
        columns["backoff"] = _texts(backoffs)
    if "idempotency_key" in columns:
        columns["caller"] = _texts([spec.caller if spec.idempotency_key else None for spec in specs])
    return columns


def _is_set(values: Sequence[object]) -> bool:
    return values.count(None) != len(values)


def _texts(values: Sequence[object]) -> list[str]:
    """Return values as COPY reads them. Raises ValueError for a text with U+0000."""
    texts = escaped(["" if value is None else str(value) for value in values], _ESCAPES)
    if None not in values:
        return texts
    return [_NULL if value is None else text for value, text in zip(values, texts, strict=True)]


async def _copy(conn: Connection, table: str, columns: dict[str, list[str]]) -> None:
    lines = "\n".join(map("\t".join, zip(*columns.values(), strict=True)))
    await conn.copy(f"COPY fencepost.{table} ({', '.join(columns)}) FROM STDIN", f"{lines}\n")
