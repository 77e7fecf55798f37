"""The demonstration of the frozen and the stuck worker: what it prints and checks, and that it cleans up."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.documents import ROOT, code, read
from tests.support.processes import answers_of

FOLDER = ROOT / "examples" / "paused-worker"
FENCE = "if account.execute(TAKE_FENCE, facts).rowcount == 0:  # This line makes the difference.\n"
DEADLINE_SECONDS = 100.0

Play = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(name="temporary")
def _temporary() -> Iterator[Path]:
    """Where the demonstration makes its folder; not pytest's own, which it closes to PostgreSQL's account."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(name="play")
def _play(temporary: Path) -> Iterator[Play]:
    """Start the demonstration; it is ended after the test, with all that it has started."""
    started: list[subprocess.Popen[str]] = []

    def play(folder: Path = FOLDER) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, folder / "demo.py"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        started.append(process)
        return process

    yield play
    for process in started:
        process.terminate()
        process.communicate()


def without_times(output: str) -> str:
    return re.sub(r"^ {2}[ \d]{3}\.\d s", "  ###.# s", output, flags=re.MULTILINE)


@pytest.mark.slow
def test_demonstration_ends_well_and_prints_what_its_readme_shows(play: Play, temporary: Path) -> None:
    demonstration = play()
    output, complaints = demonstration.communicate(timeout=DEADLINE_SECONDS)
    assert (demonstration.returncode, complaints) == (0, ""), output
    assert without_times(output) == without_times(code(read(FOLDER / "README.md"), "text"))
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_demonstration_fails_when_the_fence_is_taken_out(play: Play, tmp_path: Path) -> None:
    copy = tmp_path / "examples" / "paused-worker"
    shutil.copytree(FOLDER, copy)
    for package in ("app", "migrations"):
        (tmp_path / package).symlink_to(ROOT / package)
    worker = copy / "worker.py"
    worker.write_text(read(worker).replace(FENCE, "if False:\n"))
    demonstration = play(copy)
    output, complaints = demonstration.communicate(timeout=DEADLINE_SECONDS)
    assert demonstration.returncode == 1, output
    assert complaints.startswith("not as told: expected {'event': 'refused', 'stored_version': 2}")
    assert output.endswith("409 lease_lost, expired (version 1, now 2)\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        # Nobody is left to remove the folder, but the kernel ends the processes.
        pytest.param(
            signal.SIGKILL, -9, marks=pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part")
        ),
    ],
)
def test_demonstration_that_is_ended_while_a_worker_is_frozen_leaves_no_process(
    play: Play, temporary: Path, number: signal.Signals, exit_code: int
) -> None:
    demonstration = play()
    assert demonstration.stdout is not None
    for line in demonstration.stdout:
        if "SIGSTOP" in line:
            break
    children = psutil.Process(demonstration.pid).children(recursive=True)
    assert "postgres" in answers_of(children, lambda child: child.name()).values()
    assert psutil.STATUS_STOPPED in answers_of(children, lambda child: child.status()).values()
    demonstration.send_signal(number)
    _, complaints = demonstration.communicate(timeout=DEADLINE_SECONDS)
    assert (demonstration.returncode, complaints) == (exit_code, "")
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert alive == []
    if number != signal.SIGKILL:
        assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_demonstration_that_is_ended_while_it_starts_leaves_nothing(play: Play, temporary: Path) -> None:
    demonstration = play()
    parent = psutil.Process(demonstration.pid)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (children := parent.children()):
        assert time.monotonic() < deadline, "it starts no service"
        time.sleep(0.01)
    demonstration.send_signal(signal.SIGINT)
    _, complaints = demonstration.communicate(timeout=DEADLINE_SECONDS)
    assert (demonstration.returncode, complaints) == (130, "")
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert (alive, list(temporary.iterdir())) == ([], [])


def test_line_that_the_readme_names_stands_in_the_fenced_write_alone() -> None:
    assert code(read(FOLDER / "README.md"), "python") == FENCE
    unfenced, fenced = re.findall(
        r"^def charge_\w+\(.*?(?=\n\n\n)", read(FOLDER / "worker.py"), re.MULTILINE | re.DOTALL
    )[:2]
    assert FENCE not in unfenced
    assert FENCE in fenced
