"""Kills the process groups of commands when the worker has died; also run as a script, by path.

The kernel can be told to end a child with its parent, but not what that child has started. So the worker
keeps the ids of the groups in memory that it shares with a process beside it. That one holds the other end of
a pipe: it wakes when the worker is no more, however it died, and kills what the memory names.
"""

import contextlib
import logging
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
from typing import IO

log = logging.getLogger("fencepost.work")


class Guard:
    """The worker's side, for so many groups at once. It lives as long as this process."""

    def __init__(self, most_groups: int) -> None:
        with _unnamed_file() as file:
            # Zero stands for a place that is free.
            file.truncate(most_groups * struct.calcsize("i"))
            self._groups = _groups_in(file.fileno())
            # A session of its own: neither a terminal's signals nor one to the worker's group reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(file.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[file.fileno()],
                start_new_session=True,
            )
        self._free = list(range(most_groups))
        self._places: dict[int, int] = {}
        self._is_alive = True

    def watch(self, group: int) -> None:
        """Have a group killed when this process dies."""
        if self._is_alive and self._process.poll() is not None:
            self._is_alive = False
            log.error("the guard has died: commands would outlive this worker if it were killed")
        place = self._places[group] = self._free.pop()
        self._groups[place] = group

    def forget(self, group: int) -> None:
        """Leave a group alone. Its leader is not reaped yet: another one could have its id by then."""
        place = self._places.pop(group)
        self._groups[place] = 0
        self._free.append(place)

    def close(self) -> None:
        """End it. What it still watches is killed."""
        self._process.communicate()


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        # Also where no file may be written.
        return os.fdopen(os.memfd_create("groups"), "w+b")
    return tempfile.TemporaryFile()


def _groups_in(descriptor: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0)).cast("i")


def stand_guard(life: int, groups: int) -> None:
    """Wait for the end of a pipe, then kill the groups whose ids are in a file."""
    while os.read(life, 1):
        pass
    for group in _groups_in(groups):
        if group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    stand_guard(0, int(sys.argv[1]))
