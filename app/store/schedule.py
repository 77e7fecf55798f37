"""Move due jobs from scheduled to ready, and tell when the next one is due."""

from dataclasses import dataclass
from datetime import datetime

from app.store.engine import Connection, sql

# SKIP LOCKED: replicas share a backlog instead of waiting for each other.
PROMOTE_JOBS = sql("""
WITH due AS MATERIALIZED (
    SELECT ctid AS row_at, s.*
    FROM fencepost.scheduled s
    WHERE run_at <= now()
    ORDER BY run_at, job_id
    LIMIT :max_jobs
    FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM fencepost.scheduled WHERE ctid = ANY (ARRAY(SELECT row_at FROM due))
), placed AS (
    INSERT INTO fencepost.ready (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous FROM due
)
SELECT queue, CAST(count(*) AS integer) AS job_count FROM due GROUP BY queue
""")

READ_NEXT_DUE = sql("""
SELECT clock_timestamp() AS now,
       (SELECT CAST(extract(epoch FROM run_at - clock_timestamp()) AS double precision)
        FROM fencepost.scheduled
        ORDER BY run_at, job_id
        LIMIT 1) AS due_in_seconds
""")


@dataclass(frozen=True, slots=True)
class NextDue:
    """``due_in_seconds`` is negative when the next job is late, None when none is scheduled."""

    now: datetime
    due_in_seconds: float | None


async def promote_jobs(conn: Connection, *, max_jobs: int) -> dict[str, int]:
    """Move jobs whose time has come; return how many of each queue became ready."""
    rows = await conn.execute(PROMOTE_JOBS, {"max_jobs": max_jobs})
    return {row.queue: row.job_count for row in rows}


async def read_next_due(conn: Connection) -> NextDue:
    """Return the database's time, and how long until the next scheduled job is due."""
    row = (await conn.execute(READ_NEXT_DUE))[0]
    return NextDue(row.now, row.due_in_seconds)
