"""Fencepost over its HTTP port, in the checkout's own environment; the driver has started the service."""

import asyncio
from typing import Any

import msgspec

from benchmarks.peers.adapters import shell
from benchmarks.peers.adapters.http import Connection

_WAIT_SECONDS = 30


class _Leased(msgspec.Struct):
    id: str
    lease_version: int
    payload: dict[str, Any]


class _Grant(msgspec.Struct):
    jobs: list[_Leased]


class _Finished(msgspec.Struct, omit_defaults=True):
    job_id: str
    lease_version: int


_GRANTS = msgspec.json.Decoder(_Grant)


class FencepostQueue(shell.Queue):
    """Several connections, each with one call under way.

    Settings: `connections` and `max_jobs` of the worker. `combined` settles finished jobs within the call
    that leases the next ones, which saves a round trip and a transaction.
    """

    async def open_producer(self, clients: int) -> None:
        self._opened = [await Connection.open(shell.URL) for _ in range(clients)]
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()
        for connection in self._opened:
            self._idle.put_nowait(connection)

    async def close_producer(self) -> None:
        for connection in self._opened:
            connection.close()

    async def enqueue_one(self, payload: shell.Payload) -> None:
        connection = await self._idle.get()
        job = {"kind": "bench", "queue": "bench", "payload": payload}
        await connection.post("/v1/jobs", msgspec.json.encode(job), expect=201)
        self._idle.put_nowait(connection)

    async def enqueue_many(self, payloads: list[shell.Payload], *, delay_seconds: int) -> None:
        common = {"kind": "bench", "queue": "bench"} | (
            {"delay_seconds": delay_seconds} if delay_seconds else {}
        )
        body = msgspec.json.encode({"jobs": [common | {"payload": payload} for payload in payloads]})
        await self._opened[0].post("/v1/jobs/batch", body, expect=201)

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._handler = handler
        self._workers = [await Connection.open(shell.URL) for _ in range(shell.CONF["connections"])]

    async def work(self) -> None:
        settle_and_lease = _one_by_one if shell.CONF["max_jobs"] == 1 else _apart
        if shell.CONF.get("combined"):
            settle_and_lease = _combined
        await asyncio.gather(*(self._loop(each, settle_and_lease) for each in self._workers))

    async def _loop(self, connection: Connection, settle_and_lease: Any) -> None:
        wish = {
            "worker_id": "bench",
            "queues": ["bench"],
            "max_jobs": shell.CONF["max_jobs"],
            "wait_seconds": _WAIT_SECONDS,
        }
        finished: list[_Finished] = []
        while True:
            leased = _GRANTS.decode(await settle_and_lease(connection, wish, finished)).jobs
            for job in leased:
                self._handler(job.payload)
            finished = [_Finished(job.id, job.lease_version) for job in leased]


async def _apart(connection: Connection, wish: dict[str, Any], finished: list[_Finished]) -> bytes:
    """Settle, then lease: two calls."""
    if finished:
        await connection.post("/v1/leases/complete", msgspec.json.encode({"items": finished}), expect=200)
    return await connection.post("/v1/leases", msgspec.json.encode(wish), expect=200)


async def _combined(connection: Connection, wish: dict[str, Any], finished: list[_Finished]) -> bytes:
    """Settle and lease in one call."""
    whole = wish | {"complete": finished} if finished else wish
    return await connection.post("/v1/leases", msgspec.json.encode(whole), expect=200)


async def _one_by_one(connection: Connection, wish: dict[str, Any], finished: list[_Finished]) -> bytes:
    """Settle one job by its own route, then lease the next one."""
    for job in finished:
        body = msgspec.json.encode({"lease_version": job.lease_version})
        await connection.post(f"/v1/jobs/{job.job_id}/complete", body, expect=200)
    return await connection.post("/v1/leases", msgspec.json.encode(wish), expect=200)


if __name__ == "__main__":
    shell.main(FencepostQueue)
