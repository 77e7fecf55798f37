"""RQ on Redis; its simple worker, which does not fork."""

import asyncio
import logging
import sys

import redis
from rq import Queue, SimpleWorker
from rq.timeouts import BaseDeathPenalty

from benchmarks.peers.adapters import shell

# RQ imports the handler by its name.
_handlers: list[shell.Handler] = []


def bench(payload: shell.Payload) -> None:
    _handlers[-1](payload)


class _NoTimeout(BaseDeathPenalty):
    """The worker runs in a side thread here, where job timeouts by SIGALRM are not available."""

    def setup_death_penalty(self) -> None:
        """Leave the alarm alone."""

    def cancel_death_penalty(self) -> None:
        """Nothing was set."""


class _Worker(SimpleWorker):
    death_penalty_class = _NoTimeout

    def _install_signal_handlers(self) -> None:
        """Signals are the main thread's affair."""


class RqQueue(shell.Queue):
    async def setup(self) -> None:
        redis.Redis.from_url(shell.URL).flushall()

    async def open_producer(self, clients: int) -> None:
        del clients
        self._queue = Queue("bench", connection=redis.Redis.from_url(shell.URL))

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await asyncio.to_thread(self._queue.enqueue, bench, payload)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        if delay_seconds:
            raise NotImplementedError("systems outside PostgreSQL are not measured with a backlog")
        jobs = [Queue.prepare_data(bench, args=(payload,)) for payload in payloads]
        await asyncio.to_thread(self._queue.enqueue_many, jobs)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        _handlers.append(handler)
        connection = redis.Redis.from_url(shell.URL)
        self._worker = _Worker([Queue("bench", connection=connection)], connection=connection)

    async def work(self) -> None:
        await asyncio.to_thread(self._worker.work, logging_level="ERROR")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    # The producer pickles the handler's name, which must be this module's in every process.
    bench.__module__ = "benchmarks.peers.adapters.rq_queue"
    sys.modules[bench.__module__] = sys.modules["__main__"]
    shell.main(RqQueue)
