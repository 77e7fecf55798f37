"""A real server process of this checkout, for tests that need sockets, signals or replicas."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

START_SECONDS = 60.0
STOP_SECONDS = 60.0
SERVE = ("-m", "app", "serve")
# A poll that is not woken is answered with nothing there.
WITHOUT_NETS = ("-m", "tests.support.serve_without_nets", "serve")

# Bound, and never listening. The kernel gives their ports to nobody whom it lets choose; a server that asks
# for one by its number gets it, since both set SO_REUSEADDR.
_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port that is kept for the servers of this process until it ends, restarts included."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    port: int = reserved.getsockname()[1]
    return port


class ServerProcess:
    """``python -m app serve`` with the given settings, its log in a file.

    ``variables`` are FENCEPOST_ variables by their lower-case names without the prefix; the port is a
    free one unless it is given. ``program`` are other arguments for Python, ``environ`` goes on top of the
    environment that is passed on.
    """

    def __init__(
        self,
        variables: Mapping[str, object],
        *,
        log_path: Path,
        program: Sequence[str] = SERVE,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.port = int(str(variables.get("port", free_port())))
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log_path
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        own = {f"FENCEPOST_{name.upper()}": str(value) for name, value in variables.items()}
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                env=inherited | own | {"FENCEPOST_PORT": str(self.port)} | dict(environ or {}),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self, *, timeout_seconds: float = START_SECONDS) -> None:
        """Return when /readyz says so; raise with the log when it does not in time."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready after {timeout_seconds} s:\n{self.log}")

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return the exit code, as soon as there is one."""
        return self.process.wait(STOP_SECONDS)

    def end(self) -> None:
        """Stop it in order, or by force when that takes too long."""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
