"""An adapter or a Fencepost service as a process of the driver; each is ended by its id."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = Path(__file__).resolve().parent / "adapters"

_START_SECONDS = 60
_STOP_SECONDS = 12


class AdapterFailed(Exception):
    """An adapter ended, or did not say in time what it was waited for."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How an adapter is started: its command, and what its environment has beside ours."""

    command: Sequence[str]
    environ: Mapping[str, str]


class AdapterProcess:
    """One operation of one adapter, and the events it tells."""

    def __init__(
        self,
        launch: Launch,
        operation: str,
        *,
        arguments: Mapping[str, Any],
        url: str,
        conf: Mapping[str, Any],
        log: IO[str],
    ) -> None:
        self._name = f"{launch.command[-1]} {operation}"
        self._process = subprocess.Popen(
            [*launch.command, operation, json.dumps(arguments)],
            env={**os.environ, **launch.environ, "PEER_URL": url, "PEER_CONF": json.dumps(conf)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        self._log = log
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, event: str, *, seconds: float) -> dict[str, Any]:
        """Return the event of that name; raises AdapterFailed when the end or the deadline comes first."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AdapterFailed(f"{self._name}: no {event} in {seconds:.0f} s") from None
            if found["event"] == event:
                return found
            if found["event"] in ("END", "ERROR"):
                raise AdapterFailed(f"{self._name}: ended before {event}: {found.get('detail', '')}")

    def ensure_alive(self) -> None:
        """Raise AdapterFailed when the process has ended, asked or not."""
        if self._process.poll() is not None:
            raise AdapterFailed(f"{self._name}: ended by itself")

    def cpu_seconds(self) -> float:
        """Return the processor time that the adapter's process has used."""
        return _cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """Ask a worker to end, and end it when it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("stop\n")
            self._process.stdin.close()
        except OSError:
            # It has ended already.
            pass
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                # Some systems print to stdout on their own account.
                self._log.write(line)
        self._events.put({"event": "END"})


class Service:
    """``fencepost serve`` of this checkout on one database."""

    def __init__(self, database_url: str, *, processes: int, log: IO[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        environ |= {
            "FENCEPOST_DATABASE_URL": database_url,
            "FENCEPOST_PORT": str(port),
            "FENCEPOST_LOG_LEVEL": "warning",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--processes", str(processes)],
            env=environ,
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )

    def wait_until_ready(self) -> None:
        """Return when the service answers that it can serve."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):  # noqa: S310 - our own address
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AdapterFailed("fencepost serve did not get ready")

    def cpu_seconds(self) -> float:
        """Return the processor time of the service with all its server processes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return sum(map(_cpu_seconds, [self._process.pid, *map(int, children)]))

    def stop(self) -> None:
        """End it as an operator would, and by force when it does not."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_service(database_url: str, *, processes: int, log: IO[str]) -> Iterator[Service]:
    """Serve while the context lasts."""
    service = Service(database_url, processes=processes, log=log)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.stop()


def _cpu_seconds(process_id: int) -> float:
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
