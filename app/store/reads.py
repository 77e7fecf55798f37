"""Plain reads: jobs as they are now, pages of them, attempts, and what a worker holds.

read_jobs     whole jobs by id, one snapshot, so each is found in exactly one state
list_job_ids  one page, newest first; composed, since filters come in every mix
read_attempts a job's grants in the order of their versions
read_leases   what a worker holds
read_records  what is known of presented versions: the ground of a refusal or a replay
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CompoundSelect,
    DateTime,
    FromClause,
    Row,
    Select,
    Text,
    Uuid,
    column,
    func,
    literal_column,
    select,
    table,
    union_all,
)

from app.domain.calls import JobFilter
from app.domain.job import Attempt, HeldLease, Job, JobState, Lease, Outcome, Progress, Token
from app.domain.machine import Record
from app.domain.retention import Retention
from app.store.columns import backoff_of, parent_of
from app.store.engine import Connection, fetch, sql

# The jobs are looked up one by one: LIMIT keeps the planner from walking them instead.
# A job finished at its creation or later, so the oldest id bounds the partitions that can hold any.
READ_JOBS = sql("""
SELECT j.job_id, j.queue, j.kind, 'ready' AS state, r.priority,
       CASE WHEN :with_payload THEN j.payload END AS payload, j.metadata, r.run_at, j.created_at,
       CAST(NULL AS timestamptz) AS finished_at, r.attempt, j.max_attempts, j.backoff,
       j.max_runtime_seconds, j.progress_timeout_seconds, r.lease_version, CAST(NULL AS json) AS result,
       r.error, r.checkpoint, j.parent_job_id, j.parent_lease_version, j.idempotency_key,
       CAST(NULL AS text) AS worker_id, CAST(NULL AS timestamptz) AS granted_at,
       CAST(NULL AS timestamptz) AS expires_at, CAST(NULL AS timestamptz) AS deadline_at,
       CAST(NULL AS bigint) AS progress_seq, CAST(NULL AS double precision) AS progress_percent,
       CAST(NULL AS text) AS progress_message, false AS cancel_requested
FROM fencepost.ready r
CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = r.job_id LIMIT 1) j
WHERE r.job_id = ANY (CAST(:job_ids AS uuid[]))
UNION ALL
SELECT j.job_id, j.queue, j.kind, 'scheduled', s.priority, CASE WHEN :with_payload THEN j.payload END,
       j.metadata, s.run_at, j.created_at, NULL, s.attempt, j.max_attempts, j.backoff,
       j.max_runtime_seconds, j.progress_timeout_seconds, s.lease_version, NULL, s.error, s.checkpoint,
       j.parent_job_id, j.parent_lease_version, j.idempotency_key, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, false
FROM fencepost.scheduled s
CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = s.job_id LIMIT 1) j
WHERE s.job_id = ANY (CAST(:job_ids AS uuid[]))
UNION ALL
SELECT j.job_id, j.queue, j.kind, 'running', l.priority, CASE WHEN :with_payload THEN j.payload END,
       j.metadata, l.run_at, j.created_at, NULL, l.attempt, j.max_attempts, j.backoff,
       j.max_runtime_seconds, j.progress_timeout_seconds, l.lease_version, NULL, l.error, l.checkpoint,
       j.parent_job_id, j.parent_lease_version, j.idempotency_key, l.worker_id, l.granted_at,
       l.expires_at, l.deadline_at, l.progress_seq, l.progress_percent, l.progress_message,
       l.cancel_requested
FROM fencepost.leases l
CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = l.job_id LIMIT 1) j
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
UNION ALL
SELECT f.job_id, f.queue, f.kind, f.state, f.priority, CASE WHEN :with_payload THEN f.payload END,
       f.metadata, f.run_at, f.created_at, f.finished_at, f.attempt, f.max_attempts, f.backoff,
       f.max_runtime_seconds, f.progress_timeout_seconds, f.lease_version,
       CASE WHEN :with_result THEN f.result END, f.error, f.checkpoint, f.parent_job_id,
       f.parent_lease_version, f.idempotency_key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false
