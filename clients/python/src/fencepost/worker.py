"""The worker: handlers by kind, run under leases until it is told to stop."""

import asyncio
import multiprocessing
import os
import re
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import httpx

from fencepost import child, service
from fencepost.engine import Engine, Options
from fencepost.handlers import FunctionType, Handlers
from fencepost.runs import LoopThread

_MOST_JOBS = 1_000


class Worker:
    """Leases jobs from queues and runs their handlers, ``concurrency`` at most at once.

    ``lease_seconds`` is how long a job stays away from others when this process dies; handlers may run for as
    long as they like. ``wait_seconds`` is how long a lease call waits for work, at most a third of the lease.
    On SIGTERM and SIGINT handlers go on for ``drain_seconds``, and have ``grace_seconds`` after they were
    told to stop. ``worker_id`` has to be new for every process; without one it is the host's name and some
    random characters.
    """

    def __init__(
        self,
        url: str = service.DEFAULT_URL,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        api_key: str | None = None,
        lease_seconds: float = 60.0,
        wait_seconds: float = 20.0,
        drain_seconds: float = 20.0,
        grace_seconds: float = 5.0,
        worker_id: str | None = None,
    ) -> None:
        if isinstance(queues, str):
            raise TypeError("queues is a list of names, not one name")
        if not 1 <= concurrency <= _MOST_JOBS:
            raise ValueError(f"concurrency is {concurrency}, not within 1 and {_MOST_JOBS}")
        self._options = Options(
            queues=tuple(queues),
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
            drain_seconds=drain_seconds,
            grace_seconds=grace_seconds,
        )
        self._service = service.arguments(url, api_key)
        self._worker_id = worker_id
        self._own_id = (os.getpid(), _new_worker_id())
        self._handlers = Handlers()
        self._running: tuple[asyncio.AbstractEventLoop, Engine] | None = None
        self._stops = 0

    @property
    def worker_id(self) -> str:
        """The name that the service knows this worker by."""
        if self._worker_id is not None:
            return self._worker_id
        # A fork is another worker. Of two with one name the first to end would release the other's leases.
        if self._own_id[0] != os.getpid():
            self._own_id = (os.getpid(), _new_worker_id())
        return self._own_id[1]

    def handler(
        self, kind: str | None = None, *, process: bool = False
    ) -> Callable[[FunctionType], FunctionType]:
        """Register the decorated function for jobs of a kind; without a kind for all that have no handler.

        Coroutine functions get an AsyncJob and run in one event loop; plain functions get a Job and run in
        threads, or with ``process`` in processes, which can be killed. What they return completes the job,
        what they raise fails it; see ``Complete``, ``Fail``, ``Release`` and ``SETTLED`` for more.
        """
        if callable(kind):
            raise TypeError("write @worker.handler() with its brackets, or with a kind in them")

        def register(function: FunctionType) -> FunctionType:
            self._handlers.add(kind, function, process=process)
            return function

        return register

    def run(self, *, handle_signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT or ``stop``; raise Problem when the service refuses the set-up.

        Coroutine handlers run in an event loop in a thread of its own. With ``handle_signals`` it has to be
        called in the main thread. A second signal shortens the way down. It returns also while handlers that
        cannot be stopped still run in their threads: let the process end then.
        """
        with self._signals() if handle_signals else _nothing():
            handlers_loop = LoopThread()
            try:
                asyncio.run(self._work(handlers_loop.loop))
            finally:
                handlers_loop.close()

    async def run_async(self, *, handle_signals: bool = False) -> None:
        """``run`` inside a program of coroutines: coroutine handlers run in the caller's loop.

        The worker's own loop runs in a thread, so that a handler that blocks the caller's holds up no
        heartbeat. To cancel this is to call ``stop``: it still waits for the way down. To cancel it again is
        to call ``stop`` again.
        """
        handlers_loop = asyncio.get_running_loop()
        done: Future[None] = Future()

        def work() -> None:
            try:
                asyncio.run(self._work(handlers_loop))
            except BaseException as error:  # noqa: BLE001 - it is raised where the worker was started
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._signals() if handle_signals else _nothing():
            threading.Thread(target=work, name="fencepost-worker", daemon=True).start()
            ended = asyncio.ensure_future(asyncio.wrap_future(done))
            cancelled: asyncio.CancelledError | None = None
            while not ended.done():
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError as error:
                    cancelled = error
                    self.stop()
            ended.result()
            if cancelled is not None:
                raise cancelled

    def stop(self) -> None:
        """Let the worker shut down, from any thread. The second time it does not wait for the handlers."""
        self._stops += 1
        if self._running is not None:
            loop, engine = self._running
            loop.call_soon_threadsafe(engine.stop, self._stops)

    async def _work(self, handlers_loop: asyncio.AbstractEventLoop) -> None:
        if multiprocessing.current_process().name == child.NAME:
            raise RuntimeError(
                'a handler\'s process imports this module: call run() under `if __name__ == "__main__":`'
            )
        if self._running is not None:
            raise RuntimeError("this worker is running already")
        if not self._handlers:
            raise RuntimeError("this worker has no handler: it would fail every job")
        async with httpx.AsyncClient(**self._service) as http:
            engine = Engine(
                self._options, self._handlers, http, worker_id=self.worker_id, handlers_loop=handlers_loop
            )
            self._running = asyncio.get_running_loop(), engine
            engine.stop(self._stops)
            try:
                await engine.run()
            finally:
                self._running = None
                self._stops = 0

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Plain handlers, as they run also on Windows and with any event loop.
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _new_worker_id() -> str:
    # The service's names are of these characters, and begin with a letter or digit.
    host = re.sub(r"[^A-Za-z0-9_.:-]", "-", socket.gethostname()).lstrip("_.:-")
    return f"{host[:80] or 'worker'}-{uuid.uuid4().hex[:12]}"
