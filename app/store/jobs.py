"""Cancel, redrive and edit: the verbs of people, one job at a time.

A job is locked where its state is (the row in ready, scheduled or leases, or in finished), never in
``jobs``: holder calls lock leases first and delete from jobs afterwards, and the other order would
deadlock with them.
"""

from dataclasses import dataclass
from datetime import datetime

from app.domain.calls import Edit
from app.domain.job import JobState, Token
from app.domain.retention import Retention
from app.store.engine import Connection, Statement, fetch, sql

LOCK_READY = sql("""
SELECT job_id, lease_version, attempt, queue FROM fencepost.ready WHERE job_id = :job_id FOR UPDATE
""")

LOCK_SCHEDULED = sql("""
SELECT job_id, lease_version, attempt, queue FROM fencepost.scheduled WHERE job_id = :job_id FOR UPDATE
""")

LOCK_RUNNING = sql("""
SELECT job_id, lease_version, attempt, queue FROM fencepost.leases WHERE job_id = :job_id FOR UPDATE
""")

LOCK_FINISHED = sql("""
SELECT job_id, lease_version, attempt, queue, state
FROM fencepost.finished
WHERE job_id = :job_id
  AND finished_at > now() - make_interval(secs => CASE state
      WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
      ELSE CAST(:finished_seconds AS double precision) END)
FOR UPDATE
""")

CANCEL_WAITING = sql("""
WITH waiting AS MATERIALIZED (
    SELECT * FROM fencepost.ready WHERE job_id = :job_id AND lease_version = :lease_version
    UNION ALL
    SELECT * FROM fencepost.scheduled WHERE job_id = :job_id AND lease_version = :lease_version
), from_ready AS (
    DELETE FROM fencepost.ready WHERE job_id = :job_id AND lease_version = :lease_version
), from_scheduled AS (
    DELETE FROM fencepost.scheduled WHERE job_id = :job_id AND lease_version = :lease_version
), buried AS (
    DELETE FROM fencepost.jobs j USING waiting w WHERE j.job_id = w.job_id RETURNING j.*
)
INSERT INTO fencepost.finished (
    job_id, created_at, run_at, finished_at, lease_version, max_runtime_seconds, progress_timeout_seconds,
    parent_job_id, parent_lease_version, attempt, max_attempts, priority, state, queue, kind, payload,
    metadata, backoff, error, checkpoint, previous, traceparent, tracestate, caller, idempotency_key
)
SELECT b.job_id, b.created_at, w.run_at, now(), w.lease_version + :version_step, b.max_runtime_seconds,
       b.progress_timeout_seconds, b.parent_job_id, b.parent_lease_version, w.attempt, b.max_attempts,
       w.priority, 'cancelled', b.queue, b.kind, b.payload, b.metadata, b.backoff,
       COALESCE(CAST(CAST(:error AS text) AS json), w.error), w.checkpoint, w.previous, b.traceparent,
       b.tracestate, b.caller, b.idempotency_key
FROM buried b JOIN waiting w ON w.job_id = b.job_id
""")

REQUEST_CANCEL = sql("""
UPDATE fencepost.leases
SET cancel_requested = true, cancel_reason = COALESCE(cancel_reason, :reason)
WHERE job_id = :job_id AND lease_version = :lease_version
""")

REDRIVE_JOB = sql("""
WITH risen AS (
    DELETE FROM fencepost.finished
    WHERE job_id = :job_id AND lease_version = :lease_version AND state IN ('dead', 'cancelled')
    RETURNING *, COALESCE(CAST(:run_at AS timestamptz), now()) AS due_at
), back AS (
    INSERT INTO fencepost.jobs (
        job_id, created_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
        parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff,
        traceparent, tracestate, caller, idempotency_key
    )
    SELECT job_id, created_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
           parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff,
           traceparent, tracestate, caller, idempotency_key
    FROM risen
), to_ready AS (
    INSERT INTO fencepost.ready (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, due_at, lease_version + 1, 0, priority, queue, checkpoint, error, previous
    FROM risen WHERE due_at <= now()
), to_scheduled AS (
    INSERT INTO fencepost.scheduled (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, due_at, lease_version + 1, 0, priority, queue, checkpoint, error, previous
    FROM risen WHERE due_at > now()
)
SELECT queue, due_at <= now() AS is_due,
       CAST(extract(epoch FROM due_at - now()) AS double precision) AS due_in_seconds
FROM risen
""")

