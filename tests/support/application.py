"""An application on the same database: connections of a role of its own, which was granted the functions."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from app.domain.job import Token
from app.store.privileges import grant

AppConnection = psycopg.AsyncConnection[Any]


class Enqueued(NamedTuple):
    """What fencepost.enqueue returns."""

    job_id: str
    created: bool


class Application:
    """What a program beside the service may do; ``table`` is a table of its own, with one column ``note``."""

    def __init__(self, url: str, role: str) -> None:
        self.url = url
        self.role = role

    @asynccontextmanager
    async def connect(self, *, isolation: str | None = None) -> AsyncIterator[AppConnection]:
        """Open a connection; with an isolation level its transactions are all of that one."""
        connection = await psycopg.AsyncConnection.connect(
            self.url, row_factory=namedtuple_row, autocommit=True
        )
        async with connection:
            # As if it had logged in with this role; a test has no passwords.
            await connection.execute(
                sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(self.role))
            )
            if isolation is not None:
                await connection.execute(
                    sql.SQL("SET default_transaction_isolation = {}").format(sql.Literal(isolation))
                )
            yield connection


@contextmanager
def role_on(url: str, *, is_granted: bool = True) -> Iterator[str]:
    """Make a role for one test, and drop it afterwards: roles belong to the whole server."""
    role = f"application_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        connection.execute("CREATE TABLE IF NOT EXISTS public.notes (note text NOT NULL)")
        connection.execute(sql.SQL("GRANT ALL ON public.notes TO {}").format(sql.Identifier(role)))
    if is_granted:
        grant(url, role)
    try:
        yield role
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


async def enqueue(connection: AppConnection, kind: str | None = "test", **parameters: Any) -> Enqueued:
    """Call fencepost.enqueue with named parameters; return its row. Objects and lists are sent as JSON."""
    names = [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in parameters]
    call = sql.SQL(", ").join([sql.SQL("%s"), *names])
    given = [json.dumps(each) if isinstance(each, (dict, list)) else each for each in parameters.values()]
    cursor = await connection.execute(
        sql.SQL("SELECT * FROM fencepost.enqueue({})").format(call), [kind, *given]
    )
    row = await cursor.fetchone()
    assert row is not None
    return Enqueued(str(row.job_id), row.created)


async def hold(connection: AppConnection, token: Token) -> Any:
    """Call fencepost.hold_lease; return its row."""
    cursor = await connection.execute(
        "SELECT * FROM fencepost.hold_lease(%s, %s)", [token.job_id, token.lease_version]
    )
    return await cursor.fetchone()


async def complete_in_sql(connection: AppConnection, token: Token, result: str | None = None) -> None:
    """Call fencepost.complete; the result is JSON text."""
    await connection.execute(
        "SELECT fencepost.complete(%s, %s, %s)", [token.job_id, token.lease_version, result]
    )


async def take_note(connection: AppConnection, note: str) -> None:
    """Write a row of the application's own."""
    await connection.execute("INSERT INTO public.notes VALUES (%s)", [note])


async def notes(connection: AppConnection) -> list[str]:
    """Return what was written by ``take_note``."""
    cursor = await connection.execute("SELECT note FROM public.notes ORDER BY note")
    return [row.note for row in await cursor.fetchall()]