FROM fencepost.finished f
WHERE f.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND f.finished_at >= CAST(:oldest AS timestamptz)
  AND f.finished_at > now() - make_interval(secs => CASE f.state
      WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
      ELSE CAST(:finished_seconds AS double precision) END)
""")

# The attempt that succeeded is told by the finished job, the running one by its lease.
READ_ATTEMPTS = sql("""
SELECT attempt, lease_version, worker_id, granted_at, ended_at, outcome, error
FROM (
    SELECT attempt, lease_version, worker_id, granted_at, ended_at, outcome, error
    FROM fencepost.attempts
    WHERE job_id = :job_id AND lease_version > :after_version
    UNION ALL
    SELECT attempt, lease_version, worker_id, granted_at, CAST(NULL AS timestamptz), 'running',
           CAST(NULL AS json)
    FROM fencepost.leases
    WHERE job_id = :job_id AND lease_version > :after_version
    UNION ALL
    SELECT attempt, lease_version, worker_id, granted_at, finished_at, 'succeeded', CAST(NULL AS json)
    FROM fencepost.finished
    WHERE job_id = :job_id AND lease_version > :after_version AND state = 'succeeded'
) a
ORDER BY lease_version
LIMIT :max_rows
""")

READ_LEASES = sql("""
SELECT l.job_id, l.lease_version, l.queue, j.kind, l.attempt, l.granted_at, l.expires_at, l.deadline_at,
       l.cancel_requested
FROM fencepost.leases l
JOIN fencepost.jobs j ON j.job_id = l.job_id
WHERE l.worker_id = :worker_id
ORDER BY l.job_id
""")

READ_RECORDS = sql("""
SELECT i.job_id, i.lease_version, a.outcome, a.fingerprint
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i (job_id, lease_version)
JOIN fencepost.attempts a ON a.job_id = i.job_id AND a.lease_version = i.lease_version
WHERE a.job_id = ANY (CAST(:job_ids AS uuid[]))
UNION ALL
SELECT i.job_id, i.lease_version, 'succeeded', f.fingerprint
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i (job_id, lease_version)
JOIN fencepost.finished f
  ON f.job_id = i.job_id AND f.lease_version = i.lease_version AND f.state = 'succeeded'
WHERE f.job_id = ANY (CAST(:job_ids AS uuid[]))
""")

READ_HELD = sql("""
SELECT l.job_id, l.lease_version
FROM fencepost.leases l
JOIN unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i (job_id, lease_version)
  ON l.job_id = i.job_id AND l.lease_version = i.lease_version
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
""")

READ_FINISHED_IDS = sql("""
SELECT w.job_id
FROM unnest(CAST(:job_ids AS uuid[])) AS w (job_id)
WHERE NOT EXISTS (SELECT FROM fencepost.jobs j WHERE j.job_id = w.job_id)
""")

READ_NOW = sql("SELECT now() AS now")

READ_SCHEMA_VERSION = sql("SELECT version_num FROM fencepost.schema_version")


async def read_now(conn: Connection) -> datetime:
    """Return the database's time, at which the statement or its transaction began."""
    now: datetime = (await fetch(conn, READ_NOW, {}))[0].now
    return now


async def read_schema_version(conn: Connection) -> str:
    """Return the version the database is at; "none" before the first migration has ended."""
    rows = await fetch(conn, READ_SCHEMA_VERSION, {})
    return str(rows[0].version_num) if rows else "none"


async def read_jobs(
    conn: Connection,
    job_ids: Sequence[str],
    *,
    retention: Retention,
    with_payload: bool = True,
    with_result: bool = True,
) -> dict[str, Job]:
    """Return the jobs that exist, by id; one past its retention does not."""
    if not job_ids:
        return {}
    rows = await fetch(
        conn,
        READ_JOBS,
        {
            "job_ids": list(job_ids),
            "with_payload": with_payload,
            "with_result": with_result,
            "oldest": created_at_of(min(job_ids)),
            "dead_seconds": retention.dead_seconds,
            "finished_seconds": retention.finished_seconds,
        },
    )
    return {row.job_id: _job(row) for row in rows}


