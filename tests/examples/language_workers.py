"""The workers of ``examples/workers`` as processes: how each is run, frozen and ended."""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.programs import needed_program

DEADLINE_SECONDS = 60.0
WORKERS = Path(__file__).parents[2] / "examples" / "workers"
RunFolder = Path


def _bash(_: RunFolder) -> list[str]:
    needed_program("curl")
    needed_program("jq")
    return [str(WORKERS / "worker.sh")]


def _java(_: RunFolder) -> list[str]:
    # Without its compiler Java runs no source file.
    needed_program("javac")
    # A life of seconds is over before the second compiler's work pays.
    return [str(needed_program("java")), "-XX:TieredStopAtLevel=1", str(WORKERS / "Worker.java")]


def _perl(_: RunFolder) -> list[str]:
    # A Debian has a Perl without the core modules; this program comes with them.
    needed_program("json_pp")
    return ["perl", str(WORKERS / "worker.pl")]


def _ruby(_: RunFolder) -> list[str]:
    return [str(needed_program("ruby")), str(WORKERS / "worker.rb")]


def _rust(folder: RunFolder) -> list[str]:
    """Build it, once a run; the other processes of the run wait for the first."""
    cargo = needed_program("cargo")
    crate = folder / "rust"
    program = crate / "target" / "debug" / "worker"
    with (folder / "rust.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            shutil.copytree(WORKERS / "rust", crate, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
            built = subprocess.run(
                [cargo, "build", "--quiet"], cwd=crate, capture_output=True, text=True, check=False
            )
            assert (built.returncode, built.stderr) == (0, "")
    return [str(program)]


# The command of each, to which address and queue are added.
LANGUAGES: dict[str, Callable[[RunFolder], list[str]]] = {
    "bash": _bash,
    "java": _java,
    "perl": _perl,
    "ruby": _ruby,
    "rust": _rust,
}


class LanguageWorker:
    """One worker with all the processes that it starts; they are a session of their own."""

    def __init__(self, command: list[str], url: str, queue: str, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*command, url, queue],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=os.environ | environ,
            start_new_session=True,
        )

    def next_line(self) -> str:
        """Return the next line that it prints; fail when there is none in time."""
        out = self._process.stdout
        assert out is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], DEADLINE_SECONDS)
            assert ready, "it prints nothing"
            piece = os.read(out.fileno(), 1)
            assert piece, f"it has ended, with {self.wait()}"
            line += piece
        return line.decode().strip()

    def freeze(self) -> None:
        """Stop every process of it, as a machine that is suspended does."""
        stopped: set[int] = set()
        while fresh := set(self._processes()) - stopped:
            for pid in fresh:
                os.kill(pid, signal.SIGSTOP)
            stopped |= fresh

    def thaw(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to its first process, as a supervisor sends it, without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> tuple[int, str]:
        """Return the exit code, and what it wrote to standard error."""
        _, errors = self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode, errors.decode()

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def _processes(self) -> Iterator[int]:
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self._process.pid:
                    yield pid


def folder_of_the_run(factory: pytest.TempPathFactory) -> RunFolder:
    """Return a folder that all processes of this run of the tests share, and no other run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