# A waiting row is replaced, not updated: every column of it is in an index or decides the table.
EDIT_JOB = sql("""
WITH edited AS (
    UPDATE fencepost.jobs
    SET priority = COALESCE(CAST(:priority AS smallint), priority),
        max_attempts = COALESCE(CAST(:max_attempts AS integer), max_attempts)
    WHERE job_id = :job_id
    RETURNING job_id, priority
), from_ready AS (
    DELETE FROM fencepost.ready WHERE job_id = :job_id AND lease_version = :lease_version RETURNING *
), from_scheduled AS (
    DELETE FROM fencepost.scheduled WHERE job_id = :job_id AND lease_version = :lease_version RETURNING *
)
SELECT w.job_id, w.lease_version, w.attempt, e.priority, w.queue, w.checkpoint, w.error, w.previous,
       COALESCE(CAST(:run_at AS timestamptz), w.run_at) AS run_at,
       COALESCE(CAST(:run_at AS timestamptz), w.run_at) <= now() AS is_due,
       CAST(extract(epoch FROM COALESCE(CAST(:run_at AS timestamptz), w.run_at) - now())
            AS double precision) AS due_in_seconds
FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_scheduled) w
JOIN edited e ON e.job_id = w.job_id
""")

INSERT_READY = sql("""
INSERT INTO fencepost.ready (
    job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
)
VALUES (:job_id, :run_at, :lease_version, :attempt, :priority, :queue,
        CAST(CAST(:checkpoint AS text) AS json), CAST(CAST(:error AS text) AS json),
        CAST(CAST(:previous AS text) AS json))
""")

INSERT_SCHEDULED = sql("""
INSERT INTO fencepost.scheduled (
    job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
)
VALUES (:job_id, :run_at, :lease_version, :attempt, :priority, :queue,
        CAST(CAST(:checkpoint AS text) AS json), CAST(CAST(:error AS text) AS json),
        CAST(CAST(:previous AS text) AS json))
""")


@dataclass(frozen=True, slots=True)
class LockedJob:
    """Where a job is, locked there until the transaction ends."""

    token: Token
    state: JobState
    attempt: int
    queue: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job waits now; ``due_in_seconds`` is at most 0 when it is ready."""

    queue: str
    is_due: bool
    due_in_seconds: float


_PLACES: tuple[tuple[JobState, Statement], ...] = (
    (JobState.READY, LOCK_READY),
    (JobState.SCHEDULED, LOCK_SCHEDULED),
    (JobState.RUNNING, LOCK_RUNNING),
)


async def lock_job(conn: Connection, job_id: str, *, retention: Retention) -> LockedJob | None:
    """Lock a job where it is. None: there is no such job, or it moved while it was looked for.

    Waits for a rival that is moving it. The caller asks again when ``reads.read_jobs`` still knows it.
    """
    for state, statement in _PLACES:
        for row in await fetch(conn, statement, {"job_id": job_id}):
            return LockedJob(Token(row.job_id, row.lease_version), state, row.attempt, row.queue)
    finished = await fetch(
        conn,
        LOCK_FINISHED,
        {
            "job_id": job_id,
            "dead_seconds": retention.dead_seconds,
            "finished_seconds": retention.finished_seconds,
        },
    )
    for row in finished:
        return LockedJob(Token(row.job_id, row.lease_version), JobState(row.state), row.attempt, row.queue)
    return None


async def cancel_waiting(conn: Connection, token: Token, *, error: str | None, version_step: int) -> None:
    """Finish a ready or scheduled job that is locked; ``version_step`` is 1 for a forced cancel, else 0."""
    await conn.execute(
        CANCEL_WAITING,
        {
            "job_id": token.job_id,
            "lease_version": token.lease_version,
            "error": error,
            "version_step": version_step,
        },
    )


async def request_cancel(conn: Connection, token: Token, *, reason: str | None) -> None:
    """Leave word for the holder; the first reason given is kept."""
    await conn.execute(
        REQUEST_CANCEL, {"job_id": token.job_id, "lease_version": token.lease_version, "reason": reason}
    )


async def redrive_job(conn: Connection, token: Token, *, run_at: datetime | None) -> Placed:
    """Bring a dead or cancelled job that is locked back, attempts at 0, lease_version one higher."""
    rows = await fetch(
        conn,
        REDRIVE_JOB,
        {"job_id": token.job_id, "lease_version": token.lease_version, "run_at": run_at},
    )
    return Placed(rows[0].queue, rows[0].is_due, rows[0].due_in_seconds)


async def edit_job(conn: Connection, token: Token, edit: Edit) -> Placed:
    """Change a waiting job that is locked, and put it where its time now says."""
    rows = await fetch(
        conn,
        EDIT_JOB,
        {
            "job_id": token.job_id,
            "lease_version": token.lease_version,
            "priority": edit.priority,
            "run_at": edit.run_at,
            "max_attempts": edit.max_attempts,
        },
    )
    row = rows[0]
    waiting = {
        "job_id": row.job_id,
        "run_at": row.run_at,
        "lease_version": row.lease_version,
        "attempt": row.attempt,
        "priority": row.priority,
        "queue": row.queue,
        "checkpoint": row.checkpoint,
        "error": row.error,
        "previous": row.previous,
    }
    await conn.execute(INSERT_READY if row.is_due else INSERT_SCHEDULED, waiting)
    return Placed(row.queue, row.is_due, row.due_in_seconds)
