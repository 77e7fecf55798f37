"""The pool: transactions on it, and what a database in trouble is called.

begin          a transaction, committed at the end of its block
one_statement  each statement a transaction of its own
snapshot       reads that all see one state
upkeep         a transaction that may take its time
"""

import asyncio
import functools
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy import event, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement, TextClause

from app.domain.errors import FencepostError, Misconfigured, RolledBack, Unavailable
from app.store.connections import SETTINGS, Connector, ServiceConnection

POOL_TIMEOUT_SECONDS = 3
UPKEEP_SECONDS = 60
# The wait for a connection, the statements and the commit together: a request has to be answered within
# five seconds. It also ends what a server that no longer says anything would hold for ever.
TRANSACTION_SECONDS = 4.5

# SQLSTATE of a server that takes no writes, as the old one does after a failover.
_READ_ONLY = "25006"
# A server that is out of resources says "not now", beyond what the driver calls operational.
_NOT_NOW = ("53",)
# Of transactions that got into each other's way the server has undone one: serialization, deadlock.
_UNDONE = ("40001", "40P01", _READ_ONLY)
_SILENCES = 2
# No such table, no such schema.
_NO_SCHEMA = ("42P01", "3F000")

Statement = TextClause
Rows = Sequence[Any]

__all__ = ["Connection", "Database", "Rows", "Statement", "sql"]

_NUMBERED = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


def sql(statement: str) -> Statement:
    """Wrap one literal statement; its names are bound as ``:name``."""
    return text(statement)


class Connection:
    """One connection of the pool, for as long as it is ours.

    SQLAlchemy keeps the pool and composes the statements that have many forms; the driver runs them. To run
    them through SQLAlchemy's own connection takes five times as long, most of the time of a small call.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: ServiceConnection) -> None:
        self._driver = driver

    async def execute(self, statement: ClauseElement, parameters: Mapping[str, object] | None = None) -> Rows:
        """Run a statement and return its rows, named tuples; a write without RETURNING has none."""
        is_literal = isinstance(statement, TextClause)
        compiled = _compiled_once(statement) if is_literal else compiled_statement(statement)
        names = compiled.positiontup
        values = None
        if names:
            given = parameters if is_literal else compiled.params
            values = [given[name] for name in names]  # type: ignore[index]  # names come with parameters
        return await self.run(compiled.string.encode(), values)

    async def run(self, query: bytes, values: Sequence[object] | None = None) -> Rows:
        """Run a text of the driver's own, its parameters written $1, $2 and so on."""
        cursor = psycopg.AsyncRawCursor(self._driver, row_factory=namedtuple_row)
        await cursor.execute(query, values)
        return await cursor.fetchall() if cursor.description is not None else ()

    async def copy(self, statement: str, rows: str) -> None:
        """Run a COPY FROM STDIN in text format."""
        async with self._driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            await copy.write(rows)


def compiled_statement(statement: ClauseElement) -> SQLCompiler:
    """Return the text with $1 and so on; ``positiontup`` has the names, ``params`` the values it carries."""
    compiled = statement.compile(dialect=_NUMBERED, compile_kwargs={"render_postcompile": True})
    if not isinstance(compiled, SQLCompiler):
        raise TypeError("not a statement that can be run")
    return compiled


_compiled_once = functools.lru_cache(maxsize=256)(compiled_statement)


ALLOW_UPKEEP = sql("SET LOCAL statement_timeout = '60s'")

# Behind a transaction pooler, where settings hold for one transaction.
ASK_AGAIN = sql("""
SELECT set_config(name, value, true)
FROM unnest(CAST(:names AS text[]), CAST(:values AS text[])) AS s (name, value)
""")
_ASKED = {"names": list(SETTINGS), "values": list(SETTINGS.values())}

# Whatever the server's or the role's default is.
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_SNAPSHOT = b"BEGIN ISOLATION LEVEL REPEATABLE READ"


