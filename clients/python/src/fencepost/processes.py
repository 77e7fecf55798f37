"""Processes for handlers that compute: they are reused, and killed when their lease is lost.

A process is started afresh (spawn), because a fork of a process with threads may hang. It imports the module
that the handler stands in. A thread of the worker speaks with it over a pipe; the moment when the lease runs
out is shared memory, so that the handler's process knows it even while the worker's is stopped.
"""

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from fencepost import child
from fencepost.clock import now
from fencepost.errors import Unavailable
from fencepost.job import Desk, Job
from fencepost.leases import Lease
from fencepost.messages import Answer, Ask, Begin, Done, Progressed, StopNow
from fencepost.outcomes import Fail, Outcome, raised
from fencepost.stops import LocalExpiry, StopReason

_JOIN_SECONDS = 5.0
_LOOK_SECONDS = 0.5
# How long idle processes have for their end, all of them.
_CLOSE_SECONDS = 2.0


class Processes:
    """The processes of a worker: those that work, and those that wait for the next job."""

    def __init__(self, desk: Desk, *, grace_seconds: float) -> None:
        self._desk = desk
        self._grace_seconds = grace_seconds
        self._idle: list[Child] = []
        self._working: dict[Lease, Child] = {}
        self._leaving: list[Child] = []
        self._is_closed = False
        # A program may end without its worker: multiprocessing then waits for all processes, after this.
        atexit.register(self.close)

    def run(self, lease: Lease, function: Callable[[Job], object]) -> Outcome:
        """Run a handler in a process, and wait for its outcome. The process's death is a failure."""
        process = self._take()
        lease.stop.expiry = process.share(lease.stop.expiry.value)
        self._working[lease] = process
        try:
            # A stop, or the end of all, that came before the process was known here.
            if self._is_closed:
                self._end(lease, process)
            elif (reason := lease.stop.reason) is not None:
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
        """End all processes, those that work at once."""
        self._is_closed = True
        atexit.unregister(self.close)
        for lease, process in list(self._working.items()):
            self._end(lease, process)
        while self._idle:
            self._leave(self._idle.pop())
        give_up_at = now() + _CLOSE_SECONDS
        while self._leaving:
            # A thread that a handler has left behind may keep one.
            self._leaving.pop().join(give_up_at - now())

    def _end(self, lease: Lease, process: "Child") -> None:
        # It is not the handler that has failed.
        lease.stop.set("shutdown")
        process.kill()

    def _take(self) -> "Child":
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            self._leave(process)
        return Child()

    def _put_back(self, process: "Child") -> None:
        if process.is_alive() and not self._is_closed:
            self._idle.append(process)
        else:
            self._leave(process)

    def _leave(self, process: "Child") -> None:
        process.close()
        self._leaving = [each for each in self._leaving if not each.has_ended()]
        self._leaving.append(process)


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
        with _signals_blocked():
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
            self._send(Begin(pickle.dumps(function), lease.facts))
            while True:
                match self._receive():
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
        if self._timer is None:
            self._timer = threading.Timer(grace_seconds, self.kill)
            self._timer.daemon = True
            self._timer.start()
        self._send_aside(StopNow(reason))

    def kill(self) -> None:
        """End the process and what it has started. What they write to is fenced, or was written before."""
        if self.has_ended():
            return
        if sys.platform != "win32" and self._process.pid is not None:
            # It has its own group as soon as it runs, and started nothing before.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        """End an idle process in order."""
        if self._timer is not None:
            self._timer.cancel()
        self._pipe.close()

    def has_ended(self) -> bool:
        """Tell whether the process is over."""
        return self._process.exitcode is not None

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end of a process that was closed; kill it when it takes too long."""
        self._process.join(max(0.0, timeout_seconds))
        self.kill()

    def _receive(self) -> object:
        while not self._pipe.poll(_LOOK_SECONDS):
            # A process that the handler has forked may hold the other end of the pipe for ever.
            if self.has_ended() and not self._pipe.poll():
                raise EOFError
        return self._pipe.recv()

    def _reply(self, number: int, done: "Future[Any]") -> None:
        error = Unavailable("the worker ends") if done.cancelled() else done.exception()
        self._send_aside(Answer(number, None if error is not None else done.result(), error))

    def _send_aside(self, message: object) -> None:
        # The worker's loop speaks here. A process that is still importing, or computes in C, reads nothing,
        # and no heartbeat may wait for it.
        threading.Thread(target=self._send, args=(message,), name="fencepost-say", daemon=True).start()

    def _send(self, message: object) -> None:
        # A pipe that is broken is found by the thread that reads it.
        with self._writing, contextlib.suppress(OSError):
            self._pipe.send(message)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let a process start with its signals blocked: Ctrl-C is the worker's, also while it imports."""
    if sys.platform == "win32":
        yield
        return
    # It is started with the first process, and would unblock them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child.SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
