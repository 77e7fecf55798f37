"""The command line of every Python adapter.

An adapter subclasses Queue and hands the class to main. argv: an operation, and its arguments in JSON.

setup    {}                         install the schema, or empty a store that has none
enqueue  {n, clients}               one job a call from `clients` concurrent callers
bulk     {n, batch, delay_seconds}  the system's own call for many; delay_seconds 0 means ready at once
drain    {n}                        a worker on a filled queue; tells when the n-th handler has run
watch    {n}                        a worker on an empty queue; tells of n jobs how long they were under way
pace     {n, per_second, clients}   jobs at fixed times, whatever the answers do; each knows when it was sent

PEER_URL is where the system is, PEER_CONF its settings. Events are JSON lines on stdout; their times are
nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. "stop" on stdin ends a worker.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

URL = os.environ.get("PEER_URL", "")
CONF: dict[str, Any] = json.loads(os.environ.get("PEER_CONF", "{}"))

Payload = dict[str, Any]
Handler = Callable[[Payload], None]

_STOP_SECONDS = 5


def emit(event: str, **members: object) -> None:
    """Tell the driver."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic_ns(), **members}) + "\n")
    sys.stdout.flush()


class Queue:
    """What an adapter implements; one instance lives in one process and is a producer or a worker."""

    async def setup(self) -> None:
        """Make an empty database ready for the system."""

    async def open_producer(self, clients: int) -> None:
        """Get ready for `clients` concurrent callers."""

    async def close_producer(self) -> None:
        """Give back what open_producer took."""

    async def enqueue_one(self, payload: Payload) -> None:
        """Enqueue one job, and return when the system says that it is kept."""
        raise NotImplementedError

    async def enqueue_many(self, payloads: list[Payload], *, delay_seconds: int) -> None:
        """Enqueue all by the system's best call for many; due after delay_seconds."""
        raise NotImplementedError

    async def prepare_worker(self, handler: Handler) -> None:
        """Do what a worker does before it asks for its first job."""

    async def work(self) -> None:
        """Hand every job to the handler until cancelled."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Bring work to its end in order, where the system knows how."""


def main(make_queue: Callable[[], Queue]) -> None:
    """Run the operation that the command line names."""
    operation, arguments = sys.argv[1], json.loads(sys.argv[2])
    uvloop.run(_run(make_queue(), operation, arguments))


async def _run(queue: Queue, operation: str, arguments: dict[str, Any]) -> None:
    match operation:
        case "setup":
            await queue.setup()
            emit("RESULT")
        case "enqueue":
            await _enqueue(queue, **arguments)
        case "bulk":
            await _bulk(queue, **arguments)
        case "pace":
            await _pace(queue, **arguments)
        case "drain":
            await _work(queue, _Counter(**arguments))
        case "watch":
            await _work(queue, _Watch(**arguments))
        case _:
            raise SystemExit(f"unknown operation {operation}")


async def _enqueue(queue: Queue, *, n: int, clients: int) -> None:
    await _open(queue, clients)
    left = iter(range(n))

    async def client() -> None:
        for i in left:
            await queue.enqueue_one({"i": i})

    started_at = time.monotonic_ns()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = (time.monotonic_ns() - started_at) / 1e9
    await queue.close_producer()
    emit("RESULT", seconds=seconds, n=n)


async def _bulk(queue: Queue, *, n: int, batch: int, delay_seconds: int) -> None:
    await queue.open_producer(1)
    started_at = time.monotonic_ns()
    for start in range(0, n, batch):
        payloads = [{"i": i} for i in range(start, min(start + batch, n))]
        await queue.enqueue_many(payloads, delay_seconds=delay_seconds)
    seconds = (time.monotonic_ns() - started_at) / 1e9
    await queue.close_producer()
    emit("RESULT", seconds=seconds, n=n)


async def _pace(queue: Queue, *, n: int, per_second: int, clients: int) -> None:
    await _open(queue, clients)
    await asyncio.sleep(0.5)
    under_way: set[asyncio.Task[None]] = set()
    started_at = time.monotonic()
    for i in range(n):
        # The schedule is kept whatever the answers do: a slow system gets its jobs no later for it.
        await asyncio.sleep(max(0.0, started_at + i / per_second - time.monotonic()))
        task = asyncio.create_task(queue.enqueue_one({"i": i, "t": time.monotonic_ns()}))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    seconds = time.monotonic() - started_at
    await asyncio.gather(*under_way)
    await queue.close_producer()
    emit("RESULT", seconds=seconds, n=n)


async def _open(queue: Queue, clients: int) -> None:
    """Open the producer and use every connection once, so that none is opened in the measured time."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max(clients, 4)))
    await queue.open_producer(clients)
    await asyncio.gather(*(queue.enqueue_one({"i": -1}) for _ in range(clients)))


class _Counter:
    """Counts handlers, and tells when the last one ran."""

    def __init__(self, *, n: int) -> None:
        self._left = n

    def handle(self, payload: Payload) -> None:
        del payload
        self._left -= 1
        if self._left == 0:
            emit("HANDLED")


class _Watch:
    """Notes how long each job was under way; jobs without a start time only warm up."""

    def __init__(self, *, n: int) -> None:
        self._n = n
        self._milliseconds: list[float] = []

    def handle(self, payload: Payload) -> None:
        now = time.monotonic_ns()
        if payload.get("t") is None:
            return
        self._milliseconds.append((now - payload["t"]) / 1e6)
        if len(self._milliseconds) == self._n:
            emit("WATCHED", milliseconds=self._milliseconds)


async def _work(queue: Queue, observer: _Counter | _Watch) -> None:
    asked_to_stop = _stop_event()
    await queue.prepare_worker(observer.handle)
    emit("START")
    working = asyncio.create_task(queue.work())
    stopping = asyncio.create_task(asked_to_stop.wait())
    emit("READY")
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        emit("ERROR", detail=repr(working.exception()))
    else:
        await asyncio.wait({asyncio.create_task(queue.stop())}, timeout=_STOP_SECONDS)
        working.cancel()
        await asyncio.wait({working}, timeout=_STOP_SECONDS)
    sys.stdout.flush()
    # Some systems leave threads behind that would keep the process.
    os._exit(0)


def _stop_event() -> asyncio.Event:
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def watch() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
        loop.call_soon_threadsafe(event.set)

    threading.Thread(target=watch, daemon=True).start()
    return event
