"""The step between fork and the real program of a child process; also run as a script, by path.

A script of its own, because everything here must happen in the child alone: the service has threads, and
Python code that runs between fork and exec in a process with threads can deadlock.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, end_signal: int) -> None:
    """Have the kernel send end_signal to this process once the thread that started it has ended.

    Linux only; elsewhere nothing happens. The kernel forgets the order when the process changes its user, so
    this comes after that. Ends this process at once when parent_pid is no longer its parent.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, end_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the order was given.
    if os.getppid() != parent_pid:
        os._exit(1)


def become(uid: int, gid: int) -> None:
    """Give up root for the system user uid with the only group gid, for good."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def run_script(arguments: list[str]) -> None:
    """Run `PARENT_PID END_SIGNAL UID GID PROGRAM ARGUMENT...`; never returns.

    UID and GID are empty when the program is to run as the user of this process.
    """
    parent_pid, end_signal, uid, gid, *command = arguments
    if uid:
        become(int(uid), int(gid))
    end_with_parent(int(parent_pid), int(end_signal))
    os.umask(0o077)
    # Python ignores these two, and what is ignored stays ignored over exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # None of the service's environment: no secrets, no PG* variables that would change the server.
    os.execve(command[0], command, {"LC_ALL": "C", "PATH": os.defpath})


if __name__ == "__main__":
    run_script(sys.argv[1:])
