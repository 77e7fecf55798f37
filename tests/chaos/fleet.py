"""What is under fire: one PostgreSQL, some replicas of the service on it, and the processes of the clients.

Everything is started by this process and ended by its id; what is killed on purpose is started again at once.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import httpx
import msgspec
import psutil

from app.embedded.server import BundledServer
from tests.chaos.crew import Crew
from tests.chaos.history import now
from tests.chaos.tether import ROOT, tethered
from tests.support.processes import answers_of
from tests.support.server import free_port

POSTGRES = "bundled PostgreSQL"
SERVER = "server process"

# The service's own limit is ten; this process may be held up before it looks.
END_SECONDS = 15.0
READY_SECONDS = 120.0
_LOOK_SECONDS = 0.05
_CREW_END_SECONDS = 60.0

T = TypeVar("T")


class FleetError(Exception):
    """The run cannot go on."""


class Database:
    """The bundled PostgreSQL, fsync on.

    The kernel ends a server with the thread that started it, so all starts are in one thread that lives as
    long as this object.
    """

    def __init__(self, folder: Path) -> None:
        self._server = BundledServer(folder)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chaos-postgres")
        self.url = ""

    async def start(self) -> None:
        self.url = await self._run(self._server.start)

    async def stop(self) -> None:
        await self._run(self._server.stop)

    def close(self) -> None:
        """Stop it for good."""
        self._server.stop()
        self._thread.shutdown()

    async def kill(self) -> None:
        """SIGKILL the postmaster, and wait; its children end by themselves when they notice."""
        pid = self._server.pid
        if pid is None:
            raise FleetError("there is no PostgreSQL to kill")
        os.kill(pid, signal.SIGKILL)

        async def is_gone() -> bool | None:
            return self._server.pid != pid or None

        # Until then a start would take it for one that runs.
        await until(is_gone, seconds=END_SECONDS, what="the end of PostgreSQL")

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class Replica:
    """One ``fencepost serve``, started again whenever it has ended, unless it is being rolled."""

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        environ: Mapping[str, str],
        host: str = "127.0.0.1",
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        port = free_port()
        self.url = f"http://{host}:{port}"
        self.log_path = folder / f"{name}.log"
        self.complaints: list[str] = []
        self._options = [f"--host={host}", f"--port={port}", *options]
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_mark = 0
        self._was_told = False

    def start(self) -> None:
        """Start it; call in the main thread, which the kernel ties it to."""
        with self.log_path.open("ab") as log:
            self._log_mark = log.tell()
            self._process = subprocess.Popen(
                tethered(sys.executable, "-m", "app", "serve", *self._options),
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._was_told = False

    def children(self, kind: str) -> list[int]:
        """Return the ids of its own child processes: those named postgres, or the others."""
        if self._process is None or self._process.poll() is not None:
            return []
        try:
            children = psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []
        names = answers_of(children, lambda child: child.name())
        return sorted(
            child.pid for child, name in names.items() if (name == "postgres") == (kind == POSTGRES)
        )

    def keep_running(self) -> None:
        """Start it again if it has ended; one that had served and was not told to end is complained of.

        At its start a replica may end, because the database cannot be reached.
        """
        if self._process is None or self._process.poll() is None:
            return
        has_served = b"listening on" in self.log_path.read_bytes()[self._log_mark :]
        if has_served and not self._was_told:
            self.complaints.append(f"replica {self.name} ended by itself with {self._process.returncode}")
        self.start()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._was_told = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def end(self) -> None:
        """SIGTERM, and wait; complains unless it ends in time with code 0."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = await ended(process, seconds=END_SECONDS)
        except TimeoutError:
            process.kill()
            process.wait()
            self.complaints.append(f"replica {self.name} did not end within {END_SECONDS:.0f} s of SIGTERM")
        else:
            if code != 0:
                self.complaints.append(f"replica {self.name} ended with {code} on SIGTERM")

    async def until_ready(self) -> None:
        async with httpx.AsyncClient() as client:

            async def is_ready() -> bool | None:
                try:
                    answer = await client.get(f"{self.url}/readyz", timeout=10)
                except httpx.TransportError:
                    return None
                return answer.status_code == 200 or None

            await until(is_ready, seconds=READY_SECONDS, what=f"{self.name} to be ready")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


class Clients(Protocol):
    """A process of clients, whatever it is made of."""

    name: str

    def history_bytes(self) -> int:
        """Return how much of its history is written. Raises FleetError when it has ended."""
        ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    async def stop_producing(self) -> None:
        """Return when it asks for no more jobs."""
        ...

    async def end(self) -> None:
        """Let it finish what it does, and end. Raises FleetError when it does not."""
        ...

    async def close(self) -> None:
        """Kill it if it still runs, and take down what stands beside it."""
        ...


class CrewProcess:
    """A process of clients; ``entrance`` leads to where it is to run."""

    def __init__(self, crew: Crew, *, folder: Path, entrance: Sequence[str]) -> None:
        self.name = crew.name
        self._history = Path(crew.history)
        self._log_path = folder / f"{crew.name}.log"
        description = msgspec.json.encode(crew).decode()
        command = tethered(*entrance, sys.executable, "-m", "tests.chaos.crew", description)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def history_bytes(self) -> int:
        if self._process.poll() is not None:
            raise FleetError(self._last_words())
        return self._history.stat().st_size if self._history.exists() else 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def stop_producing(self) -> None:
        """Return when its producers have ended, each call of theirs answered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"stop\n")
        self._process.stdin.flush()
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise FleetError(self._last_words())

    async def end(self) -> None:
        """Let its workers finish what they do, and the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await ended(self._process, seconds=_CREW_END_SECONDS)
        if code != 0:
            raise FleetError(self._last_words())

    async def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _last_words(self) -> str:
        words = self._log_path.read_text(errors="replace").strip().splitlines()
        return f"crew {self.name} failed: {' / '.join(words[-3:])}"


async def until(look: Callable[[], Awaitable[T | None]], *, seconds: float, what: str) -> T:
    """Return what ``look`` finds as soon as it finds anything. Raises FleetError."""
    deadline = now() + seconds
    while now() < deadline:
        found = await look()
        if found is not None:
            return found
        await asyncio.sleep(_LOOK_SECONDS)
    raise FleetError(f"waited {seconds:.0f} s in vain for {what}")


async def ended(process: subprocess.Popen[bytes], *, seconds: float) -> int:
    """Wait for the end of a process; return its exit code. Raises TimeoutError."""
    deadline = now() + seconds
    while (code := process.poll()) is None:
        if now() > deadline:
            raise TimeoutError
        await asyncio.sleep(_LOOK_SECONDS)
    return code
