import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.work.guard import Guard
from app.work.process import Process
from app.work.watch import Watch

_LIMIT_SECONDS = 30.0


@pytest.fixture(name="guard")
def _guard() -> Iterator[Guard]:
    guard = Guard(1)
    yield guard
    guard.close()


def _refused(_: int) -> int:
    raise OSError(errno.ENOSYS, "no such call")


def _open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def _close(process: Process) -> None:
    for end in (process.ends.stdin, process.ends.stdout, process.ends.stderr, process.ends.progress):
        os.close(end)


@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_the_exit_is_told_also_where_no_descriptor_tells_it(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, *, has_descriptors: bool
) -> None:
    if not has_descriptors:
        monkeypatch.setattr(os, "pidfd_open", _refused)
    exited = asyncio.Event()
    process = Process.start("/bin/sh", ("sh", "-c", "read line; exit 7"), {}, guard)
    process.await_exit(Watch(), exited.set)
    assert not exited.is_set()
    os.write(process.ends.stdin, b"go\n")
    await asyncio.wait_for(exited.wait(), _LIMIT_SECONDS)
    assert process.has_exited
    assert process.reap() == 7
    _close(process)


async def test_a_signal_reaches_nobody_once_the_command_is_reaped(guard: Guard) -> None:
    exited = asyncio.Event()
    process = Process.start("/bin/sleep", ("sleep", "600"), {}, guard)
    process.await_exit(Watch(), exited.set)
    process.stop(0.0)
    await asyncio.wait_for(exited.wait(), _LIMIT_SECONDS)
    assert process.reap() == -signal.SIGTERM
    process.signal(signal.SIGKILL)
    _close(process)


async def test_a_command_that_cannot_be_started_leaves_no_descriptor(guard: Guard) -> None:
    before = _open_descriptors()
    with pytest.raises(FileNotFoundError):
        Process.start("/no/such/program", ("program",), {}, guard)
    assert _open_descriptors() == before
