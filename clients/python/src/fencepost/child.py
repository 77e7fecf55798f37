"""The inside of a handler's process: the handler runs in the main thread, another one reads the pipe."""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from fencepost.clock import now
from fencepost.job import Job
from fencepost.jobs import NewJob, Submitted
from fencepost.leases import Lease
from fencepost.messages import (
    Answer,
    Ask,
    Begin,
    Done,
    Progressed,
    Question,
    StopNow,
    StoreCheckpoint,
    Submit,
    Verify,
)
from fencepost.outcomes import Outcome, plain, raised, returned
from fencepost.stops import Expiry, Stop

NAME = "fencepost-process"

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# EX_TEMPFAIL: the lease ran out while nobody renewed it.
_EXPIRED_STATUS = 75
_LOOK_SECONDS = 0.5


def main(pipe: Connection, expiry: Expiry) -> None:
    """Do jobs until the worker closes the pipe."""
    # A terminal and a supervisor send their signals to the whole group. The worker decides when a handler
    # stops, and has blocked them until here.
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    if sys.platform != "win32":
        # A group of its own: what the handler starts is killed with it.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Process(pipe, expiry).run()


def _end() -> None:
    """End this process at once, and whatever the handler has started in its group."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(_EXPIRED_STATUS)


class Process:
    """The desk of the job that this process does, and the loop of jobs."""

    def __init__(self, pipe: Connection, expiry: Expiry) -> None:
        self._pipe = pipe
        self._expiry = expiry
        self._writing = threading.Lock()
        self._numbers = count()
        self._questions: dict[int, Future[Any]] = {}
        self._begun: SimpleQueue[tuple[Begin, Stop] | None] = SimpleQueue()
        self._stop: Stop | None = None

    def run(self) -> None:
        """Do jobs until the worker closes the pipe."""
        threading.Thread(target=self._listen, name="fencepost-pipe", daemon=True).start()
        while (begun := self._begun.get()) is not None:
            self._do(*begun)
            # Nothing of the last job is kept while the process waits for the next.
            del begun

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:  # noqa: ARG002
        """Tell the worker."""
        self._send(Progressed(percent, message))

    def checkpoint(self, lease: Lease, text: str) -> "Future[None]":  # noqa: ARG002
        """Ask the worker."""
        return self._ask(StoreCheckpoint(text))

    def verify(self, lease: Lease) -> "Future[None]":  # noqa: ARG002
        """Ask the worker."""
        return self._ask(Verify())

    def submit(self, lease: Lease, job: NewJob) -> "Future[Submitted]":  # noqa: ARG002
        """Ask the worker."""
        return self._ask(Submit(job))

    def _do(self, begin: Begin, stop: Stop) -> None:
        lease = Lease(begin.facts, stop=stop, deadline=float("inf"), asked_at=now())
        outcome = plain(self._outcome(begin, lease))
        self._stop = None
        self._send(Done(outcome))

    def _outcome(self, begin: Begin, lease: Lease) -> Outcome:
        try:
            # The worker has written it, through the pipe that is ours alone.
            function: Callable[[Job], object] = pickle.loads(begin.function)  # noqa: S301
            return returned(function(Job(lease, self)))
        except SystemExit:
            # As in any process: the handler has ended this one.
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return raised(error)

    def _ask(self, question: Question) -> "Future[Any]":
        number = next(self._numbers)
        future = self._questions[number] = Future()
        self._send(Ask(number, question))
        return future

    def _send(self, message: object) -> None:
        with self._writing:
            self._pipe.send(message)

    def _listen(self) -> None:
        try:
            while True:
                if self._pipe.poll(_LOOK_SECONDS):
                    self._receive(self._pipe.recv())
                stop = self._stop
                if stop is not None and now() >= self._expiry.value:
                    _end()
        except (EOFError, OSError):
            # The worker has gone, or has no more jobs.
            if self._stop is not None:
                _end()
            self._begun.put(None)

    def _receive(self, message: object) -> None:
        match message:
            case Begin():
                self._stop = Stop(self._expiry)
                self._begun.put((message, self._stop))
            case StopNow(reason):
                if self._stop is not None:
                    self._stop.set(reason)
            case Answer(number, value, error):
                future = self._questions.pop(number)
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)
            case _:
                raise TypeError(f"the worker said {message!r}")
