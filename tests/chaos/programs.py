"""A worker in any language under fire: an adapter of the conformance suite, with a witness beside it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from clients.conformance.adapters import Adapter
from tests.chaos.fleet import FleetError, ended
from tests.chaos.tether import ROOT, tethered
from tests.chaos.witness import Witness

CONCURRENCY = 4
DRAIN_SECONDS = 5
GRACE_SECONDS = 2
# For a language's own start and end.
_SLACK_SECONDS = 30


class Program:
    """An adapter that has been built; it is started by ``open``, and by ``start`` after an end."""

    def __init__(
        self,
        adapter: Adapter,
        *,
        folder: Path,
        replicas: Mapping[str, str],
        queues: Sequence[str],
        lease_seconds: float,
    ) -> None:
        self.name = adapter.name
        self._command = tethered(*adapter.run)
        self._environ = os.environ | dict(adapter.environment)
        slug = adapter.name.replace(" ", "-")
        self._part = folder / f"{slug}.part"
        self._log_path = folder / f"{slug}.log"
        self._events = folder / f"{slug}.events"
        self._witness = Witness(slug, replicas=replicas, part=self._part)
        self._worker = {
            "queues": list(queues),
            "concurrency": CONCURRENCY,
            "lease_seconds": lease_seconds,
            "wait_seconds": 2,
            "drain_seconds": DRAIN_SECONDS,
            "grace_seconds": GRACE_SECONDS,
        }
        self._process: subprocess.Popen[bytes] | None = None

    async def open(self) -> None:
        await self._witness.open()
        self.start()

    def start(self) -> None:
        """Start it; call in the main thread, which the kernel ties it to."""
        description = {
            "url": self._witness.url,
            "events": str(self._events),
            "role": "worker",
            "worker": self._worker,
        }
        environ = self._environ | {"CONFORMANCE": msgspec.json.encode(description).decode()}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def history_bytes(self) -> int:
        if self._running.poll() is not None:
            raise FleetError(self._last_words(f"ended by itself with {self._running.returncode}"))
        return self._part.stat().st_size

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()

    def freeze(self) -> None:
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    async def stop_producing(self) -> None:
        """It makes no jobs but those of its handlers."""

    async def end(self) -> None:
        """SIGTERM, and wait. Raises FleetError unless it drains in its time, and ends with code 0."""
        self._running.send_signal(signal.SIGTERM)
        try:
            code = await ended(self._running, seconds=DRAIN_SECONDS + GRACE_SECONDS + _SLACK_SECONDS)
        except TimeoutError:
            raise FleetError(self._last_words("did not end after SIGTERM")) from None
        if code != 0:
            raise FleetError(self._last_words(f"ended with {code} after SIGTERM"))

    async def close(self) -> None:
        if self._running.poll() is None:
            self.kill()
        await self._witness.close()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _last_words(self, what: str) -> str:
        words = self._log_path.read_text(errors="replace").strip().splitlines()
        return f"program {self.name} {what}: {' / '.join(words[-3:])}"
