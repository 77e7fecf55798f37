"""PgQueuer on asyncpg."""

import json
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.adapters import shell


class PgqueuerQueue(shell.Queue):
    async def setup(self) -> None:
        connection = await asyncpg.connect(shell.URL)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open_producer(self, clients: int) -> None:
        self._pool = await asyncpg.create_pool(shell.URL, min_size=clients, max_size=clients)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def close_producer(self) -> None:
        await self._pool.close()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._queries.enqueue("bench", json.dumps(payload).encode(), 0)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        n = len(payloads)
        delays = [timedelta(seconds=delay_seconds)] * n if delay_seconds else None
        bodies = [json.dumps(payload).encode() for payload in payloads]
        await self._queries.enqueue(["bench"] * n, bodies, [0] * n, execute_after=delays)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(shell.URL)))

        @self._manager.entrypoint("bench")
        async def bench(job: Any) -> None:
            handler(json.loads(job.payload))

    async def work(self) -> None:
        batch = shell.CONF["batch"]
        await self._manager.run(
            batch_size=batch, max_concurrent_tasks=2 * batch, dequeue_timeout=timedelta(seconds=30)
        )

    async def stop(self) -> None:
        self._manager.shutdown.set()


if __name__ == "__main__":
    shell.main(PgqueuerQueue)
