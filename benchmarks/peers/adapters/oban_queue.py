"""The Python port of Oban; it asks for Python 3.12 or newer."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from oban import Oban, schema, worker
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers.adapters import shell

# The handler class is made by a decorator and is instantiated by the library.
_handlers: list[shell.Handler] = []


@worker(queue="bench")
class Bench:
    async def process(self, job: Any) -> None:
        _handlers[-1](job.args)


# The decorator adds it.
_new_job: Callable[..., Any] = Bench.new  # type: ignore[attr-defined]


class ObanQueue(shell.Queue):
    async def setup(self) -> None:
        pool = await _open(2)
        await schema.install(pool)
        await pool.close()

    async def open_producer(self, clients: int) -> None:
        self._pool = await _open(clients)
        self._oban = Oban(pool=self._pool)
        await self._oban.start()

    async def close_producer(self) -> None:
        await self._oban.stop()
        await self._pool.close()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._oban.enqueue(_new_job(payload))

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        when = {"scheduled_in": delay_seconds} if delay_seconds else {}
        await self._oban.enqueue_many([_new_job(payload, **when) for payload in payloads])

    async def prepare_worker(self, handler: shell.Handler) -> None:
        _handlers.append(handler)
        self._oban = Oban(pool=await _open(10), queues={"bench": {"limit": shell.CONF["limit"]}})

    async def work(self) -> None:
        await self._oban.start()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await self._oban.stop()


async def _open(connections: int) -> AsyncConnectionPool:
    pool = AsyncConnectionPool(shell.URL, min_size=connections, max_size=connections, open=False)
    await pool.open(wait=True)
    return pool


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    shell.main(ObanQueue)
