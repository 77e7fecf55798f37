"""The thread that keeps a BundledServer running while the service serves."""

import logging
import threading
import time
from collections.abc import Callable

from app.embedded.binaries import BundledServerError
from app.embedded.server import BundledServer

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
# A server that lived shorter than this counts as one more failed start.
_STEADY_SECONDS = 1.0
_MOST_FAILURES = 6
_LONGEST_PAUSE_SECONDS = 4.0


class Supervisor:
    """Restarts the server whenever it has died, and gives up after six failures in a row.

    It has given up when `failure` is not None; on_failure is then called once, in the supervisor's thread. A
    server that this thread started ends with it, so stop() the supervisor only when the server is no longer
    needed.
    """

    def __init__(self, server: BundledServer, *, on_failure: Callable[[], None]) -> None:
        self._server = server
        self._on_failure = on_failure
        self._stop_asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bundled-postgres", daemon=True)
        self.failure: str | None = None

    def start(self) -> None:
        """Begin to watch; the server has been started by then."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        """Stop watching, and shut the server down."""
        self._stop_asked.set()
        self._server.stop(timeout_seconds=timeout_seconds)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        started_at = time.monotonic()
        while not self._stop_asked.wait(_pause_seconds(failures)):
            try:
                restarted = self._server.ensure_running()
            except BundledServerError as error:
                failures += 1
                _logger.warning("%s", error)
            else:
                if not restarted:
                    if time.monotonic() - started_at >= _STEADY_SECONDS:
                        failures = 0
                    continue
                failures = failures + 1 if time.monotonic() - started_at < _STEADY_SECONDS else 0
                started_at = time.monotonic()
                _logger.warning("the bundled PostgreSQL had ended and runs again")
            if failures >= _MOST_FAILURES and not self._stop_asked.is_set():
                self.failure = f"the bundled PostgreSQL cannot be kept running ({failures} failures in a row)"
                self._on_failure()
                return


def _pause_seconds(failures: int) -> float:
    return float(min(_LOOK_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS))
