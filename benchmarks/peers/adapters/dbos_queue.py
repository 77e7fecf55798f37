"""DBOS Transact: a queue of workflows, each in a thread."""

import asyncio
import logging
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.peers.adapters import shell

# The workflow is registered when this module is loaded.
_handlers: list[shell.Handler] = []


@DBOS.workflow(name="bench")
def bench(payload: dict[str, Any]) -> None:
    _handlers[-1](payload)


class DbosQueue(shell.Queue):
    async def setup(self) -> None:
        await asyncio.to_thread(_launch)
        await asyncio.to_thread(DBOS.destroy)

    async def open_producer(self, clients: int) -> None:
        self._client = DBOSClient(
            system_database_url=shell.URL, system_database_pool_size=clients, application_name="bench"
        )
        self._engine = sqlalchemy.create_engine(shell.URL.replace("postgresql://", "postgresql+psycopg://"))

    async def close_producer(self) -> None:
        self._client.destroy()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._client.enqueue_async(_options(0), payload)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        await asyncio.to_thread(self._enqueue_in_one_transaction, payloads, delay_seconds)

    def _enqueue_in_one_transaction(self, payloads: list[shell.Payload], delay_seconds: int) -> None:
        """Stand in for the bulk call that it does not have."""
        with self._engine.begin() as connection:
            for payload in payloads:
                self._client.enqueue_in_transaction(connection, _options(delay_seconds), payload)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        _handlers.append(handler)

    async def work(self) -> None:
        await asyncio.to_thread(_launch)
        await asyncio.Event().wait()


def _options(delay_seconds: int) -> Any:
    options: dict[str, Any] = {"workflow_name": "bench", "queue_name": "bench", "app_version": "1"}
    if delay_seconds:
        options["delay_seconds"] = delay_seconds
    return options


def _launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": shell.URL,
            "sys_db_pool_size": shell.CONF["pool"],
            "application_version": "1",
            "executor_id": "bench",
            "console_log_level": "ERROR",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(
        "bench",
        worker_concurrency=shell.CONF["concurrency"],
        polling_interval_sec=shell.CONF["poll_seconds"],
        on_conflict="always_update",
    )


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    shell.main(DbosQueue)
