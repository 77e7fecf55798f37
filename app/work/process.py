"""A command as a process group of its own."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from app.work.environment import PROGRESS_DESCRIPTOR
from app.work.guard import Guard
from app.work.watch import Watch


def occupy_the_commands_descriptors() -> None:
    """Let no pipe to a command be opened as one of those that it gets: they are put in place one by one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= PROGRESS_DESCRIPTOR:
        pass
    os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Ends:
    """This process's ends of what the command has as descriptors 0 to PROGRESS_DESCRIPTOR."""

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
        self.has_exited = False
        self._pid = pid
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._is_reaped = False
        self._kill: asyncio.TimerHandle | None = None

    @classmethod
    def start(cls, path: str, arguments: tuple[str, ...], environ: Mapping[str, str], guard: Guard) -> Self:
        """Start a command; raise OSError or ValueError when the system will not have it."""
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for channel in (_pipe_to, os.pipe, os.pipe, _sockets):
                our_end, their_end = channel()
                ours.append(our_end)
                theirs.append(their_end)
            pid = os.posix_spawn(
                path,
                arguments,
                environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(theirs)],
                setpgroup=0,
                # Python ignores these two, and what is ignored stays ignored over exec.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
            guard.watch(pid)
        except BaseException:
            for end in ours:
                os.close(end)
            raise
        finally:
            for end in theirs:
                os.close(end)
        return cls(pid, Ends(*ours), guard)

    def await_exit(self, watch: Watch, tell: Callable[[], None]) -> None:
        """Have ``tell`` called when the leader has exited."""

        def exited() -> None:
            self.has_exited = True
            tell()

        def seen() -> None:
            watch.remove(descriptor)
            os.close(descriptor)
            exited()

        def wait() -> None:
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
            # At the end of this process the loop may be gone.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(exited)

        try:
            descriptor = os.pidfd_open(self._pid)
        except (AttributeError, OSError):
            # Not every system has these, nor lets every process have them.
            threading.Thread(target=wait, name=f"fencepost-command-{self._pid}", daemon=True).start()
        else:
            watch.add(descriptor, seen)

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


def _pipe_to() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    return write_end, read_end


def _sockets() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()
