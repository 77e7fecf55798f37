"""What postmaster.pid says about the server that runs on a data folder."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PID_FILE = "postmaster.pid"
_SOCKET_LOCK_FILE = ".s.PGSQL.5432.lock"
# A server that starts writes its lock files at once; one that is empty for longer never will be written.
_WRITE_SECONDS = 1.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Postmaster:
    """One live server process; status is starting, ready, stopping or, before the first word of it, empty."""

    pid: int
    port: str
    socket_folder: str
    status: str


def find_postmaster(data_folder: Path) -> Postmaster | None:
    """Return the server that runs on data_folder, or None when there is none."""
    lines = _lines(data_folder / _PID_FILE)
    if not lines or not lines[0].isdigit() or not _is_postmaster(int(lines[0]), data_folder):
        return None
    # The server writes its file line by line while it starts.
    padded = [line.strip() for line in lines] + [""] * 8
    return Postmaster(pid=int(padded[0]), port=padded[3], socket_folder=padded[4], status=padded[7])


def remove_remnants(data_folder: Path, socket_folder: Path) -> None:
    """Remove the lock files of a server that is gone where PostgreSQL itself would refuse to start for ever.

    That is an empty one, left by a server that was killed while it wrote the file, and one whose number
    belongs to some other program by now (in a container, where numbers are small, that happens). The file of
    a process that is gone stays: PostgreSQL reads in it whether other processes still use the shared memory.
    Call only under the lock of the data folder.
    """
    for path in (data_folder / _PID_FILE, socket_folder / _SOCKET_LOCK_FILE):
        if _is_remnant(path, data_folder):
            path.unlink(missing_ok=True)


def _is_remnant(path: Path, data_folder: Path) -> bool:
    deadline = time.monotonic() + _WRITE_SECONDS
    while True:
        lines = _lines(path)
        if lines and lines[0].isdigit():
            pid = int(lines[0])
            return _is_alive(pid) and not _is_postmaster(pid, data_folder)
        if not path.exists():
            return False
        # Its time stamp says nothing about how long it is empty: the clock may have been set since.
        if time.monotonic() > deadline:
            return True
        time.sleep(_LOOK_SECONDS)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _is_postmaster(pid: int, data_folder: Path) -> bool:
    """Whether process pid lives and, where /proc can tell, works in data_folder, as a postmaster does."""
    process = Path("/proc") / str(pid)
    if not Path("/proc/self").exists():
        return _is_alive(pid)
    try:
        return (process / "cwd").samefile(data_folder)
    except OSError:
        # Gone, a zombie, or another user's process, which is no server of ours.
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