def created_at_of(job_id: str) -> datetime | None:
    """Return a time at or shortly before a UUIDv7 was made; None when it lies outside the calendar."""
    try:
        return _EPOCH + timedelta(milliseconds=UUID(job_id).int >> 80) - _ID_SLACK
    except OverflowError:
        return None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The jobs of one transaction carry its now() plus their position in microseconds, and after a failover the
# database's clock may step back: a bound for partitions needs no precision, one more costs little.
_ID_SLACK = timedelta(days=1)

_JOB_COLUMNS = ("queue", "kind", "parent_job_id")
_UNFINISHED_TABLES = {JobState.READY: "ready", JobState.SCHEDULED: "scheduled", JobState.RUNNING: "leases"}
_FINISHED_STATES = (JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED)


async def list_job_ids(
    conn: Connection, job_filter: JobFilter, *, retention: Retention, max_rows: int, before_id: str | None
) -> list[str]:
    """Return one page of ids, newest first; ``before_id`` is the last id of the page before, or None."""
    statement = _page(job_filter, retention=retention, max_rows=max_rows, before_id=before_id)
    return [row.job_id for row in (await conn.execute(statement)).all()]


def _page(
    job_filter: JobFilter, *, retention: Retention, max_rows: int, before_id: str | None
) -> CompoundSelect[Any]:
    """Merge the newest of the unfinished jobs and of each finished state, each from its own index range."""
    sources = [
        *_unfinished_ids(job_filter),
        *(
            _finished_ids(state, retention=retention, job_filter=job_filter)
            for state in _FINISHED_STATES
            if job_filter.state in (None, state)
        ),
    ]
    pages = [
        _narrowed(source, jobs, job_filter, before_id=before_id)
        .order_by(jobs.c.job_id.desc())
        .limit(max_rows)
        .subquery()
        for source, jobs in sources
    ]
    merged = union_all(*(select(page.c.job_id) for page in pages))
    return merged.order_by(column("job_id").desc()).limit(max_rows)


_Source = tuple[Select[Any], FromClause]


def _unfinished_ids(job_filter: JobFilter) -> list[_Source]:
    jobs = _table("jobs", *_JOB_COLUMNS)
    if job_filter.state is None:
        return [(select(jobs.c.job_id), jobs)]
    if job_filter.state.is_terminal:
        return []
    place = _table(_UNFINISHED_TABLES[job_filter.state])
    return [(select(jobs.c.job_id).join_from(jobs, place, jobs.c.job_id == place.c.job_id), jobs)]


def _finished_ids(state: JobState, *, retention: Retention, job_filter: JobFilter) -> _Source:
    finished = _table("finished", *_JOB_COLUMNS, "state")
    finished_at = finished.c.finished_at
    seconds = retention.dead_seconds if state is JobState.DEAD else retention.finished_seconds
    # The state is written into the text: the planner then knows which partitions are meant.
    source = select(finished.c.job_id).where(
        finished.c.state == literal_column(f"'{state.value}'"),
        finished_at > func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds),
    )
    if job_filter.created_after is not None:
        source = source.where(finished_at >= job_filter.created_after - _ID_SLACK)
    return source, finished


def _narrowed(
    source: Select[Any], jobs: FromClause, job_filter: JobFilter, *, before_id: str | None
) -> Select[Any]:
    equal = {"queue": job_filter.queue, "kind": job_filter.kind, "parent_job_id": job_filter.parent_id}
    for name, value in equal.items():
        if value is not None:
            source = source.where(jobs.c[name] == value)
    job_id = jobs.c.job_id
    if before_id is not None:
        source = source.where(job_id < before_id)
    if job_filter.created_after is not None:
        source = source.where(job_id >= func.fencepost.first_job_id_at(job_filter.created_after))
    if job_filter.created_before is not None:
        source = source.where(job_id < func.fencepost.first_job_id_at(job_filter.created_before))
    return source


