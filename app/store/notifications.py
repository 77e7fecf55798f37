"""LISTEN and NOTIFY: how replicas tell each other of work, in one channel.

Messages carry queue names and counts, never a job: NOTIFY ends below 8,000 bytes, and what is not in a
message cannot be lost with it. ``split`` cuts long lists.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator

from psycopg import Error

from app.store.connections import Connector, ServiceConnection
from app.store.engine import Connection, sql

MAX_MESSAGE_BYTES = 7_900

# A listener whose packets are dropped on the way looks open for ever; this asks it.
PING_INTERVAL_SECONDS = 5.0
PING_TIMEOUT_SECONDS = 3.0

NOTIFY = sql("SELECT pg_notify('fencepost', message) FROM unnest(CAST(:messages AS text[])) AS m (message)")

# Not through SQLAlchemy: they run on the listening connection, which is the driver's own.
LISTEN = "LISTEN fencepost"
PING = "SELECT current_setting('transaction_read_only')"


async def notify(conn: Connection, messages: list[str]) -> None:
    """Send messages; outside a transaction that wrote, so that commits do not queue for the notify lock."""
    await conn.execute(NOTIFY, {"messages": messages})


def split(mark: str, queues: Iterable[str]) -> Iterator[str]:
    """Yield messages ``mark + names joined by spaces``, each short enough; no name is cut."""
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


class BehindPooler(ConnectionError):
    """The connection goes through a transaction pooler, which passes no notifications on."""


async def listen(connector: Connector) -> AsyncGenerator[str | None]:
    """Yield None once the channel is listened to, then each message; ends only by raising ConnectionError.

    Opens a connection of its own, outside the pool. BehindPooler says that there will be no messages.
    """
    try:
        connection = await connector.connect(application_name="fencepost listen", autocommit=True)
    except Error as error:
        raise ConnectionError("cannot connect to listen") from error
    try:
        if connector.is_pooled:
            raise BehindPooler
        await connection.execute(LISTEN)
        yield None
        while True:
            async for message in connection.notifies(timeout=PING_INTERVAL_SECONDS):
                yield message.payload
            async with asyncio.timeout(PING_TIMEOUT_SECONDS):
                await _refuse_read_only(connection)
    except ConnectionError:
        raise
    except (Error, OSError, TimeoutError) as error:
        raise ConnectionError("the listening connection is gone") from error
    finally:
        await connection.close()


async def _refuse_read_only(connection: ServiceConnection) -> None:
    """Ask whether the server still takes writes: after a failover nobody sends anything to the old one."""
    row = await (await connection.execute(PING)).fetchone()
    if row is None or row[0] != "off":
        raise ConnectionError("the server listened to takes no writes any more")
