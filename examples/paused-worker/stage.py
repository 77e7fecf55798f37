"""What the demonstration plays on: a service of its own, worker processes, an account in another database.

Everything runs in a temporary folder. All processes are children of this one, in sessions of their own, so
that Ctrl-C reaches this one alone; it ends them by their ids, stopped ones included. If it is killed itself,
the kernel ends them (Linux).
"""

import contextlib
import json
import os
import queue
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.request import Request, urlopen

DEADLINE_SECONDS = 60.0
_ROOT = Path(__file__).resolve().parents[2]
# Asks the kernel to end a process with its parent (Linux), and becomes the process.
_TIE = _ROOT / "app" / "embedded" / "child.py"
_PYTHON = sys.executable
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 0.05

T = TypeVar("T")


class NotAsTold(Exception):
    """Something else happened than the demonstration tells."""


class Service:
    """``fencepost serve`` on the bundled PostgreSQL, on a free port."""

    def __init__(self, folder: Path) -> None:
        self._log_path = folder / "service.log"
        command = [_PYTHON, "-m", "app", "serve", "--port=0", f"--data-dir={folder / 'data'}"]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                _tied(signal.SIGTERM, *command),
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.address = ""

    def wait_until_ready(self) -> None:
        self.address = _until(self._listening, what="the service to listen")
        _until(self._is_ready, what="the service to be ready")

    def get(self, path: str) -> Any:
        with urlopen(self.address + path, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - it is ours
            return json.load(answer)

    def submit(self, body: dict[str, Any]) -> str:
        """Create a job; return its id."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.address}/v1/jobs", json.dumps(body).encode(), headers)  # noqa: S310
        with urlopen(request, timeout=DEADLINE_SECONDS) as answer:  # noqa: S310 - it is ours
            return str(json.load(answer)["id"])

    def end(self) -> None:
        """End it in order: it stops its PostgreSQL first."""
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listening(self) -> str | None:
        log = self._log_path.read_text(errors="replace")
        if self._process.poll() is not None:
            raise NotAsTold(f"the service ended with {self._process.returncode}:\n{log}")
        found = re.search(r"listening on (http://[\w.:]+)", log)
        return found[1] if found else None

    def _is_ready(self) -> bool | None:
        try:
            return bool(self.get("/readyz"))
        except OSError:
            return None


class WorkerProcess:
    """``worker.py`` as a process that says what happens to it, and waits for a nod at its pauses."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        program = str(Path(__file__).with_name("worker.py"))
        self._process = subprocess.Popen(
            _tied(signal.SIGKILL, _PYTHON, program, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def next_event(self) -> dict[str, Any]:
        """Return the next thing it tells. Raises NotAsTold when it ends, or says nothing for too long."""
        try:
            event = self._events.get(timeout=DEADLINE_SECONDS)
        except queue.Empty:
            raise NotAsTold(f"the {self.name} worker says nothing for {DEADLINE_SECONDS:.0f} s") from None
        if event is None:
            raise NotAsTold(f"the {self.name} worker ended too early")
        return event

    def nod(self) -> None:
        """Let it go on from where it pauses."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def freeze(self) -> None:
        """SIGSTOP; return when the kernel says that the process stands still."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise NotAsTold(f"the {self.name} worker ended instead of standing still")

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGKILL, which ends a stopped process, too."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # The last one may have been cut off by the end of the process.
                if line.endswith("\n"):
                    self._events.put(json.loads(line))
        self._events.put(None)


class Account:
    """One account, and the table of fences beside it."""

    OPENING_BALANCE = 1000

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.path = path
        with self._open() as connection:
            connection.executescript(
                "CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL);"
                "CREATE TABLE job_fences (job_id TEXT PRIMARY KEY, stored_version INTEGER NOT NULL);"
            )
            with connection:
                connection.execute("INSERT INTO accounts VALUES ('savings', ?)", [self.OPENING_BALANCE])

    def balance(self) -> int:
        with self._open() as connection:
            (balance,) = connection.execute("SELECT balance FROM accounts").fetchone()
        return int(balance)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=DEADLINE_SECONDS)) as connection:
            yield connection


class Stage:
    """Starts things and, as a context, ends all that it has started."""

    def __init__(self) -> None:
        self._endings = contextlib.ExitStack()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not cut the endings short.
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._endings.close()

    def start_service(self) -> Service:
        """Start the service in a new folder; return when it is ready."""
        with _undisturbed():
            folder = tempfile.TemporaryDirectory(prefix="fencepost-demo-")
            self._folder = Path(self._endings.enter_context(folder))
            self._service = Service(self._folder)
            self._endings.callback(self._service.end)
        self._service.wait_until_ready()
        return self._service

    def new_account(self, name: str) -> Account:
        return Account(self._folder / f"{name}.sqlite")

    def start_worker(self, name: str, account: Account, *options: str, lease_seconds: int) -> WorkerProcess:
        """Start a worker on the queue that is named after the account."""
        address = self._service.address
        arguments = [address, name, account.name, str(lease_seconds), str(account.path), *options]
        with _undisturbed():
            worker = WorkerProcess(name, *arguments)
            self._endings.callback(worker.end)
        return worker


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back while something is started that is not yet on the list of what is to be ended."""
    came: list[int] = []
    handlers = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _tied(end_signal: signal.Signals, *command: str) -> list[str]:
    """Return the command line of a child that gets end_signal when this process dies."""
    return [_PYTHON, "-I", "-S", str(_TIE), str(os.getpid()), str(int(end_signal)), "", "", *command]


def _until(look: Callable[[], T | None], *, what: str) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NotAsTold(f"waited {DEADLINE_SECONDS:.0f} s in vain for {what}")
        time.sleep(_LOOK_SECONDS)
    return found
