"""BundledServer: one data folder and the PostgreSQL 18 that runs on it.

    start           initdb if the folder is new, then adopt the running server or start one; returns its URL
    ensure_running  the same once more if the server has died
    stop            fast shutdown, and wait for it

The server is a direct child of this process and listens on a unix socket only. The database is the one that
initdb makes, `postgres`: nothing has to be created after it, so a first start that was cut short leaves
nothing half-made.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from app.embedded import child
from app.embedded.binaries import (
    POSTGRES_MAJOR,
    Account,
    BundledServerError,
    account_for,
    binary_folder,
    let_pass,
    let_run,
)
from app.embedded.postmaster import Postmaster, find_postmaster, remove_remnants

_logger = logging.getLogger(__name__)

_DATABASE: Final = "postgres"
_USER: Final = "postgres"
_SOCKET_NAME_BYTES: Final = len("/.s.PGSQL.5432")
# The shortest limit of the systems we run on (macOS); Linux has 108.
_SOCKET_PATH_BYTES: Final = 103
_LOG_BYTES: Final = 16 * 1024 * 1024
# Long enough for crash recovery over max_wal_size of log on a slow disk.
_READY_SECONDS: Final = 300.0
# How long to try against what passes: backends of a killed server that still hold the shared memory, a lock
# file that a killed server left empty, or somebody who kills the server while it starts.
_PASSING_SECONDS: Final = 30.0
# A server whose parent has just been killed still says "ready" until the kernel has told it.
_ADOPTION_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.02

_SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    # The statements are short and prepared; compiling them costs more than it saves.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Statements and key values may carry what a producer sent; the log is not the place for it.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


class BundledServer:
    """The PostgreSQL server of one data folder.

    The kernel ends a server together with the thread that started it (Linux; fast shutdown), so start and
    ensure_running belong in the main thread or in one that lives as long as the server shall. The methods may
    be called from any thread.
    """

    def __init__(self, data_dir: Path, *, settings: Mapping[str, str] | None = None) -> None:
        """Describe the server of data_dir; settings (names of postgresql.conf) win over the built-in ones."""
        self._data_dir = data_dir.expanduser().absolute()
        self._data_folder = self._data_dir / "postgres"
        self._socket_folder = _socket_folder(self._data_dir)
        self._settings = {**_SERVER_SETTINGS, **(settings or {})}
        self._child: subprocess.Popen[bytes] | None = None
        # Where in the log the words of the program begin that was started last.
        self._log_mark = 0
        self._turn = threading.Lock()
        self._stop_asked = threading.Event()

    @property
    def pid(self) -> int | None:
        """The process id of the running server, None when none runs."""
        postmaster = self._postmaster()
        return postmaster.pid if postmaster else None

    @property
    def is_adopted(self) -> bool:
        """Whether a server runs that another process started."""
        return self.pid is not None and not self._child_is_alive()

    def start(self) -> str:
        """Make sure that a server runs and answers; return its URL, postgresql://….

        Raises BundledServerError when it cannot be started.
        """
        self._stop_asked.clear()
        with self._turn:
            return self._start()

    def ensure_running(self) -> bool:
        """Start the server again if it has ended, unless stop was called; tell whether it was started."""
        with self._turn:
            if self._stop_asked.is_set() or self._child_is_alive() or self._postmaster() is not None:
                return False
            self._start()
            return True

    def stop(self, *, timeout_seconds: float = 60.0) -> None:
        """Shut the server down, adopted or not: sessions end, data is written out. No server is no error.

        A server that needs longer than timeout_seconds is stopped at once, which costs a recovery at the next
        start.
        """
        self._stop_asked.set()
        with self._turn:
            for stop_signal, seconds in ((signal.SIGINT, timeout_seconds), (signal.SIGQUIT, 10.0)):
                if self._signal_and_wait(stop_signal, seconds):
                    self._remove_temporary_folder()
                    return
            raise BundledServerError(f"the bundled PostgreSQL does not end: see {self._log_path}")

    def _start(self) -> str:
        try:
            account = account_for(self._data_folder)
            self._prepare_data_dir(account)
            with self._locked():
                if not self._data_folder.exists():
                    self._initialise(account)
                self._refuse_foreign_data(account)
                postmaster = self._await_ready(account)
        except OSError as error:
            raise BundledServerError(f"the bundled PostgreSQL cannot be started: {error}") from error
        return _url(postmaster)

    @property
    def _log_path(self) -> Path:
        return self._data_dir / "postgres.log"

    def _postmaster(self) -> Postmaster | None:
        try:
            return find_postmaster(self._data_folder)
        except PermissionError as error:
            raise BundledServerError(f"{self._data_folder} belongs to another user") from error

    def _child_is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _prepare_data_dir(self, account: Account | None) -> None:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if (self._data_dir / "PG_VERSION").exists():
            raise BundledServerError(
                f"{self._data_dir} is the data folder of another PostgreSQL server: choose another one"
            )
        if account is not None:
            let_run(account, binary_folder())
            let_pass(account, self._data_dir)

    def _refuse_foreign_data(self, account: Account | None) -> None:
        owner = self._data_folder.stat().st_uid
        if owner != (account.uid if account else os.geteuid()):
            raise BundledServerError(f"{self._data_folder} belongs to another user (uid {owner})")
        version_path = self._data_folder / "PG_VERSION"
        version = version_path.read_text(encoding="utf-8").strip() if version_path.exists() else "none"
        if version != POSTGRES_MAJOR:
            raise BundledServerError(
                f"{self._data_folder} holds data of PostgreSQL version {version}, but the bundled server is "
                f"version {POSTGRES_MAJOR}: move the folder away, or set FENCEPOST_DATABASE_URL"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the data folder: one process at a time makes data or starts a server in it."""
        with (self._data_dir / "lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _initialise(self, account: Account | None) -> None:
        """Make a database cluster aside and move it into place, so that it exists whole or not at all."""
        partial = self._data_dir / "postgres.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _make_private_folder(partial, account)
        command = [
            str(binary_folder() / "initdb"),
            f"--pgdata={partial}",
            f"--username={_USER}",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            # The folder of the socket lets in only the owner of the data.
            "--auth-local=trust",
            "--auth-host=reject",
            "--no-instructions",
        ]
        if self._settings.get("fsync") == "off":
            command.append("--no-sync")
        with self._open_log(account) as log:
            initdb = self._spawn(command, account, log=log, end_signal=signal.SIGTERM)
            try:
                exit_code = initdb.wait()
            except BaseException:
                initdb.terminate()
                # It removes what it has made; whoever gets the lock next must not meet it at that.
                initdb.wait()
                raise
        if exit_code != 0:
            raise BundledServerError(f"initdb failed: {self._last_word()} (see {self._log_path})")
        partial.rename(self._data_folder)

    def _await_ready(self, account: Account | None) -> Postmaster:
        """Return the server once it is ready; start one when none runs, wait for one that is going down."""
        began = time.monotonic()
        ready_since: float | None = None
        spawned = False
        while time.monotonic() - began < _READY_SECONDS and not self._stop_asked.is_set():
            postmaster = self._postmaster()
            if postmaster is not None and postmaster.status == "ready":
                ready_since = ready_since or time.monotonic()
                if self._child_is_alive() or time.monotonic() - ready_since >= _ADOPTION_SECONDS:
                    return postmaster
            else:
                ready_since = None
            if postmaster is None and not self._child_is_alive():
                if spawned:
                    self._refuse_hopeless_start(time.monotonic() - began)
                self._spawn_server(account)
                spawned = True
            time.sleep(_LOOK_SECONDS)
        outcome = (
            "was told to stop" if self._stop_asked.is_set() else f"is not ready in {_READY_SECONDS:.0f} s"
        )
        raise BundledServerError(f"the bundled PostgreSQL {outcome} (see {self._log_path})")

    def _refuse_hopeless_start(self, waited_seconds: float) -> None:
        exit_code = self._child.returncode if self._child else 0
        last_word = self._last_word() if exit_code >= 0 else f"killed by signal {-exit_code}"
        passes = exit_code < 0 or "is still in use" in last_word or "is empty" in last_word
        if passes and waited_seconds < _PASSING_SECONDS:
            time.sleep(0.1)
            return
        raise BundledServerError(f"the bundled PostgreSQL ends at once: {last_word} (see {self._log_path})")

    def _spawn_server(self, account: Account | None) -> None:
        self._make_socket_folder(account)
        remove_remnants(self._data_folder, self._socket_folder)
        escaped = str(self._socket_folder).replace('"', '""')
        settings = {**self._settings, "unix_socket_directories": f'"{escaped}"'}
        command = [str(binary_folder() / "postgres"), "-D", str(self._data_folder)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._open_log(account) as log:
            self._child = self._spawn(command, account, log=log, end_signal=signal.SIGINT)

    def _spawn(
        self, command: list[str], account: Account | None, *, log: int, end_signal: signal.Signals
    ) -> "subprocess.Popen[bytes]":
        ids = [str(account.uid), str(account.gid)] if account else ["", ""]
        start_step = [
            sys.executable,
            "-I",
            "-S",
            child.__file__,
            str(os.getpid()),
            str(int(end_signal)),
            *ids,
        ]
        # A session of its own keeps Ctrl-C in the terminal from ending the database before the service.
        return subprocess.Popen(
            [*start_step, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._data_dir,
            start_new_session=True,
        )

    def _make_socket_folder(self, account: Account | None) -> None:
        """Make the folder of the socket, closed to everybody but the server's user (and root)."""
        _make_private_folder(self._socket_folder, account)
        if account is not None:
            let_pass(account, self._socket_folder)

    def _remove_temporary_folder(self) -> None:
        if self._socket_folder.parent != self._data_dir:
            # Gone already, or a server runs again by now.
            with contextlib.suppress(OSError):
                self._socket_folder.rmdir()

    @contextlib.contextmanager
    def _open_log(self, account: Account | None) -> Iterator[int]:
        with contextlib.suppress(FileNotFoundError):
            if self._log_path.stat().st_size > _LOG_BYTES:
                self._log_path.replace(self._log_path.with_suffix(".log.1"))
        log = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if account is not None:
                os.fchown(log, account.uid, account.gid)
            self._log_mark = os.fstat(log).st_size
            yield log
        finally:
            os.close(log)

    def _last_word(self) -> str:
        """Return the last error that the program started last has told, or else its last line."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_mark)
            lines = log.read().decode(errors="replace").splitlines()
        errors = [line for line in lines if "FATAL:" in line or "PANIC:" in line or "error:" in line]
        return (errors or lines or ["it says nothing"])[-1].strip()

    def _signal_and_wait(self, stop_signal: signal.Signals, seconds: float) -> bool:
        postmaster = self._postmaster()
        if postmaster is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(postmaster.pid, stop_signal)
        elif self._child is not None and self._child.poll() is None:
            self._child.send_signal(stop_signal)
        deadline = time.monotonic() + seconds
        while self._child_is_alive() or self._postmaster() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def _socket_folder(data_dir: Path) -> Path:
    """Return the place for the socket: in data_dir, or a temporary folder when that path is too long."""
    folder = data_dir / "run"
    if len(os.fsencode(folder)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES:
        return folder
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fencepost-{digest}"


def _make_private_folder(folder: Path, account: Account | None) -> None:
    """Make folder for the server's user alone; one that is there already must be that user's."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        owner = folder.stat(follow_symlinks=False)
        if owner.st_uid != (account.uid if account else os.geteuid()):
            raise BundledServerError(f"{folder} belongs to another user (uid {owner.st_uid})") from None
        return
    if account is not None:
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _url(postmaster: Postmaster) -> str:
    """Return the libpq URL; the port stands in it so that a PGPORT of the environment changes nothing."""
    host = quote(postmaster.socket_folder, safe="")
    return f"postgresql://{_USER}@/{_DATABASE}?host={host}&port={postmaster.port}"
