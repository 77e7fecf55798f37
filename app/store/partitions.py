"""Partitions by day: made ahead, dropped when everything in them is past its retention.

A partition is created as a plain table and then attached: CREATE TABLE ... PARTITION OF would lock the
parent against every writer, ATTACH does not. Names carry the day: finished_dead_20261129.
"""

from datetime import date, timedelta

from app.domain.retention import Retention
from app.store.engine import Connection, Statement, fetch, sql

DAYS_AHEAD = 7

_PARENTS = ("finished_succeeded", "finished_dead", "finished_cancelled", "attempts")

# One replica at a time; a second one finds nothing left to do.
LOCK_PARTITIONS = sql("SELECT pg_advisory_xact_lock(5072190458)")

READ_TODAY = sql("SELECT CAST(now() AS date) AS today")

READ_PARTITIONS = sql("""
SELECT CAST(c.relname AS text) AS name
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_class p ON p.oid = i.inhparent
JOIN pg_namespace n ON n.oid = p.relnamespace
WHERE n.nspname = 'fencepost' AND p.relname = :parent AND c.relkind = 'r'
""")

# Keys of finished jobs whose time is over. The index walk is bounded by what the last pass left: those
# before it are gone, or belong to jobs whose keys were taken anew.
DELETE_OLD_KEYS = sql("""
DELETE FROM fencepost.idempotency_keys k
USING (
    SELECT f.caller, f.idempotency_key, f.job_id
    FROM fencepost.finished f
    JOIN fencepost.idempotency_keys taken
      ON taken.caller = f.caller AND taken.key = f.idempotency_key AND taken.job_id = f.job_id
    WHERE f.idempotency_key IS NOT NULL
      AND f.finished_at > now() - make_interval(secs => :look_back_seconds)
      AND f.finished_at <= now() - make_interval(secs => least(
          CAST(:idempotency_seconds AS double precision),
          CASE f.state WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
                       ELSE CAST(:finished_seconds AS double precision) END))
    LIMIT :max_keys
) old
WHERE k.caller = old.caller AND k.key = old.idempotency_key AND k.job_id = old.job_id
""")


async def read_today(conn: Connection) -> date:
    """Return the database's day in UTC."""
    rows = await fetch(conn, READ_TODAY, {})
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


async def drop_partitions(conn: Connection, *, retention: Retention) -> list[str]:
    """Drop partitions whose last day is past its retention; return their names.

    Attempts are kept as long as the longest-kept job. Waits at most lock_timeout for readers.
    """
    await conn.execute(LOCK_PARTITIONS)
    today = await read_today(conn)
    longest = max(retention.finished_seconds, retention.dead_seconds)
    kept_seconds = {
        "finished_succeeded": retention.finished_seconds,
        "finished_cancelled": retention.finished_seconds,
        "finished_dead": retention.dead_seconds,
        "attempts": longest,
    }
    dropped = []
    for parent, seconds in kept_seconds.items():
        # A day is over at its end, hence the second day.
        oldest_kept = today - timedelta(seconds=seconds) - timedelta(days=2)
        for name in await _read_partitions(conn, parent):
            if name < f"{parent}_{oldest_kept:%Y%m%d}":
                await conn.execute(_drop(name))
                dropped.append(name)
    return dropped


async def delete_old_keys(
    conn: Connection, *, retention: Retention, look_back_seconds: float, max_keys: int
) -> int:
    """Delete idempotency keys whose time ended within the last ``look_back_seconds``; return how many."""
    result = await conn.execute(
        DELETE_OLD_KEYS,
        {
            "look_back_seconds": look_back_seconds,
            "max_keys": max_keys,
            "idempotency_seconds": retention.idempotency_seconds,
            "finished_seconds": retention.finished_seconds,
            "dead_seconds": retention.dead_seconds,
        },
    )
    return result.rowcount


async def _read_partitions(conn: Connection, parent: str) -> set[str]:
    return {row.name for row in await fetch(conn, READ_PARTITIONS, {"parent": parent})}


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


def _drop(name: str) -> Statement:
    return sql(f"DROP TABLE fencepost.{name}")
