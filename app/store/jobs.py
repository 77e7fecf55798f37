"""Cancel, redrive and edit: the verbs of people, one job at a time.

A job is locked where its state is (the row in ready, scheduled or leases, or in finished), and its row in
``jobs`` is written afterwards: holder calls go in this order, and the other one would deadlock with them.
"""

from dataclasses import dataclass
from datetime import datetime

from app.domain.calls import Edit
from app.domain.job import JobState, Token
from app.domain.retention import Retention
from app.store.engine import Connection, Statement, sql

# A ready job's row is found by the place that its job names.
LOCK_READY = sql("""
SELECT r.job_id, r.lease_version, r.attempt, r.queue
FROM fencepost.jobs j
JOIN fencepost.ready r
  ON r.queue = j.queue AND r.priority = j.priority AND r.run_at = j.run_at AND r.job_id = j.job_id
WHERE j.job_id = :job_id
FOR UPDATE OF r
""")

LOCK_SCHEDULED = sql("""
SELECT job_id, lease_version, attempt, queue FROM fencepost.scheduled WHERE job_id = :job_id FOR UPDATE
""")

# Strong enough to ask for a cancel, and no stronger: who holds the lease in SQL does not stand in its way.
LOCK_RUNNING = sql("""
SELECT l.job_id, l.lease_version, l.attempt, j.queue
FROM fencepost.leases l
JOIN fencepost.jobs j ON j.job_id = l.job_id
WHERE l.job_id = :job_id
FOR NO KEY UPDATE OF l SKIP LOCKED
""")

LOCK_FINISHED = sql("""
SELECT f.job_id, f.lease_version, f.attempt, j.queue, f.state
FROM fencepost.finished f
JOIN fencepost.jobs j ON j.job_id = f.job_id
WHERE f.job_id = :job_id
  AND f.finished_at > now() - make_interval(secs => CASE f.state
      WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
      ELSE CAST(:finished_seconds AS double precision) END)
FOR UPDATE OF f
""")

CANCEL_WAITING = sql("""
WITH job AS MATERIALIZED (
    SELECT * FROM fencepost.jobs WHERE job_id = :job_id
), from_ready AS (
    DELETE FROM fencepost.ready r
    USING job j
    WHERE r.queue = j.queue AND r.priority = j.priority AND r.run_at = j.run_at AND r.job_id = j.job_id
      AND r.lease_version = :lease_version
    RETURNING r.lease_version, r.attempt, r.error, r.checkpoint, r.previous
), from_scheduled AS (
    DELETE FROM fencepost.scheduled
    WHERE job_id = :job_id AND lease_version = :lease_version
    RETURNING lease_version, attempt, error, checkpoint, previous
)
INSERT INTO fencepost.finished (
    job_id, finished_at, lease_version, attempt, has_key, state, error, checkpoint, previous, queue, kind,
    parent_job_id
)
SELECT j.job_id, now(), w.lease_version + :version_step, w.attempt, j.idempotency_key IS NOT NULL,
       'cancelled', COALESCE(CAST(CAST(:error AS text) AS json), w.error), w.checkpoint, w.previous,
       j.queue, j.kind, j.parent_job_id
FROM job j
CROSS JOIN (SELECT * FROM from_ready UNION ALL SELECT * FROM from_scheduled) w
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
    RETURNING *
), job AS (
    UPDATE fencepost.jobs j
    SET run_at = COALESCE(CAST(:run_at AS timestamptz), now())
    FROM risen r
    WHERE j.job_id = :job_id AND j.job_id = r.job_id
    RETURNING j.run_at, j.priority, j.queue, r.job_id, r.lease_version, r.checkpoint, r.error, r.previous
), to_ready AS (
    INSERT INTO fencepost.ready (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, run_at, lease_version + 1, 0, priority, queue, checkpoint, error, previous
    FROM job WHERE run_at <= now()
), to_scheduled AS (
    INSERT INTO fencepost.scheduled (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, run_at, lease_version + 1, 0, priority, queue, checkpoint, error, previous
    FROM job WHERE run_at > now()
)
SELECT queue, run_at <= now() AS is_due,
       CAST(extract(epoch FROM run_at - now()) AS double precision) AS due_in_seconds
FROM job
""")

# A waiting row is replaced, not updated: every column of it is in an index or decides the table.
EDIT_JOB = sql("""
WITH before AS MATERIALIZED (
    SELECT queue, priority, run_at FROM fencepost.jobs WHERE job_id = :job_id
), edited AS (
    UPDATE fencepost.jobs
    SET priority = COALESCE(CAST(:priority AS smallint), priority),
        max_attempts = COALESCE(CAST(:max_attempts AS integer), max_attempts),
        run_at = COALESCE(CAST(:run_at AS timestamptz), run_at)
    WHERE job_id = :job_id
    RETURNING job_id, queue, priority, run_at
), from_ready AS (
    DELETE FROM fencepost.ready r
    USING before b
    WHERE r.queue = b.queue AND r.priority = b.priority AND r.run_at = b.run_at AND r.job_id = :job_id
      AND r.lease_version = :lease_version
    RETURNING r.lease_version, r.attempt, r.checkpoint, r.error, r.previous
), from_scheduled AS (
    DELETE FROM fencepost.scheduled
    WHERE job_id = :job_id AND lease_version = :lease_version
    RETURNING lease_version, attempt, checkpoint, error, previous
)
SELECT e.job_id, w.lease_version, w.attempt, e.priority, e.queue, w.checkpoint, w.error, w.previous, e.run_at,
       e.run_at <= now() AS is_due,
       CAST(extract(epoch FROM e.run_at - now()) AS double precision) AS due_in_seconds
FROM edited e
CROSS JOIN (SELECT * FROM from_ready UNION ALL SELECT * FROM from_scheduled) w
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
    """Lock a job where it is. None: there is none, it moved while it was looked for, or its lease is locked.

    Waits for a rival that is moving a job that does not run. A lease is kept from whatever else would write
    it, not from who holds it in SQL. The caller asks again when ``reads.read_jobs`` still knows the job.
    """
    for state, statement in _PLACES:
        for row in await conn.execute(statement, {"job_id": job_id}):
            return LockedJob(Token(row.job_id, row.lease_version), state, row.attempt, row.queue)
    finished = await conn.execute(
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
    rows = await conn.execute(
        REDRIVE_JOB,
        {"job_id": token.job_id, "lease_version": token.lease_version, "run_at": run_at},
    )
    return Placed(rows[0].queue, rows[0].is_due, rows[0].due_in_seconds)


async def edit_job(conn: Connection, token: Token, edit: Edit) -> Placed:
    """Change a waiting job that is locked, and put it where its time now says."""
    rows = await conn.execute(
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
