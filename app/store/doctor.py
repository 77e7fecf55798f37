"""What must hold of the whole schema: each job in exactly one state, counters sane.

Each check is a query that returns the offending job ids; it reads whole tables, so it is for the
command line and the tests, not for a request.
"""

from app.store.engine import Connection, sql

MAX_SHOWN = 20

# Whole tables take longer than any request may, and other plans than those of the hot path.
READ_WHOLE_TABLES = sql("""
SELECT set_config(name, value, true)
FROM (
    VALUES ('statement_timeout', '0'), ('enable_seqscan', 'on'), ('enable_hashjoin', 'on')
) AS s (name, value)
""")

CHECKS = {
    "is in more than one state": sql("""
        SELECT job_id FROM (
            SELECT job_id FROM fencepost.ready
            UNION ALL SELECT job_id FROM fencepost.scheduled
            UNION ALL SELECT job_id FROM fencepost.leases
            UNION ALL SELECT job_id FROM fencepost.finished
        ) p
        GROUP BY job_id HAVING count(*) > 1
        LIMIT :max_shown
    """),
    "is in no state": sql("""
        SELECT j.job_id FROM fencepost.jobs j
        WHERE NOT EXISTS (SELECT FROM fencepost.finished f WHERE f.job_id = j.job_id)
          AND NOT EXISTS (SELECT FROM fencepost.ready r WHERE r.job_id = j.job_id)
          AND NOT EXISTS (SELECT FROM fencepost.scheduled s WHERE s.job_id = j.job_id)
          AND NOT EXISTS (SELECT FROM fencepost.leases l WHERE l.job_id = j.job_id)
        LIMIT :max_shown
    """),
    "has a state but no job": sql("""
        SELECT p.job_id FROM (
            SELECT job_id FROM fencepost.ready
            UNION ALL SELECT job_id FROM fencepost.scheduled
            UNION ALL SELECT job_id FROM fencepost.leases
        ) p
        WHERE NOT EXISTS (SELECT FROM fencepost.jobs j WHERE j.job_id = p.job_id)
        LIMIT :max_shown
    """),
    "waits elsewhere than it says": sql("""
        SELECT p.job_id FROM (
            SELECT job_id, queue, priority, run_at FROM fencepost.ready
            UNION ALL SELECT job_id, queue, priority, run_at FROM fencepost.scheduled
        ) p
        JOIN fencepost.jobs j ON j.job_id = p.job_id
        WHERE (p.queue, p.priority, p.run_at) IS DISTINCT FROM (j.queue, j.priority, j.run_at)
        LIMIT :max_shown
    """),
    "has used more attempts than it may": sql("""
        SELECT p.job_id FROM (
            SELECT job_id, attempt FROM fencepost.ready
            UNION ALL SELECT job_id, attempt FROM fencepost.scheduled
            UNION ALL SELECT job_id, attempt FROM fencepost.leases
        ) p
        JOIN fencepost.jobs j ON j.job_id = p.job_id
        WHERE p.attempt > j.max_attempts
        LIMIT :max_shown
    """),
    "waits with no attempt left": sql("""
        SELECT p.job_id FROM (
            SELECT job_id, attempt FROM fencepost.ready
            UNION ALL SELECT job_id, attempt FROM fencepost.scheduled
        ) p
        JOIN fencepost.jobs j ON j.job_id = p.job_id
        WHERE p.attempt >= j.max_attempts
        LIMIT :max_shown
    """),
    "has a lease_version that was not above an ended one": sql("""
        SELECT l.job_id FROM fencepost.leases l
        WHERE EXISTS (
            SELECT FROM fencepost.attempts a
            WHERE a.job_id = l.job_id AND a.lease_version >= l.lease_version
        )
        LIMIT :max_shown
    """),
    "ended two attempts under one lease_version": sql("""
        SELECT job_id FROM fencepost.attempts GROUP BY job_id, lease_version HAVING count(*) > 1
        LIMIT :max_shown
    """),
    "has counters below zero or more attempts than versions": sql("""
        SELECT p.job_id FROM (
            SELECT job_id, attempt, lease_version FROM fencepost.ready
            UNION ALL SELECT job_id, attempt, lease_version FROM fencepost.scheduled
            UNION ALL SELECT job_id, attempt, lease_version FROM fencepost.leases
            UNION ALL SELECT job_id, attempt, lease_version FROM fencepost.finished
        ) p
        WHERE p.attempt < 0 OR p.attempt > p.lease_version
        LIMIT :max_shown
    """),
}


async def examine(conn: Connection) -> list[str]:
    """Return one sentence per offending job, at most MAX_SHOWN a check; an empty list is health.

    The transaction must be a snapshot: a job that moves between two checks would be reported.
    """
    await conn.execute(READ_WHOLE_TABLES)
    findings = []
    for sentence, statement in CHECKS.items():
        rows = await conn.execute(statement, {"max_shown": MAX_SHOWN})
        findings += [f"job {row.job_id} {sentence}" for row in rows]
    return findings
