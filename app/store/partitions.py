"""Partitions by day: made ahead, dropped when everything in them is past its retention, its jobs before it.

A partition is created as a plain table and then attached: CREATE TABLE ... PARTITION OF would lock the
parent against every writer, ATTACH does not. Names carry the day: finished_dead_20261129.
"""

from datetime import date, datetime, timedelta

from app.domain.job import JobState
from app.domain.retention import Retention
from app.store.engine import Connection, Statement, sql

DAYS_AHEAD = 7

_PARENTS = ("finished_succeeded", "finished_dead", "finished_cancelled", "attempts")

# One replica at a time; a second one finds nothing left to do.
LOCK_PARTITIONS = sql("SELECT pg_advisory_xact_lock(5072190458)")

# How long DROP may make others wait.
GIVE_WAY = sql("SET LOCAL lock_timeout = '50ms'")

READ_TODAY = sql("SELECT CAST(now() AS date) AS today")

READ_PARTITIONS = sql("""
SELECT CAST(c.relname AS text) AS name
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_class p ON p.oid = i.inhparent
JOIN pg_namespace n ON n.oid = p.relnamespace
WHERE n.nspname = 'fencepost' AND p.relname = :parent AND c.relkind = 'r'
""")

# Keys of the finished jobs of one state whose time is over, walked in the order of their finish: ``after`` is
# where the last step ended. A key that was taken anew belongs to another job and stays.
DELETE_OLD_KEYS = sql("""
WITH old AS MATERIALIZED (
    SELECT f.job_id, f.finished_at
    FROM fencepost.finished f
    WHERE f.state = :state AND f.has_key
      AND f.finished_at > CAST(:after AS timestamptz)
      AND f.finished_at <= now() - make_interval(secs => :kept_seconds)
    ORDER BY f.finished_at
    LIMIT :max_jobs
), keys AS MATERIALIZED (
    SELECT j.caller, j.idempotency_key, j.job_id
    FROM old
    CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = old.job_id LIMIT 1) j
), forgotten AS (
    DELETE FROM fencepost.idempotency_keys k
    USING keys
    WHERE k.caller = keys.caller AND k.key = keys.idempotency_key AND k.job_id = keys.job_id
)
SELECT CAST(count(*) AS integer) AS job_count, max(finished_at) AS last_finished_at FROM old
""")


async def delete_jobs_of(conn: Connection, name: str, *, after_id: str, max_jobs: int) -> tuple[int, str]:
    """Delete a step of the jobs that ended in one partition, whose retention must be over.

    Return how many rows of the partition were looked at, ``max_jobs`` when there may be more, and the last
    id; ``after_id`` is where the step before ended.
    """
    rows = await conn.execute(_delete_jobs(name), {"after_id": after_id, "max_jobs": max_jobs})
    return rows[0].job_count, rows[0].last_id or after_id


async def read_today(conn: Connection) -> date:
    """Return the database's day in UTC."""
    rows = await conn.execute(READ_TODAY)
    today: date = rows[0].today
    return today


async def make_partitions(conn: Connection) -> list[str]:
    """Create what is missing from yesterday to DAYS_AHEAD; return the new names.

    Yesterday too: a transaction that began before midnight writes its now().
    """
    await conn.execute(LOCK_PARTITIONS)
    today = await read_today(conn)
    made = []
    for parent in _PARENTS:
        existing = await _read_partitions(conn, parent)
        for offset in range(-1, DAYS_AHEAD + 1):
            day = today + timedelta(days=offset)
            name = f"{parent}_{day:%Y%m%d}"
            if name not in existing:
                await conn.execute(_create(parent, name))
                await conn.execute(_attach(parent, name, day))
                made.append(name)
    return made


async def read_old_partitions(conn: Connection, *, retention: Retention) -> list[str]:
    """Return the partitions whose last day is past its retention.

    Attempts are kept as long as the longest-kept job.
    """
    today = await read_today(conn)
    longest = max(retention.finished_seconds, retention.dead_seconds)
    kept_seconds = {
        "finished_succeeded": retention.finished_seconds,
        "finished_cancelled": retention.finished_seconds,
        "finished_dead": retention.dead_seconds,
        "attempts": longest,
    }
    old = []
    for parent, seconds in kept_seconds.items():
        # A day is over at its end, hence the second day.
        oldest_kept = today - timedelta(seconds=seconds) - timedelta(days=2)
        names = await _read_partitions(conn, parent)
        old += sorted(name for name in names if name < f"{parent}_{oldest_kept:%Y%m%d}")
    return old


async def drop_partition(conn: Connection, name: str) -> None:
    """Drop one partition, or raise Unavailable at once when somebody reads its parent.

    Needs a transaction of its own: DROP locks the parent against everybody, so a second lock in the same
    transaction would deadlock with reads of all states, and a long wait for the first would queue every
    call behind it.
    """
    await conn.execute(LOCK_PARTITIONS)
    await conn.execute(GIVE_WAY)
    await conn.execute(_drop(name))


async def delete_old_keys(
    conn: Connection, state: JobState, *, kept_seconds: float, after: datetime, max_jobs: int
) -> tuple[int, datetime]:
    """Delete keys whose time is over, of jobs that finished in this state after ``after``.

    Return how many jobs were looked at, ``max_jobs`` when there may be more, and the finish of the last one.
    """
    rows = await conn.execute(
        DELETE_OLD_KEYS,
        {"state": state.value, "after": after, "max_jobs": max_jobs, "kept_seconds": kept_seconds},
    )
    return rows[0].job_count, rows[0].last_finished_at or after


async def _read_partitions(conn: Connection, parent: str) -> set[str]:
    return {row.name for row in await conn.execute(READ_PARTITIONS, {"parent": parent})}


# Names and bounds of DDL cannot be parameters; both are made here from constants and a date.
def _create(parent: str, name: str) -> Statement:
    return sql(
        f"CREATE TABLE fencepost.{name} (LIKE fencepost.{parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
    )


def _attach(parent: str, name: str, day: date) -> Statement:
    after = day + timedelta(days=1)
    return sql(
        f"ALTER TABLE fencepost.{parent} ATTACH PARTITION fencepost.{name}"
        f" FOR VALUES FROM ('{day} 00:00Z') TO ('{after} 00:00Z')"
    )


def _delete_jobs(name: str) -> Statement:
    return sql(f"""
        WITH old AS MATERIALIZED (
            SELECT job_id FROM fencepost.{name} WHERE job_id > :after_id ORDER BY job_id LIMIT :max_jobs
        ), deleted AS (
            DELETE FROM fencepost.jobs WHERE job_id = ANY (ARRAY(SELECT job_id FROM old))
        )
        SELECT CAST(count(*) AS integer) AS job_count,
               (SELECT job_id FROM old ORDER BY job_id DESC LIMIT 1) AS last_id
        FROM old
    """)  # noqa: S608 - the name is of a partition that was read from the catalog


def _drop(name: str) -> Statement:
    return sql(f"DROP TABLE IF EXISTS fencepost.{name}")
