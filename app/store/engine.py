"""The pool: transactions on it, and what a database in trouble is called.

begin          a transaction, committed at the end of its block
one_statement  each statement a transaction of its own
snapshot       reads that all see one state
upkeep         a transaction that may take its time
"""

import asyncio
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from sqlalchemy import Row, event, text
from sqlalchemy.engine import Engine, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.elements import TextClause

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
Rows = Sequence[Row[Any]]

__all__ = ["Connection", "Database", "Rows", "Statement", "fetch", "sql"]


def sql(statement: str) -> Statement:
    """Wrap one literal statement; its names are bound as ``:name``."""
    return text(statement)


async def fetch(conn: Connection, statement: Statement, parameters: Mapping[str, object]) -> Rows:
    """Run a statement and return all its rows."""
    return (await conn.execute(statement, parameters)).all()


async def copy_rows(conn: Connection, statement: str, rows: str) -> None:
    """Run a COPY FROM STDIN in text format; needs a transaction. Errors are those of any statement."""
    pooled = await conn.get_raw_connection()
    driver: ServiceConnection = pooled.driver_connection  # type: ignore[assignment]  # the Connector's
    try:
        async with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            await copy.write(rows)
    except psycopg.Error as error:
        # SQLAlchemy has no COPY, so what it does with an error of the driver is done here.
        is_lost = driver.closed or error.sqlstate == _READ_ONLY
        if is_lost:
            pooled.info["eras"].end(pooled.info["era"])
            await conn.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, psycopg.Error, connection_invalidated=is_lost, dialect=conn.dialect
        ) from error
    except BaseException:
        # Cancelled in the middle: the connection is of no more use.
        await conn.invalidate()
        raise


ALLOW_UPKEEP = sql("SET LOCAL statement_timeout = '60s'")

# Behind a transaction pooler, where settings hold for one transaction.
ASK_AGAIN = sql("""
SELECT set_config(name, value, true)
FROM unnest(CAST(:names AS text[]), CAST(:values AS text[])) AS s (name, value)
""")
_ASKED = {"names": list(SETTINGS), "values": list(SETTINGS.values())}


class Database:
    """A pool of connections to one PostgreSQL.

    ``begin`` commits when its block ends and rolls back when it raises; nothing else commits. Each raises
    Unavailable when the database does not answer, and RolledBack when nothing of the block was kept and
    the same may well succeed if it is run again.
    """

    def __init__(self, url: str, *, pool_size: int) -> None:
        self._connector = Connector(url)
        self._engine: AsyncEngine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self._connector.connect,
            # Whatever the server's or the role's default is.
            isolation_level="READ COMMITTED",
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
        )
        _Eras().watch(self._engine.sync_engine)
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Connection]:
        """Open a transaction."""
        async with self._transaction(self._engine, seconds=TRANSACTION_SECONDS) as conn:
            yield conn

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[Connection]:
        """Open a transaction for which no request waits: its statements may take a minute."""
        async with self._transaction(self._engine, seconds=UPKEEP_SECONDS + TRANSACTION_SECONDS) as conn:
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
                    self._autocommit.connect() as conn,
                ):
                    yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open a transaction whose reads all see one state of the database; the caller bounds its time."""
        async with self._transaction(self._snapshot, seconds=None, is_read=True) as conn:
            yield conn

    @asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, *, seconds: float | None, is_read: bool = False
    ) -> AsyncIterator[Connection]:
        with _Trouble() as trouble:
            async with asyncio.timeout(seconds) as trouble.limit, engine.begin() as conn:
                if self._connector.is_pooled:
                    await conn.execute(ASK_AGAIN, _ASKED)
                yield conn
                trouble.is_committing = not is_read

    async def close(self) -> None:
        await self._engine.dispose()


class DatabaseFault(Exception):
    """A statement failed through a fault of ours.

    Its text goes into the log, so it has names only: what the server says may quote a payload.
    """

    def __init__(self, error: DBAPIError) -> None:
        diagnosis = getattr(error.orig, "diag", None)
        names = [getattr(diagnosis, name, None) for name in ("sqlstate", "table_name", "constraint_name")]
        super().__init__(" ".join([type(error.orig).__name__, *filter(None, names)]))


class _Trouble:
    """Turns what the driver raises when the database cannot serve into Unavailable or RolledBack."""

    def __init__(self, *, is_committing: bool = False) -> None:
        self.is_committing = is_committing
        self.limit: asyncio.Timeout | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, DBAPIError):
            state = getattr(error.orig, "sqlstate", None) or ""
            if state in _NO_SCHEMA:
                raise Misconfigured("The schema is not there; run fencepost migrate.") from error
            # Without a COMMIT on its way a lost connection has ended in a rollback.
            if state in _UNDONE or (error.connection_invalidated and not self.is_committing):
                raise RolledBack("The database undid the transaction.") from error
            if error.connection_invalidated or state.startswith(_NOT_NOW):
                raise Unavailable("The database does not answer.") from error
        if isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError, OSError)):
            raise Unavailable("The database does not answer.") from error
        # SQLAlchemy's first look at a server raises errors of its own when the time limit cuts it short.
        is_over = self.limit is not None and self.limit.expired()
        if is_over and isinstance(error, Exception) and not isinstance(error, FencepostError):
            raise Unavailable("The database does not answer.") from error
        if isinstance(error, DBAPIError):
            raise DatabaseFault(error) from None


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
        event.listen(engine, "handle_error", self._note_error)
        event.listen(engine, "connect", self._begin)
        event.listen(engine, "checkout", self._refuse_older)
        event.listen(engine, "checkin", self._note_success)

    def _begin(self, _connection: object, record: ConnectionPoolEntry) -> None:
        record.info["eras"], record.info["era"] = self, self._current

    def _refuse_older(self, _connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if record.info["era"] != self._current or _has_word(record):
            # The pool's own word for "connect anew".
            raise DisconnectionError

    def _note_success(self, connection: object | None, _record: ConnectionPoolEntry) -> None:
        if connection is not None:
            self._silences = 0

    def _note_error(self, context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
            context.is_disconnect = True
        if not context.is_disconnect or context.connection is None:
            return
        context.invalidate_pool_on_disconnect = False
        if not isinstance(context.original_exception, Exception):
            # Cancelled: it may have been this one statement that took too long.
            self._silences += 1
            if self._silences < _SILENCES:
                return
        self.end(context.connection.info["era"])

    def end(self, era: int) -> None:
        """Let go of the connections of an era, since one of them was lost; others of it tell nothing new."""
        if era == self._current:
            self._current += 1
            self._silences = 0


def _has_word(record: ConnectionPoolEntry) -> bool:
    """Tell whether the server has said something unasked: on an idle connection that is its farewell."""
    connection = record.driver_connection
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)  # type: ignore[union-attr]  # psycopg's own
    return bool(poller.poll(0))
