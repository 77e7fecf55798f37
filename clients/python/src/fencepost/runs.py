"""Handlers while they run: coroutines in one event loop, functions in threads or in processes.

The worker's own loop runs no handler, so that none can hold up a heartbeat. An Inbox leads out of it and one
back.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import cast

from fencepost.handlers import Handlers
from fencepost.inbox import Inbox
from fencepost.job import AsyncJob, Desk, Job
from fencepost.leases import Lease
from fencepost.outcomes import End, Fail, Outcome, Settled, end_of, raised, returned, under
from fencepost.processes import Processes
from fencepost.stops import Stopped, StopReason
from fencepost.threads import Threads

log = logging.getLogger("fencepost")

Ended = tuple[Lease, End | None]
AsyncFunction = Callable[[AsyncJob], Awaitable[object]]


class Runs:
    """Starts and stops handlers. ``tell`` gets leases with their ends; None: nothing is to be sent."""

    def __init__(
        self,
        handlers: Handlers,
        desk: Desk,
        tell: Callable[[Sequence[Ended]], None],
        *,
        loop: asyncio.AbstractEventLoop,
        grace_seconds: float,
    ) -> None:
        self._handlers = handlers
        self._desk = desk
        self._tell = tell
        self._threads = Threads()
        self._processes = Processes(desk, grace_seconds=grace_seconds)
        self._coroutines = Coroutines(loop, desk, tell)

    def start(self, leases: Sequence[Lease]) -> None:
        """Run the handlers of the leases' jobs."""
        coroutines: list[tuple[Lease, AsyncFunction]] = []
        for lease in leases:
            kind = lease.facts["kind"]
            handler = self._handlers.find(kind)
            if handler is None:
                self._end(lease, Fail(f"this worker has no handler for {kind}", type="unknown_kind"))
            elif handler.room == "loop":
                coroutines.append((lease, cast("AsyncFunction", handler.function)))
            else:
                run = self._in_thread if handler.room == "thread" else self._processes.run
                function = cast("Callable[[Job], object]", handler.function)
                self._threads.call(partial(self._run, run, lease, function))
        if coroutines:
            self._coroutines.start(coroutines)

    def stop(self, lease: Lease, reason: StopReason) -> None:
        """Tell a handler to stop, in the way of its room."""
        lease.stop.set(reason)
        self._processes.stop(lease, reason)
        self._coroutines.stop(lease)

    def close(self) -> None:
        """Let go of all rooms: idle processes end, and those that still run are killed."""
        self._processes.close()
        self._threads.close()

    def _in_thread(self, lease: Lease, function: Callable[[Job], object]) -> Outcome:
        return returned(function(Job(lease, self._desk)))

    def _run(
        self,
        run: Callable[[Lease, Callable[[Job], object]], Outcome],
        lease: Lease,
        function: Callable[[Job], object],
    ) -> None:
        try:
            reason = lease.stop.reason
            outcome = run(lease, function) if reason is None else raised(Stopped(reason))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            outcome = raised(error)
        self._end(lease, outcome)

    def _end(self, lease: Lease, outcome: Outcome) -> None:
        self._tell([(lease, _decided(lease, outcome))])


def _decided(lease: Lease, outcome: Outcome) -> End | None:
    """Decide, at the moment when the handler has ended, what is sent for it."""
    decided = under(outcome, lease.stop.reason)
    if decided is None or isinstance(decided, Settled):
        return None
    return end_of(lease.job_id, lease.version, decided)


class Coroutines:
    """Handlers that are coroutines, each a task of one loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, desk: Desk, tell: Callable[[Sequence[Ended]], None]
    ) -> None:
        self._loop = loop
        self._desk = desk
        self._tell = tell
        self._tasks: dict[Lease, asyncio.Task[Outcome]] = {}
        self._inbox: Inbox[tuple[Lease, AsyncFunction | None]] = Inbox(loop, self._receive)
        self._ended: list[Ended] = []

    def start(self, handlers: Sequence[tuple[Lease, AsyncFunction]]) -> None:
        """Run handlers."""
        self._inbox.put_all(handlers)

    def stop(self, lease: Lease) -> None:
        """Cancel the handler's task."""
        self._inbox.put((lease, None))

    def _receive(self, message: tuple[Lease, AsyncFunction | None]) -> None:
        lease, function = message
        if function is not None:
            task = self._tasks[lease] = self._loop.create_task(self._run(lease, function))
            task.add_done_callback(partial(self._done, lease))
        elif lease in self._tasks:
            self._tasks[lease].cancel(lease.stop.reason)

    async def _run(self, lease: Lease, function: AsyncFunction) -> Outcome:
        try:
            job = AsyncJob(lease, self._desk)
            job.raise_if_stopped()
            return returned(await function(job))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                _stopped_by_the_program(lease)
            return raised(error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return raised(error)

    def _done(self, lease: Lease, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[lease]
        if task.cancelled():
            # Before its first turn: nothing of it has run.
            _stopped_by_the_program(lease)
            outcome = raised(asyncio.CancelledError())
        else:
            outcome = task.result()
        if not self._ended:
            # Handlers that end in the same turn of the loop are told of together: they go into one call.
            self._loop.call_soon(self._tell_ended)
        self._ended.append((lease, _decided(lease, outcome)))

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._tell(ended)


def _stopped_by_the_program(lease: Lease) -> None:
    # A task that is cancelled although its handler was not told to stop: the program ends its loop.
    if lease.stop.reason is None:
        lease.stop.set("shutdown")


class LoopThread:
    """An event loop for handlers in a daemon thread: who blocks it blocks nothing else, not even the exit."""

    def __init__(self) -> None:
        self._is_ready = threading.Event()
        self._is_closed = False
        self.loop: asyncio.AbstractEventLoop
        threading.Thread(target=self._run, name="fencepost-loop", daemon=True).start()
        self._is_ready.wait()

    def close(self) -> None:
        """Cancel what still runs in the loop, and let it end."""
        self._is_closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self.loop = runner.get_loop()
            self._is_ready.set()
            while not self._is_closed:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # These two leave the loop as well, when a task of a handler's own raises them. That
                    # handler hears of it when it awaits its task; the others have nothing to do with it.
                    log.warning("a handler's task has raised %s", type(error).__name__)
