"""Chancy with its executor for coroutines."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from chancy import Chancy, Job, Queue, Worker, job

from benchmarks.peers.adapters import shell

_LOG = logging.getLogger("bench")
_LOG.setLevel(logging.ERROR)

# Chancy imports the handler by its name.
_handlers: list[shell.Handler] = []


@job(queue="bench")
async def bench(*, payload: dict[str, Any]) -> None:
    _handlers[-1](payload)


class ChancyQueue(shell.Queue):
    async def setup(self) -> None:
        async with _app(2) as app:
            await app.migrate()
            await app.declare(_queue(), upsert=True)

    async def open_producer(self, clients: int) -> None:
        self._app = _app(clients)
        await self._app.__aenter__()

    async def close_producer(self) -> None:
        await self._app.__aexit__(None, None, None)

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._app.push(bench.job.with_kwargs(payload=payload))

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        template: Job = bench.job
        if delay_seconds:
            # Its own API takes a time, so the producer's clock is what it gets.
            template = template.with_scheduled_at(datetime.now(UTC) + timedelta(seconds=delay_seconds))  # noqa: TID251
        jobs = [template.with_kwargs(payload=payload) for payload in payloads]
        async for _ in self._app.push_many(jobs, batch_size=len(jobs)):
            pass

    async def prepare_worker(self, handler: shell.Handler) -> None:
        _handlers.append(handler)
        self._app = _app(10)
        await self._app.__aenter__()
        await self._app.declare(_queue(), upsert=True)

    async def work(self) -> None:
        self._worker = Worker(self._app, register_signal_handlers=False)
        await self._worker.start()
        await self._worker.wait_for_shutdown()

    async def stop(self) -> None:
        await self._worker.stop()


def _app(connections: int) -> Chancy:
    return Chancy(
        shell.URL, min_connection_pool_size=connections, max_connection_pool_size=connections, log=_LOG
    )


def _queue() -> Queue:
    return Queue(
        "bench",
        concurrency=shell.CONF["concurrency"],
        executor="chancy.executors.asyncex.AsyncExecutor",
        polling_interval=shell.CONF["poll_seconds"],
        eager_polling=True,
    )


if __name__ == "__main__":
    shell.main(ChancyQueue)
