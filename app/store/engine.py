"""Connections: how they are set up, and what a database in trouble is called.

Every connection asks for UTC, bounded waits, and plans that do not depend on how full a queue was
when they were made: queue tables are empty one minute and hold millions the next, and a plan that was
cached for the empty one (sequential scan, hash join) would stay until the next ANALYZE.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection
from psycopg.types.string import TextLoader
from sqlalchemy import Row, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.sql.elements import TextClause

from app.domain.errors import Misconfigured, Unavailable

CONNECT_TIMEOUT_SECONDS = 3
POOL_TIMEOUT_SECONDS = 3
UPKEEP_SECONDS = 60
# The server ends its own statements; this is for one that no longer says anything at all.
SILENCE_SECONDS = 10

SESSION_SETTINGS = {
    "application_name": "fencepost",
    "TimeZone": "UTC",
    "statement_timeout": "4s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "30s",
    "jit": "off",
    # Planning a read over all partitions costs twice its execution: plan once a connection.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    # A bitmap loses the order of its index: a page of a queue would read and sort the whole queue.
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

# SQLSTATE classes and codes that say "not now", beyond those the driver calls operational:
# a server that went read-only after a failover (25006), and one that is out of resources.
_NOT_NOW = ("25006", "53")
# No such table, no such schema.
_NO_SCHEMA = ("42P01", "3F000")

Statement = TextClause
Rows = Sequence[Row[Any]]

__all__ = ["Connection", "Database", "ImpatientConnection", "Rows", "Statement", "fetch", "sql"]


def sql(statement: str) -> Statement:
    """Wrap one literal statement; its names are bound as ``:name``."""
    return text(statement)


async def fetch(conn: Connection, statement: Statement, parameters: Mapping[str, object]) -> Rows:
    """Run a statement and return all its rows."""
    return (await conn.execute(statement, parameters)).all()


def parse_url(url: str) -> URL:
    """Return SQLAlchemy's form of a libpq URL, on psycopg. Raises Misconfigured, without quoting the URL."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The cause is dropped: it quotes the URL, password and all.
        raise Misconfigured(
            "the database URL cannot be parsed; are its special characters encoded?"
        ) from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise Misconfigured("the database URL must begin with postgresql://")
    return parsed.set(drivername="postgresql+psycopg")


ALLOW_UPKEEP = sql("SET LOCAL statement_timeout = '60s'")


class Database:
    """A pool of connections to one PostgreSQL.

    ``begin`` commits when its block ends and rolls back when it raises; nothing else commits.
    """

    def __init__(self, url: str, *, pool_size: int) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
        self._engine: AsyncEngine = create_async_engine(
            parse_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            connect_args={
                "options": options,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "async_creator_fn": ImpatientConnection.connect,
            },
        )
        event.listen(self._engine.sync_engine, "connect", _prepare_connection)
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """Open a transaction. Raises Unavailable when the database does not answer."""
        with _trouble():
            async with asyncio.timeout(SILENCE_SECONDS), self._engine.begin() as conn:
                yield conn

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[Connection]:
        """Open a transaction for which no request waits: its statements may take a minute."""
        with _trouble():
            async with asyncio.timeout(UPKEEP_SECONDS + SILENCE_SECONDS), self._engine.begin() as conn:
                await conn.execute(ALLOW_UPKEEP)
                yield conn

    @asynccontextmanager
    async def one_statement(self) -> AsyncIterator[Connection]:
        """Open a connection on which each statement is a transaction of its own: no BEGIN, no COMMIT."""
        with _trouble():
            async with asyncio.timeout(SILENCE_SECONDS), self._autocommit.connect() as conn:
                yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open a transaction whose reads all see one state of the database."""
        with _trouble():
            async with self._snapshot.begin() as conn:
                yield conn

    async def close(self) -> None:
        await self._engine.dispose()


class ImpatientConnection(AsyncConnection[Any]):
    """Gives up at once when whoever waits for a statement does.

    The driver would ask the server to cancel the statement and wait for up to ten seconds. We stop waiting
    only for a server that has been silent for longer than its own statement_timeout, or at the end.
    """

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the driver's signature
        del timeout
        self.pgconn.finish()


class _trouble:  # noqa: N801 - reads as a statement where it is used
    """Turn what the driver raises when the database cannot serve into Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError, OSError)):
            raise Unavailable("The database does not answer.") from error
        if isinstance(error, DBAPIError):
            state = getattr(error.orig, "sqlstate", None) or ""
            if state in _NO_SCHEMA:
                raise Misconfigured("The schema is not there; run fencepost migrate.") from error
            if error.connection_invalidated or state.startswith(_NOT_NOW):
                raise Unavailable("The database does not answer.") from error


def _prepare_connection(adapted: Any, _record: object) -> None:
    # PGTZ and PGDATESTYLE in the service's environment win over the options of the connection.
    cursor = adapted.cursor()
    cursor.execute("SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)")
    cursor.close()
    adapted.commit()
    # json and uuid leave as the text PostgreSQL holds: payloads are passed on, not decoded.
    connection: AsyncConnection = adapted.driver_connection
    for name in ("json", "uuid"):
        connection.adapters.register_loader(name, TextLoader)
