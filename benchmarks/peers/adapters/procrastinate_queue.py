"""Procrastinate."""

import logging

from procrastinate import App, PsycopgConnector

from benchmarks.peers.adapters import shell


class ProcrastinateQueue(shell.Queue):
    async def setup(self) -> None:
        app = self._make_app(2)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open_producer(self, clients: int) -> None:
        self._app = self._make_app(clients)
        await self._app.open_async()

    async def close_producer(self) -> None:
        await self._app.close_async()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await self._task.defer_async(**payload)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        task = self._task.configure(schedule_in={"seconds": delay_seconds}) if delay_seconds else self._task
        await task.batch_defer_async(*payloads)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._handler = handler
        self._app = self._make_app(shell.CONF["pool"])
        await self._app.open_async()

    async def work(self) -> None:
        await self._app.run_worker_async(
            queues=["bench"],
            concurrency=shell.CONF["concurrency"],
            wait=True,
            listen_notify=True,
            install_signal_handlers=False,
            delete_jobs="never",
        )

    def _make_app(self, connections: int) -> App:
        app = App(connector=PsycopgConnector(conninfo=shell.URL, min_size=connections, max_size=connections))

        @app.task(name="bench", queue="bench")
        async def bench(**payload: object) -> None:
            self._handler(payload)

        self._task = bench
        return app


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    shell.main(ProcrastinateQueue)
