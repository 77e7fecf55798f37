"""Processes for handlers that compute: they are reused, and killed when their lease is lost.

A process is started afresh (spawn), because a fork of a process with threads may hang. It imports the module
that the handler stands in. A thread of the worker speaks with it over a pipe; the moment when the lease runs
out is shared memory, so that the handler's process knows it even while the worker's is stopped.
"""

import contextlib
import ctypes
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from fencepost import child
from fencepost.errors import Unavailable
from fencepost.job import Desk, Job
from fencepost.leases import Lease
from fencepost.messages import Answer, Ask, Begin, Done, Progressed, StopNow
from fencepost.outcomes import Fail, Outcome, raised
from fencepost.stops import LocalExpiry, StopReason

_JOIN_SECONDS = 5.0


class Processes:
    """The processes of a worker: those that work, and those that wait for the next job."""

    def __init__(self, desk: Desk, *, grace_seconds: float) -> None:
        self._desk = desk
        self._grace_seconds = grace_seconds
        self._idle: list[Child] = []
        self._working: dict[Lease, Child] = {}
        self._is_closed = False

    def run(self, lease: Lease, function: Callable[[Job], object]) -> Outcome:
        """Run a handler in a process, and wait for its outcome. The process's death is a failure."""
        process = self._take()
        lease.stop.expiry = process.share(lease.stop.expiry.value)
        self._working[lease] = process
        try:
            # A stop that came before the process was known here.
            if (reason := lease.stop.reason) is not None:
                self.stop(lease, reason)
            return process.work(lease, function, self._desk)
        finally:
            del self._working[lease]
            # The process's own expiry belongs to its next job.
            lease.stop.expiry = LocalExpiry(lease.stop.expiry.value)
            self._put_back(process)

    def stop(self, lease: Lease, reason: StopReason) -> None:
        """Kill the process of a lost lease; ask others to stop, and kill them after the grace."""
        process = self._working.get(lease)
        if process is None:
            return
        if reason == "lease_lost":
            process.kill()
        else:
            process.stop(reason, self._grace_seconds)

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
        for process in list(self._working.values()):
            process.kill()

    def _take(self) -> "Child":
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            process.close()
        return Child()

    def _put_back(self, process: "Child") -> None:
        if process.is_alive() and not self._is_closed:
            self._idle.append(process)
        else:
            process.close()


class Child:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._expiry = context.RawValue(ctypes.c_double, 0.0)
        ours, theirs = context.Pipe()
        self._pipe: Connection[Any, Any] = ours
        # The pipe is read by one thread; it is written to by that one and by the worker's loop.
        self._writing = threading.Lock()
        self._timer: threading.Timer | None = None
        self._process: SpawnProcess = context.Process(
            target=child.main, args=(theirs, self._expiry), name=child.NAME
        )
        self._process.start()
        theirs.close()

    def share(self, expires_at: float) -> "ctypes.c_double":
        """Return the place where the process looks up its lease's expiry, set to a value."""
        self._expiry.value = expires_at
        return self._expiry

    def is_alive(self) -> bool:
        """Tell whether the process can take a job."""
        return self._timer is None and self._process.is_alive()

    def work(self, lease: Lease, function: Callable[[Job], object], desk: Desk) -> Outcome:
        """Have a job done."""
        try:
            self._send(Begin(function, lease.facts))
            while True:
                match self._pipe.recv():
                    case Done(outcome):
                        return outcome
                    case Progressed(percent, message):
                        desk.progress(lease, percent, message)
                    case Ask(number, question):
                        question(lease, desk).add_done_callback(partial(self._reply, number))
        except (EOFError, OSError):
            self._process.join(_JOIN_SECONDS)
            status = self._process.exitcode
            return Fail(
                f"the handler's process ended with status {status}",
                type="process_died",
                details={"exit_status": status},
            )
        except Exception as error:  # noqa: BLE001 - the function or the outcome could not be sent
            return raised(error)

    def stop(self, reason: StopReason, grace_seconds: float) -> None:
        """Tell the handler to stop; kill the process when it has not within the grace."""
        self._send(StopNow(reason))
        self._timer = threading.Timer(grace_seconds, self.kill)
        self._timer.daemon = True
        self._timer.start()

    def kill(self) -> None:
        """End the process at once. What it writes to is fenced, or was written before."""
        self._process.kill()

    def close(self) -> None:
        """End an idle process in order."""
        if self._timer is not None:
            self._timer.cancel()
        self._pipe.close()

    def _reply(self, number: int, done: "Future[Any]") -> None:
        error = Unavailable("the worker ends") if done.cancelled() else done.exception()
        self._send(Answer(number, None if error is not None else done.result(), error))

    def _send(self, message: object) -> None:
        # A pipe that is broken is found by the thread that reads it.
        with self._writing, contextlib.suppress(OSError):
            self._pipe.send(message)
