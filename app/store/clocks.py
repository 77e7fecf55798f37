"""Leases whose clock ran out: the reaper's read."""

from app.store.endings import LockedLease, locked_leases
from app.store.engine import Connection, sql

# No index on the clocks: that would make every heartbeat a cold update, and the table holds only what
# runs now. SKIP LOCKED: a holder that is just settling or beating has the word. LEAST ignores nulls.
LOCK_RUN_OUT_LEASES = sql("""
SELECT l.job_id, l.lease_version, l.attempt, l.cancel_requested, l.expires_at, l.stalls_at, l.deadline_at,
       j.max_attempts, j.backoff, j.queue, now() AS now
FROM fencepost.leases l
CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = l.job_id LIMIT 1) j
WHERE least(l.expires_at, l.stalls_at, l.deadline_at) <= now()
ORDER BY l.job_id
LIMIT :max_leases
FOR UPDATE OF l SKIP LOCKED
""")


async def lock_run_out_leases(conn: Connection, *, max_leases: int) -> list[LockedLease]:
    """Lock leases of which a clock has run out and which nobody else holds a lock on.

    The lock re-checks the clocks, so a heartbeat that committed in between keeps its lease.
    """
    return locked_leases(await conn.execute(LOCK_RUN_OUT_LEASES, {"max_leases": max_leases}))