def _table(name: str, *columns: str) -> FromClause:
    types = {"parent_job_id": Uuid(as_uuid=False)}
    return table(
        name,
        column("job_id", Uuid(as_uuid=False)),
        column("finished_at", DateTime(timezone=True)),
        *(column(each, types.get(each, Text())) for each in columns),
        schema="fencepost",
    )


async def read_attempts(conn: Connection, job_id: str, *, after_version: int, max_rows: int) -> list[Attempt]:
    """Return a job's grants with versions above ``after_version``, ascending, the running one included."""
    rows = await fetch(
        conn, READ_ATTEMPTS, {"job_id": job_id, "after_version": after_version, "max_rows": max_rows}
    )
    return [
        Attempt(
            attempt=row.attempt,
            lease_version=row.lease_version,
            worker_id=row.worker_id,
            granted_at=row.granted_at,
            ended_at=row.ended_at,
            outcome=Outcome(row.outcome),
            error=row.error,
        )
        for row in rows
    ]


async def read_leases(conn: Connection, worker_id: str) -> list[HeldLease]:
    """Return what a worker holds, oldest job first; reads the whole table of running jobs."""
    rows = await fetch(conn, READ_LEASES, {"worker_id": worker_id})
    return [
        HeldLease(
            job_id=row.job_id,
            lease_version=row.lease_version,
            queue=row.queue,
            kind=row.kind,
            attempt=row.attempt,
            granted_at=row.granted_at,
            expires_at=row.expires_at,
            deadline_at=row.deadline_at,
            cancel_requested=row.cancel_requested,
        )
        for row in rows
    ]


async def read_held(conn: Connection, tokens: Sequence[Token]) -> set[Token]:
    """Return which tokens are held at this moment; nothing keeps them held afterwards."""
    rows = await fetch(conn, READ_HELD, _token_arrays(tokens))
    return {Token(row.job_id, row.lease_version) for row in rows}


async def read_records(conn: Connection, tokens: Sequence[Token]) -> dict[Token, Record]:
    """Return how the attempts under these versions ended; one without a record is missing."""
    rows = await fetch(conn, READ_RECORDS, _token_arrays(tokens))
    return {
        Token(row.job_id, row.lease_version): Record(
            Outcome(row.outcome), None if row.fingerprint is None else bytes(row.fingerprint)
        )
        for row in rows
    }


async def read_finished_ids(conn: Connection, job_ids: Sequence[str]) -> set[str]:
    """Return which of the jobs are not unfinished (finished, or unknown)."""
    rows = await fetch(conn, READ_FINISHED_IDS, {"job_ids": list(job_ids)})
    return {row.job_id for row in rows}


def _token_arrays(tokens: Sequence[Token]) -> dict[str, object]:
    return {
        "job_ids": [token.job_id for token in tokens],
        "lease_versions": [token.lease_version for token in tokens],
    }


def _job(row: Row[Any]) -> Job:
    return Job(
        id=row.job_id,
        queue=row.queue,
        kind=row.kind,
        state=JobState(row.state),
        priority=row.priority,
        payload=row.payload,
        metadata=row.metadata,
        run_at=row.run_at,
        created_at=row.created_at,
        finished_at=row.finished_at,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        backoff=backoff_of(row.backoff),
        max_runtime_seconds=row.max_runtime_seconds,
        progress_timeout_seconds=row.progress_timeout_seconds,
        lease_version=row.lease_version,
        lease=_lease(row) if row.state == JobState.RUNNING else None,
        result=row.result,
        error=row.error,
        checkpoint=row.checkpoint,
        parent=parent_of(row.parent_job_id, row.parent_lease_version),
        idempotency_key=row.idempotency_key,
    )


def _lease(row: Row[Any]) -> Lease:
    progress = None
    if row.progress_seq is not None:
        progress = Progress(row.progress_seq, row.progress_percent, row.progress_message)
    return Lease(
        worker_id=row.worker_id,
        lease_version=row.lease_version,
        granted_at=row.granted_at,
        expires_at=row.expires_at,
        deadline_at=row.deadline_at,
        progress=progress,
        cancel_requested=row.cancel_requested,
    )
