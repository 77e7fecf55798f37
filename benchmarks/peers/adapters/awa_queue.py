"""Awa: a Rust core with handlers in Python."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import awa

from benchmarks.peers.adapters import shell


@dataclass
class Bench:
    i: int
    t: int | None = None


class AwaQueue(shell.Queue):
    async def setup(self) -> None:
        client = awa.AsyncClient(shell.URL)
        await client.migrate()
        # Its documents tell a fresh database to take this step, which turns its newer storage on.
        transaction = await client.transaction()
        await transaction.fetch_one("select awa.storage_auto_finalize_if_fresh('awa') as ok")
        await transaction.commit()
        await client.close()

    async def open_producer(self, clients: int) -> None:
        self._client = awa.AsyncClient(shell.URL, max_connections=max(2, clients))

    async def close_producer(self) -> None:
        await self._client.close()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._client.insert(Bench(**payload), queue="bench")

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        jobs = [Bench(**payload) for payload in payloads]
        when: dict[str, Any] = {}
        if delay_seconds:
            # Its own API takes a time, so the producer's clock is what it gets.
            when = {"run_at": datetime.now(UTC) + timedelta(seconds=delay_seconds)}  # noqa: TID251
        await self._client.enqueue_many_copy(jobs, queue="bench", **when)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._client = awa.AsyncClient(shell.URL, max_connections=shell.CONF.get("pool", 20))

        @self._client.task(Bench, queue="bench")
        async def bench(job: Any) -> None:
            handler({"i": job.args.i, "t": job.args.t})

    async def work(self) -> None:
        queue = {"name": "bench", "max_workers": shell.CONF["max_workers"]}
        if "claim_batch_size" in shell.CONF:
            queue["claim_batch_size"] = shell.CONF["claim_batch_size"]
        await self._client.start([queue], poll_interval_ms=200)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await self._client.shutdown(2000)


if __name__ == "__main__":
    shell.main(AwaQueue)
