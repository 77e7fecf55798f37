"""PGMQ, a queue without a worker: the loop is the read, handle, delete of its README."""

import asyncio

import psycopg
from pgmq.async_queue import PGMQueue
from pgmq.install import get_embedded_install_sql

from benchmarks.peers.adapters import shell


class PgmqQueue(shell.Queue):
    async def setup(self) -> None:
        async with await psycopg.AsyncConnection.connect(shell.URL, autocommit=True) as connection:
            await connection.execute(get_embedded_install_sql())
        queue = await _open(1)
        await queue.create_queue("bench")
        await queue.close()

    async def open_producer(self, clients: int) -> None:
        self._queue = await _open(clients)

    async def close_producer(self) -> None:
        await self._queue.close()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._queue.send("bench", payload)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        await self._queue.send_batch("bench", payloads, delay=delay_seconds or None)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._handler = handler
        self._queue = await _open(shell.CONF["loops"] + 1)

    async def work(self) -> None:
        await asyncio.gather(*(self._loop() for _ in range(shell.CONF["loops"])))

    async def _loop(self) -> None:
        while True:
            messages = await self._queue.read_with_poll(
                "bench",
                vt=60,
                qty=shell.CONF["batch"],
                max_poll_seconds=5,
                poll_interval_ms=shell.CONF.get("poll_milliseconds", 100),
            )
            for message in messages or ():
                self._handler(message.message)
            if messages:
                await self._queue.delete_batch("bench", [message.msg_id for message in messages])


async def _open(connections: int) -> PGMQueue:
    queue = PGMQueue(conn_string=shell.URL, pool_size=connections, init_extension=False, vt=60)
    await queue.init()
    return queue


if __name__ == "__main__":
    shell.main(PgmqQueue)
