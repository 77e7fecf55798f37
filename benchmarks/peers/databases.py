"""Throw-away databases, and what PostgreSQL's counters say of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks.peers.systems import Backlog

# Backends hand their counters in at most once a second, and when they are idle.
_COUNTERS_SECONDS = 1.2
_PREFIX = "peers_"

TUPLES = """
SELECT coalesce(sum(n_tup_ins), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
       coalesce(sum(n_tup_hot_upd), 0)::bigint, coalesce(sum(n_tup_del), 0)::bigint,
       coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(autovacuum_count), 0)::bigint
FROM pg_stat_user_tables
WHERE schemaname = %(schema)s
"""
SIZES = """
SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'm')
"""
COLUMNS = """
SELECT attname
FROM pg_attribute
WHERE attrelid = CAST(%(table)s AS regclass) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Sums over all tables of a schema since the database was made."""

    inserted: int
    updated: int
    hot_updated: int
    deleted: int
    dead: int
    autovacuums: int
    table_bytes: int
    index_bytes: int


class Databases:
    """The databases of one PostgreSQL server that belong to the benchmark; needs a superuser."""

    def __init__(self, admin_url: str) -> None:
        self.admin_url = admin_url
        self._admin = psycopg.connect(admin_url, autocommit=True)

    def url(self, name: str) -> str:
        """Return the address of a database of ours."""
        return urlunsplit(urlsplit(self.admin_url)._replace(path="/" + _PREFIX + name))

    def create(self, name: str, *, template: str | None = None) -> str:
        """Make the database anew, as a copy of another of ours if named, and return its address."""
        self.drop(name)
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_PREFIX + name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(_PREFIX + template))
        self._admin.execute(statement)
        return self.url(name)

    def drop(self, name: str) -> None:
        """Drop the database if it is there, with all who are connected to it."""
        self._admin.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(_PREFIX + name))
        )

    def checkpoint(self) -> None:
        """Start a checkpoint and wait for it, so that full page images count for everybody alike."""
        self._admin.execute("CHECKPOINT")

    def wal_position(self) -> int:
        """Return how many bytes of write-ahead log the server has ever written, other databases included."""
        return int(self._number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def commits(self, name: str) -> int:
        """Return the transactions that were committed in a database of ours."""
        return int(
            self._number("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", _PREFIX + name)
        )

    def settings(self) -> dict[str, str]:
        """Return the server's version and the settings that decide its speed."""
        rows = self._admin.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)",
            (list(_SETTINGS_SHOWN),),
        ).fetchall()
        found: dict[str, str] = dict(rows)
        return {name: found[name] for name in _SETTINGS_SHOWN if name in found}

    def close(self) -> None:
        """Hang up."""
        self._admin.close()

    def _number(self, query: str, *parameters: object) -> float:
        row = self._admin.execute(query.encode(), parameters or None).fetchone()
        assert row is not None
        return float(row[0])


_SETTINGS_SHOWN = (
    "server_version",
    "shared_buffers",
    "max_connections",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_sync_method",
    "wal_compression",
    "wal_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "work_mem",
    "random_page_cost",
    "jit",
    "autovacuum",
    "autovacuum_naptime",
    "autovacuum_vacuum_scale_factor",
    "data_checksums",
)


def count_tables(url: str, schema: str) -> TableCounts:
    """Return the counters and sizes of a schema; waits until the backends have handed theirs in."""
    time.sleep(_COUNTERS_SECONDS)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        tuples = connection.execute(TUPLES, {"schema": schema}).fetchone()
        sizes = connection.execute(SIZES, {"schema": schema}).fetchone()
    assert tuples is not None
    assert sizes is not None
    return TableCounts(*tuples, *sizes)


def wait_until_empty(
    url: str, unfinished: str, *, seconds: float, look_seconds: float, ensure_worked_on: Callable[[], None]
) -> int:
    """Return the monotonic nanoseconds at which the query gave no row any more.

    Raises TimeoutError, or what ensure_worked_on raises, which is called while jobs are left.
    """
    deadline = time.monotonic() + seconds
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(unfinished.encode()).fetchone():
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs are left after {seconds:.0f} s: {unfinished}")
            ensure_worked_on()
            time.sleep(look_seconds)
    return time.monotonic_ns()


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot of this database open, so that no row that dies later can be removed from it."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


def multiply_rows(url: str, backlog: Backlog, *, where: str, rows: int) -> None:
    """Copy the rows that the system wrote until the table has about so many; then vacuum and analyze.

    Triggers do not fire: what they would write is among the companions.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(COLUMNS, {"table": backlog.table}).fetchall()]
        copied = [name for name in names if name in backlog.fresh or name not in ("id", "msg_id")]
        values = [
            sql.SQL(backlog.fresh[name]) if name in backlog.fresh else sql.Identifier("s", name)
            for name in copied
        ]
        table, chosen = sql.SQL(backlog.table), sql.SQL(where)
        count = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(table, chosen)
        present = connection.execute(count).fetchone()
        if not present or not present[0]:
            raise RuntimeError(f"no row of {backlog.table} fits {where}")
        copy = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s CROSS JOIN generate_series(1, {}) WHERE {}")
        columns = sql.SQL(", ").join(map(sql.Identifier, copied))
        copies = -(-rows // present[0])
        connection.execute("SET session_replication_role = replica")
        connection.execute(copy.format(table, columns, sql.SQL(", ").join(values), table, copies, chosen))
        for companion in backlog.companions:
            connection.execute(companion.encode())
        connection.execute("SET session_replication_role = origin")
        vacuum(connection)


def vacuum(connection: psycopg.Connection) -> None:
    """Leave the tables as autovacuum would once it has come by."""
    connection.execute("VACUUM (ANALYZE)")
