"""A command as a process group of its own."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from app.work import descriptors
from app.work.environment import PROGRESS_DESCRIPTOR
from app.work.guard import Guard


@dataclass(frozen=True, slots=True)
class Ends:
    """This process's ends of what the command has as descriptors 0 to 3."""

    stdin: int
    stdout: int
    stderr: int
    progress: int


class Process:
    """A command that runs. It belongs to the event loop that started it.

    Its leader is reaped by ``reap`` alone, so that until then no other process can have its id.
    """

    def __init__(self, pid: int, ends: Ends, guard: Guard) -> None:
        self.ends = ends
        self.exited = asyncio.Event()
        self._pid = pid
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._is_reaped = False
        self._kill: asyncio.TimerHandle | None = None
        threading.Thread(target=self._await_exit, name=f"fencepost-command-{pid}", daemon=True).start()

    @classmethod
    def start(cls, path: str, arguments: tuple[str, ...], environ: Mapping[str, str], guard: Guard) -> Self:
        """Start a command; raise OSError or ValueError when the system will not have it."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

            def kept(mine: int, other: int) -> tuple[int, int]:
                ours.callback(os.close, mine)
                theirs.callback(os.close, other)
                return mine, other

            read_end, write_end = descriptors.pipe()
            stdin, their_stdin = kept(write_end, read_end)
            stdout, their_stdout = kept(*descriptors.pipe())
            stderr, their_stderr = kept(*descriptors.pipe())
            progress, their_progress = kept(*descriptors.socket_pair())
            pid = os.posix_spawn(
                path,
                arguments,
                environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, their_stdin, 0),
                    (os.POSIX_SPAWN_DUP2, their_stdout, 1),
                    (os.POSIX_SPAWN_DUP2, their_stderr, 2),
                    (os.POSIX_SPAWN_DUP2, their_progress, PROGRESS_DESCRIPTOR),
                ],
                setpgroup=0,
                # Python ignores these two, and what is ignored stays ignored over exec.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
            guard.watch(pid)
            ours.pop_all()
        return cls(pid, Ends(stdin, stdout, stderr, progress), guard)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        # Nobody is left, or only such as have changed their user.
        if not self._is_reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM now and SIGKILL after the grace; again it does nothing."""
        if self._kill is None:
            self.signal(signal.SIGTERM)
            self._kill = self._loop.call_later(grace_seconds, self.signal, signal.SIGKILL)

    def reap(self) -> int:
        """Return the exit code of the leader, which has ended; negative for a signal."""
        if self._kill is not None:
            self._kill.cancel()
        self._guard.forget(self._pid)
        _, status = os.waitpid(self._pid, 0)
        self._is_reaped = True
        return os.waitstatus_to_exitcode(status)

    def _await_exit(self) -> None:
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        # At the end of this process the loop may be gone.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.exited.set)
