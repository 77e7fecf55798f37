"""A PostgreSQL for the run, and Redis and beanstalkd where installed; on loopback, and ended by their ids."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_START_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses; None for a server that is not here."""

    postgres_url: str
    redis_url: str | None
    beanstalkd_url: str | None


@contextmanager
def running_servers(home: Path, *, postgres_bin: Path, postgres_url: str | None) -> Iterator[Servers]:
    """Start what is installed on fresh folders in home, and stop and remove it at the end.

    A postgres_url is used as it is; its role must be a superuser.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servers-", dir=home)))
        folder.chmod(0o755)
        if postgres_url is None:
            postgres_url = stack.enter_context(_running_postgres(folder, postgres_bin))
        yield Servers(
            postgres_url,
            stack.enter_context(_running_redis(folder)),
            stack.enter_context(_running_beanstalkd(folder)),
        )


def outside_versions() -> list[str]:
    """Return what the servers outside PostgreSQL say of themselves, those that are here."""
    asked = (("redis-server", "--version"), ("beanstalkd", "-v"))
    return [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        for command in asked
        if shutil.which(command[0])
    ]


@contextmanager
def _running_postgres(folder: Path, programs: Path) -> Iterator[str]:
    as_owner: list[str] = []
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        owner = pwd.getpwnam("postgres")
        as_owner = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--init-groups"]
        (folder / "postgres").mkdir()
        os.chown(folder / "postgres", owner.pw_uid, owner.pw_gid)
    else:
        (folder / "postgres").mkdir()
    data, port = folder / "postgres" / "data", _free_port()
    pg_ctl = [*as_owner, str(programs / "pg_ctl"), f"--pgdata={data}", "--silent"]
    initdb = [str(programs / "initdb"), f"--pgdata={data}", "--auth=trust", "--username=postgres"]
    _quietly([*as_owner, *initdb, "--locale=C.UTF-8", "--encoding=UTF8"])
    with (data / "postgresql.conf").open("a") as configuration:
        configuration.write((_HERE / "postgresql.conf").read_text())
        configuration.write(f"port = {port}\nunix_socket_directories = '{folder / 'postgres'}'\n")
    _quietly([*pg_ctl, f"--log={folder / 'postgres' / 'log'}", "--wait", "start"])
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        _quietly([*pg_ctl, "--mode=immediate", "stop"])


@contextmanager
def _running_redis(folder: Path) -> Iterator[str | None]:
    port, data = _free_port(), folder / "redis"
    data.mkdir()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), "--save", ""]
    command = ["redis-server", *options, "--appendonly", "yes", "--appendfsync", "everysec"]
    with _running(command, port) as is_running:
        yield f"redis://127.0.0.1:{port}/0" if is_running else None


@contextmanager
def _running_beanstalkd(folder: Path) -> Iterator[str | None]:
    port, data = _free_port(), folder / "beanstalkd"
    data.mkdir()
    with _running(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(data)], port) as is_running:
        yield f"beanstalk://127.0.0.1:{port}" if is_running else None


@contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[bool]:
    if shutil.which(command[0]) is None:
        yield False
        return
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield True
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _quietly(command: Sequence[str]) -> None:
    """Run a program whose output matters only when it fails."""
    # Not through pipes: the server that pg_ctl starts would inherit them, and their end would never come.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False)
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {output.read().decode(errors='replace')}")
