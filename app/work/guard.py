"""Kills the process groups of commands when the worker has died; also run as a script, by path.

The kernel can be told to end a child with its parent, but not what that child has started. So a process
beside the worker holds the other end of a pipe: it hears ``+PGID`` for each command that starts and
``-PGID`` for each that has ended, and the end of the pipe when the worker is no more, however it died.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys

log = logging.getLogger("fencepost.work")


class Guard:
    """The worker's side. It lives as long as this process."""

    def __init__(self) -> None:
        # A session of its own: neither a terminal's signals nor one to the worker's group reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self, group: int) -> None:
        """Have a group killed when this process dies."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave a group alone. Its leader is not reaped yet: another one could have its id by then."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End it. What it still watches is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            self._process.stdin = None
            log.error("the guard has died: commands would outlive this worker if it were killed")  # noqa: TRY400


def stand_guard(descriptor: int) -> None:
    """Keep account of groups until the end of the pipe, then kill those that are left."""
    groups: set[int] = set()
    with open(descriptor, "rb") as lines:
        for line in lines:
            if line.startswith(b"+"):
                groups.add(int(line[1:]))
            else:
                groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    stand_guard(0)
