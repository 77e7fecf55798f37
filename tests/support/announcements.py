"""What replicas tell each other through the database, overheard: it shows that a poll is parked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from tests.support.waiting import DEADLINE_SECONDS


@asynccontextmanager
async def parked(database_url: str, *queues: str) -> AsyncIterator[None]:
    """Wait at the end until replicas have announced that polls wait for each of these queues.

    A replica announces a queue when its first poll for it parks, so the polls of the block need queues of
    their own.
    """
    missing = set(queues)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("LISTEN fencepost")
        yield
        async for message in connection.notifies(timeout=DEADLINE_SECONDS):
            said = message.payload.partition(" ")[2]
            if said.startswith("+"):
                missing -= set(said[1:].split())
            if not missing:
                return
    raise AssertionError(f"no poll for {', '.join(sorted(missing))} was announced")