class Database:
    """A pool of connections to one PostgreSQL.

    ``begin`` commits when its block ends and rolls back when it raises; nothing else commits. Each raises
    Unavailable when the database does not answer, and RolledBack when nothing of the block was kept and
    the same may well succeed if it is run again.
    """

    def __init__(self, url: str, *, pool_size: int) -> None:
        self._connector = Connector(url)
        self._eras = _Eras()
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=functools.partial(self._connector.connect, autocommit=True),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            # What is not idle when it comes back is closed: see _put_right.
            pool_reset_on_return=None,
        )
        self._eras.watch(self._engine.sync_engine)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """Open a transaction."""
        async with self._transaction(_BEGIN, seconds=TRANSACTION_SECONDS) as conn:
            yield conn

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[Connection]:
        """Open a transaction for which no request waits: its statements may take a minute."""
        async with self._transaction(_BEGIN, seconds=UPKEEP_SECONDS + TRANSACTION_SECONDS) as conn:
            await conn.execute(ALLOW_UPKEEP)
            yield conn

    @asynccontextmanager
    async def one_statement(self) -> AsyncIterator[Connection]:
        """Open a connection on which each statement is a transaction of its own: no BEGIN, no COMMIT.

        For reads, and for writes that may be done twice.
        """
        async with self._autocommitting(is_committing=False) as conn:
            yield conn

    @asynccontextmanager
    async def one_write(self) -> AsyncIterator[Connection]:
        """Open a connection for one statement that writes, committed when it returns; reads may follow.

        Two round trips less than ``begin``. A connection that is lost leaves the write in doubt: Unavailable.
        """
        async with self._autocommitting(is_committing=True) as conn:
            yield conn

    @asynccontextmanager
    async def _autocommitting(self, *, is_committing: bool) -> AsyncIterator[Connection]:
        if self._connector.is_pooled:
            async with self.begin() as conn:
                yield conn
        else:
            with _Trouble(is_committing=is_committing) as trouble:
                async with (
                    asyncio.timeout(TRANSACTION_SECONDS) as trouble.limit,
                    self._borrowed(trouble) as conn,
                ):
                    yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open a transaction whose reads all see one state of the database; the caller bounds its time."""
        async with self._transaction(_BEGIN_SNAPSHOT, seconds=None, is_read=True) as conn:
            yield conn

    @asynccontextmanager
    async def _transaction(
        self, begin: bytes, *, seconds: float | None, is_read: bool = False
    ) -> AsyncIterator[Connection]:
        with _Trouble() as trouble:
            async with asyncio.timeout(seconds) as trouble.limit, self._borrowed(trouble) as conn:
                await conn.run(begin)
                if self._connector.is_pooled:
                    await conn.execute(ASK_AGAIN, _ASKED)
                yield conn
                trouble.is_committing = not is_read
                await conn.run(b"COMMIT")

    @asynccontextmanager
    async def _borrowed(self, trouble: "_Trouble") -> AsyncIterator[Connection]:
        pooled = await self._engine.raw_connection()
        driver: ServiceConnection = pooled.driver_connection  # type: ignore[assignment]  # the Connector's
        trouble.driver = driver
        try:
            yield Connection(driver)
            self._eras.note_success()
        except BaseException as error:
            self._eras.note_error(error, driver, pooled)
            if not isinstance(error, Exception):
                # Cancelled: nobody waits any more, nor for a ROLLBACK.
                driver.pgconn.finish()
            raise
        finally:
            await _put_right(driver, pooled)

    async def close(self) -> None:
        await self._engine.dispose()


async def _put_right(driver: ServiceConnection, pooled: PoolProxiedConnection) -> None:
    """Give a connection back, its transaction rolled back where one is open."""
    try:
        if driver.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            await driver.execute(b"ROLLBACK")
    except psycopg.Error:
        driver.pgconn.finish()
    except BaseException:
        driver.pgconn.finish()
        raise
    finally:
        if driver.closed:
            pooled.info["era"] = _LOST
        pooled.close()


class DatabaseFault(Exception):
    """A statement failed through a fault of ours.

    Its text goes into the log, so it has names only: what the server says may quote a payload.
    """

    def __init__(self, error: psycopg.Error) -> None:
        names = [getattr(error.diag, name) for name in ("sqlstate", "table_name", "constraint_name")]
        super().__init__(" ".join([type(error).__name__, *filter(None, names)]))


class _Trouble:
    """Turns what the driver raises when the database cannot serve into Unavailable or RolledBack."""

    def __init__(self, *, is_committing: bool = False) -> None:
        self.is_committing = is_committing
        self.limit: asyncio.Timeout | None = None
        self.driver: ServiceConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # SQLAlchemy wraps what is raised while it opens its first connection.
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, psycopg.Error):
            state = cause.sqlstate or ""
            is_lost = self.driver is not None and self.driver.closed
            if state in _NO_SCHEMA:
                raise Misconfigured("The schema is not there; run fencepost migrate.") from cause
            # Without a COMMIT on its way a lost connection has ended in a rollback.
            if state in _UNDONE or (is_lost and not self.is_committing):
                raise RolledBack("The database undid the transaction.") from cause
            if is_lost or state.startswith(_NOT_NOW):
                raise Unavailable("The database does not answer.") from cause
        if isinstance(
            cause, (psycopg.OperationalError, psycopg.InterfaceError, DBAPIError, PoolTimeoutError, OSError)
        ):
            raise Unavailable("The database does not answer.") from cause
        # The first look at a server raises errors of its own when the time limit cuts it short.
        is_over = self.limit is not None and self.limit.expired()
        if is_over and isinstance(error, Exception) and not isinstance(error, FencepostError):
            raise Unavailable("The database does not answer.") from error
        if isinstance(cause, psycopg.Error):
            raise DatabaseFault(cause) from None


_LOST = -1


class _Eras:
    """Lets go of every connection of the pool once one of them is found to be lost.

    A server that takes no writes any more counts as lost, and so does one that lets two transactions in a row
    run out of time. SQLAlchemy would compare times of the process's own clock, and connect anew for each call
    after that was set back.
    """

    def __init__(self) -> None:
        self._current = 0
        self._silences = 0

    def watch(self, engine: Engine) -> None:
        event.listen(engine, "connect", self._begin)
        event.listen(engine, "checkout", self._refuse_older)

    def _begin(self, _connection: object, record: ConnectionPoolEntry) -> None:
        record.info["era"] = self._current

    def _refuse_older(self, _connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if record.info["era"] != self._current or _has_word(record):
            # The pool's own word for "connect anew".
            raise DisconnectionError

    def note_success(self) -> None:
        self._silences = 0

    def note_error(
        self, error: BaseException, driver: ServiceConnection, pooled: PoolProxiedConnection
    ) -> None:
        """Look whether an error tells of a server that is lost, and not of this one call."""
        is_read_only = isinstance(error, psycopg.Error) and error.sqlstate == _READ_ONLY
        if not (driver.closed or is_read_only):
            return
        if not isinstance(error, Exception):
            # Cancelled: it may have been this one statement that took too long.
            self._silences += 1
            if self._silences < _SILENCES:
                return
        # Others that were lost with it tell nothing new.
        if pooled.info["era"] == self._current:
            self._current += 1
            self._silences = 0


def _has_word(record: ConnectionPoolEntry) -> bool:
    """Tell whether the server has said something unasked: on an idle connection that is its farewell."""
    connection = record.driver_connection
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)  # type: ignore[union-attr]  # psycopg's own
    return bool(poller.poll(0))
