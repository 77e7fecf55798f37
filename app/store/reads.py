"""Plain reads: jobs as they are now, attempts, and what a worker holds.

read_jobs     whole jobs by id, one snapshot, so each is found in exactly one state
read_attempts a job's grants in the order of their versions
read_leases   what a worker holds
read_records  what is known of presented versions: the ground of a refusal or a replay
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from app.domain.idempotency import complete_fingerprint
from app.domain.job import Attempt, HeldLease, Job, JobState, Lease, Outcome, Progress, Token
from app.domain.machine import Record
from app.domain.retention import Retention
from app.store.arrays import plain, token_arrays
from app.store.columns import backoff_of, parent_of
from app.store.engine import Connection, sql

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The jobs of one transaction carry its now() plus their position in microseconds, and after a failover the
# database's clock may step back: a bound for partitions needs no precision, one more costs little.
ID_SLACK = timedelta(days=1)

# The rows are looked up one by one: LIMIT keeps the planner from walking tables instead, and where one
# place has the job the next ones are not asked. A job finished at its creation or later, so the oldest id
# bounds the partitions that can hold any.
READ_JOBS = sql("""
SELECT j.job_id, j.queue, j.kind, j.priority, CASE WHEN :with_payload THEN j.payload END AS payload,
       j.metadata, j.run_at, j.created_at, j.max_attempts, j.backoff, j.max_runtime_seconds,
       j.progress_timeout_seconds, j.parent_job_id, j.parent_lease_version, j.idempotency_key,
       COALESCE(f.state, CASE WHEN l.job_id IS NOT NULL THEN 'running'
                              WHEN s.job_id IS NOT NULL THEN 'scheduled' ELSE 'ready' END) AS state,
       COALESCE(f.attempt, l.attempt, s.attempt, r.attempt) AS attempt,
       COALESCE(f.lease_version, l.lease_version, s.lease_version, r.lease_version) AS lease_version,
       COALESCE(f.error, l.error, s.error, r.error) AS error,
       COALESCE(f.checkpoint, l.checkpoint, s.checkpoint, r.checkpoint) AS checkpoint,
       f.finished_at, CASE WHEN :with_result THEN f.result END AS result, l.worker_id, l.granted_at,
       l.expires_at, l.deadline_at, l.progress_seq, l.progress_percent, l.progress_message,
       l.cancel_requested
FROM fencepost.jobs j
LEFT JOIN LATERAL (
    SELECT * FROM fencepost.ready r
    WHERE r.queue = j.queue AND r.priority = j.priority AND r.run_at = j.run_at AND r.job_id = j.job_id
    LIMIT 1
) r ON true
LEFT JOIN LATERAL (
    SELECT * FROM fencepost.leases l WHERE r.job_id IS NULL AND l.job_id = j.job_id LIMIT 1
) l ON true
LEFT JOIN LATERAL (
    SELECT * FROM fencepost.scheduled s
    WHERE r.job_id IS NULL AND l.job_id IS NULL AND s.job_id = j.job_id
    LIMIT 1
) s ON true
LEFT JOIN LATERAL (
    SELECT * FROM fencepost.finished f
    WHERE r.job_id IS NULL AND l.job_id IS NULL AND s.job_id IS NULL AND f.job_id = j.job_id
      AND f.finished_at >= CAST(:oldest AS timestamptz)
      AND f.finished_at > now() - make_interval(secs => CASE f.state
          WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
          ELSE CAST(:finished_seconds AS double precision) END)
    LIMIT 1
) f ON true
WHERE j.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND num_nonnulls(r.job_id, l.job_id, s.job_id, f.job_id) > 0
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
SELECT l.job_id, l.lease_version, j.queue, j.kind, l.attempt, l.granted_at, l.expires_at, l.deadline_at,
       l.cancel_requested
