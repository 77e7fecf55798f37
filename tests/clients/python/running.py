"""Workers while a test looks on: in a thread of this process, or as a program."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost import Worker

DEADLINE_SECONDS = 60.0


def wait_until(is_so: Callable[[], object], *, timeout_seconds: float = DEADLINE_SECONDS) -> None:
    """Return once something is so, looking again and again."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{is_so} has not come true"
        time.sleep(0.02)


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """Run a worker in a thread, and shut it down in the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run(handle_signals=False)
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "the worker has not shut down"
    if failures:
        raise failures[0]


class Program:
    """A worker of ``programs.py``. Its handlers write marks: files in a folder."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_path: Path, folder: Path) -> None:
        self.process = process
        self._log_path = log_path
        self._folder = folder

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def mark(self, name: str) -> str:
        """Return what a mark says, once it is there."""
        path = self._folder / name
        wait_until(lambda: path.exists() or self.process.poll() is not None)
        assert path.exists(), f"the program ended with {self.process.poll()}:\n{self.log}"
        return path.read_text()

    def has_mark(self, name: str) -> bool:
        return (self._folder / name).exists()

    def go_on(self) -> None:
        """Let a process that imports the program slowly come to its end."""
        (self._folder / "go-on").touch()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            # It may be stopped: SIGKILL ends it all the same.
            self.process.kill()
            self.process.wait(DEADLINE_SECONDS)
