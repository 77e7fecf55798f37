"""Several server processes behind one listening socket, started and kept alive by their parent."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from app.serving import ServingError

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
# Longer than a process needs that waits for slow clients, short enough for the ten seconds of the whole.
_END_SECONDS = 8.5
# A process that lived shorter than this counts as one more failed start.
_STEADY_SECONDS = 5.0
_MOST_FAILURES = 6
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class ServerProcesses:
    """A number of equal child processes; one that ends is replaced until a signal ends them all."""

    def __init__(self, *, count: int, listener: socket.socket, environ: Mapping[str, str]) -> None:
        self._listener = listener
        self._slots = [_Slot(listener, environ) for _ in range(count)]
        self._signal_count = 0

    def run(self) -> None:
        """Run in the main thread until SIGTERM or SIGINT; returns when every child has ended.

        A second signal kills them. Raises ServingError when a process fails again and again at its start.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        try:
            while not self._signal_count:
                for slot in self._slots:
                    slot.keep_running()
                time.sleep(_LOOK_SECONDS)
        finally:
            self._end()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signal_count += 1

    def _end(self) -> None:
        self._listener.close()
        for slot in self._slots:
            slot.send(signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while any(slot.is_alive for slot in self._slots):
            if time.monotonic() > deadline or self._signal_count > 1:
                for slot in self._slots:
                    slot.send(signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)


class _Slot:
    """The place of one child process and of its successors."""

    def __init__(self, listener: socket.socket, environ: Mapping[str, str]) -> None:
        self._listener = listener
        python_path = [str(Path(__file__).parent.parent), environ.get("PYTHONPATH", "")]
        self._environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, python_path))}
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._pause_until: float | None = None
        self._is_proven = False
        self._failures = 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def keep_running(self) -> None:
        """Start the process, or start it again when it has ended and its pause is over."""
        if self._process is None:
            self._start()
            return
        exit_code = self._process.poll()
        if exit_code is None:
            self._is_proven |= time.monotonic() - self._started_at >= _STEADY_SECONDS
            return
        if self._pause_until is None:
            self._note_end(exit_code)
        elif time.monotonic() >= self._pause_until:
            self._start()

    def _note_end(self, exit_code: int) -> None:
        lived_seconds = time.monotonic() - self._started_at
        self._failures = self._failures + 1 if lived_seconds < _STEADY_SECONDS else 0
        # One that has served before fails for a reason that may pass, such as a database that is away.
        if self._failures >= _MOST_FAILURES and not self._is_proven:
            raise ServingError(
                f"a server process ends at once, {self._failures} times in a row (exit code {exit_code})"
            )
        pause_seconds = min(_FIRST_PAUSE_SECONDS * 2**self._failures, _LONGEST_PAUSE_SECONDS)
        self._pause_until = time.monotonic() + pause_seconds
        _logger.error(
            "a server process ended (exit code %d), the next one starts in %.1f s", exit_code, pause_seconds
        )

    def _start(self) -> None:
        descriptor = self._listener.fileno()
        command = [
            sys.executable,
            # Without -P a folder `app` where the service was started would be taken for ours.
            "-P",
            "-m",
            "app",
            "serve-process",
            f"--descriptor={descriptor}",
            f"--parent={os.getpid()}",
        ]
        self._started_at = time.monotonic()
        self._pause_until = None
        # A session of its own: Ctrl-C reaches the parent alone, which passes it on.
        self._process = subprocess.Popen(
            command, env=self._environ, pass_fds=[descriptor], start_new_session=True
        )