FROM fencepost.leases l
JOIN fencepost.jobs j ON j.job_id = l.job_id
WHERE l.worker_id = :worker_id
ORDER BY l.job_id
""")

# As in READ_JOBS: looked up one by one, in the partitions of the days since the oldest job was made. A job
# that was completed in SQL has no fingerprint: its result stands for it.
READ_RECORDS = sql("""
SELECT i.job_id, i.lease_version, r.outcome, r.fingerprint, r.result
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i (job_id, lease_version)
CROSS JOIN LATERAL (
    SELECT a.outcome, a.fingerprint, CAST(NULL AS json) AS result
    FROM fencepost.attempts a
    WHERE a.job_id = i.job_id AND a.lease_version = i.lease_version
      AND a.ended_at >= CAST(:oldest AS timestamptz)
    UNION ALL
    SELECT 'succeeded', f.fingerprint, CASE WHEN f.fingerprint IS NULL THEN f.result END
    FROM fencepost.finished f
    WHERE f.job_id = i.job_id AND f.lease_version = i.lease_version AND f.state = 'succeeded'
      AND f.finished_at >= CAST(:oldest AS timestamptz)
    LIMIT 1
) r
""")

READ_HELD = sql("""
SELECT l.job_id, l.lease_version
FROM fencepost.leases l
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND ((l.job_id, l.lease_version) IN (
      SELECT * FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i
  )) IS TRUE
""")

READ_FINISHED_IDS = sql("""
SELECT w.job_id
FROM unnest(CAST(:job_ids AS uuid[])) AS w (job_id)
WHERE NOT EXISTS (SELECT FROM fencepost.jobs j WHERE j.job_id = w.job_id)
   OR EXISTS (
       SELECT FROM fencepost.finished f
       WHERE f.job_id = w.job_id AND f.finished_at >= CAST(:oldest AS timestamptz)
   )
""")

READ_NOW = sql("SELECT now() AS now")

READ_SCHEMA_VERSION = sql("SELECT version_num FROM fencepost.schema_version")


async def read_now(conn: Connection) -> datetime:
    """Return the database's time, at which the statement or its transaction began."""
    now: datetime = (await conn.execute(READ_NOW))[0].now
    return now


async def read_schema_version(conn: Connection) -> str:
    """Return the version the database is at; "none" before the first migration has ended."""
    rows = await conn.execute(READ_SCHEMA_VERSION)
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
    rows = await conn.execute(
        READ_JOBS,
        {
            "job_ids": plain(job_ids),
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
        return _EPOCH + timedelta(milliseconds=UUID(job_id).int >> 80) - ID_SLACK
    except OverflowError:
        return None


async def read_attempts(conn: Connection, job_id: str, *, after_version: int, max_rows: int) -> list[Attempt]:
    """Return a job's grants with versions above ``after_version``, ascending, the running one included."""
    rows = await conn.execute(
        READ_ATTEMPTS, {"job_id": job_id, "after_version": after_version, "max_rows": max_rows}
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
    rows = await conn.execute(READ_LEASES, {"worker_id": worker_id})
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
    rows = await conn.execute(READ_HELD, token_arrays(tokens))
    return {Token(row.job_id, row.lease_version) for row in rows}


async def read_records(conn: Connection, tokens: Sequence[Token]) -> dict[Token, Record]:
    """Return how the attempts under these versions ended; one without a record is missing."""
    oldest = created_at_of(min(token.job_id for token in tokens)) if tokens else None
    rows = await conn.execute(READ_RECORDS, {**token_arrays(tokens), "oldest": oldest})
    return {
        Token(row.job_id, row.lease_version): Record(Outcome(row.outcome), _fingerprint(row)) for row in rows
    }


def _fingerprint(row: Any) -> bytes | None:
    if row.fingerprint is not None:
        return bytes(row.fingerprint)
    return complete_fingerprint(row.result, ()) if row.outcome == Outcome.SUCCEEDED else None


async def read_finished_ids(conn: Connection, job_ids: Sequence[str]) -> set[str]:
    """Return which of the jobs are not unfinished (finished, or unknown)."""
    oldest = created_at_of(min(job_ids)) if job_ids else None
    rows = await conn.execute(READ_FINISHED_IDS, {"job_ids": plain(job_ids), "oldest": oldest})
    return {row.job_id for row in rows}


def _job(row: Any) -> Job:
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


def _lease(row: Any) -> Lease:
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
