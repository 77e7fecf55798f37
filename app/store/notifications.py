"""LISTEN and NOTIFY: how replicas tell each other of work, in one channel.

Messages carry queue names only, never a job: NOTIFY ends below 8,000 bytes, and what is not in a
message cannot be lost with it. ``split`` cuts long lists.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator

from psycopg import Error
from sqlalchemy.engine import URL

from app.store.engine import CONNECT_TIMEOUT_SECONDS, Connection, ImpatientConnection, parse_url, sql

MAX_MESSAGE_BYTES = 7_900

# A listener whose packets are dropped on the way looks open for ever; this asks it.
PING_INTERVAL_SECONDS = 5.0
PING_TIMEOUT_SECONDS = 3.0

NOTIFY = sql("SELECT pg_notify('fencepost', message) FROM unnest(CAST(:messages AS text[])) AS m (message)")


async def notify(conn: Connection, messages: list[str]) -> None:
    """Send messages; outside a transaction that wrote, so that commits do not queue for the notify lock."""
    await conn.execute(NOTIFY, {"messages": messages})


def split(mark: str, queues: Iterable[str]) -> Iterator[str]:
    """Yield messages ``mark + names joined by spaces``, each short enough; names hold no space."""
    names: list[str] = []
    size = 0
    for queue in queues:
        if names and size + len(queue) + 1 > MAX_MESSAGE_BYTES:
            yield mark + " ".join(names)
            names, size = [], 0
        names.append(queue)
        size += len(queue) + 1
    if names:
        yield mark + " ".join(names)


async def listen(url: str) -> AsyncGenerator[str | None]:
    """Yield None once the channel is listened to, then each message; ends only by raising ConnectionError.

    Opens a connection of its own, outside the pool.
    """
    try:
        connection = await ImpatientConnection.connect(
            _conninfo(parse_url(url)),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            application_name="fencepost listen",
        )
    except Error as error:
        raise ConnectionError("cannot connect to listen") from error
    try:
        await connection.execute("LISTEN fencepost")
        yield None
        while True:
            async for message in connection.notifies(timeout=PING_INTERVAL_SECONDS):
                yield message.payload
            async with asyncio.timeout(PING_TIMEOUT_SECONDS):
                await connection.execute("SELECT 1")
    except (Error, OSError, TimeoutError) as error:
        raise ConnectionError("the listening connection is gone") from error
    finally:
        await connection.close()


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
