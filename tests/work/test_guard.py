"""The process that kills what a dead worker leaves."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from app.work import guard

_LIMIT_SECONDS = 30.0


def _sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/bin/sleep", "600"], process_group=0)


# A worker that watches both groups, one of them no longer, and then lives until it is killed.
_WORKER = """
import sys
from app.work.guard import Guard
watched, forgotten = map(int, sys.argv[1:])
guard = Guard(2)
guard.watch(forgotten)
guard.watch(watched)
guard.forget(forgotten)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_death_of_a_worker_kills_the_groups_that_are_still_watched_and_no_other() -> None:
    watched, forgotten = _sleeper(), _sleeper()
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(watched.pid), str(forgotten.pid)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        worker.kill()
        assert watched.wait(_LIMIT_SECONDS) == -signal.SIGKILL
        assert forgotten.poll() is None
    finally:
        for process in (worker, watched, forgotten):
            process.kill()
            process.wait(_LIMIT_SECONDS)


def test_the_place_of_a_group_that_is_forgotten_is_free_for_another() -> None:
    sleepers = [_sleeper() for _ in range(2)]
    one = guard.Guard(1)
    for sleeper in sleepers:
        one.watch(sleeper.pid)
        one.forget(sleeper.pid)
    one.watch(sleepers[1].pid)
    one.close()
    try:
        assert sleepers[1].wait(_LIMIT_SECONDS) == -signal.SIGKILL
        assert sleepers[0].poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait(_LIMIT_SECONDS)


def test_a_worker_goes_on_without_its_guard_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    # Other tests may have left a child that nobody has waited for.
    before = psutil.Process().children()
    lonely = guard.Guard(1)
    [process] = [each for each in psutil.Process().children() if each not in before]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(2):
        lonely.watch(os.getpid())
        lonely.forget(os.getpid())
    lonely.close()
    assert [record.getMessage()[:18] for record in caplog.records] == ["the guard has died"]
