"""The process that kills what a dead worker leaves."""

import os
import signal
import subprocess
import sys

import psutil

from app.work import guard

_LIMIT_SECONDS = 30.0


def _sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["/bin/sleep", "600"], process_group=0)


def test_the_end_of_the_pipe_kills_the_groups_that_are_still_watched_and_no_other() -> None:
    watched, forgotten = _sleeper(), _sleeper()
    try:
        script = subprocess.Popen([sys.executable, guard.__file__], stdin=subprocess.PIPE)
        script.communicate(f"+{watched.pid}\n+{forgotten.pid}\n-{forgotten.pid}\n".encode(), _LIMIT_SECONDS)
        assert watched.wait(_LIMIT_SECONDS) == -signal.SIGKILL
        assert forgotten.poll() is None
    finally:
        for process in (watched, forgotten):
            process.kill()
            process.wait(_LIMIT_SECONDS)


def test_a_worker_goes_on_without_its_guard() -> None:
    # Other tests may have left a child that nobody has waited for.
    before = psutil.Process().children()
    lonely = guard.Guard()
    [process] = [each for each in psutil.Process().children() if each not in before]
    process.kill()
    process.wait(_LIMIT_SECONDS)
    # The first word finds the pipe broken.
    lonely.watch(os.getpid())
    lonely.forget(os.getpid())
    lonely.close()
