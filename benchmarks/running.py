"""A program of this package as a process that serves, on a database of its own."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.measures import Target


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of this machine that nobody else is given meanwhile.

    It is bound and nobody listens: a server that asks for it by its number gets it, with SO_REUSEADDR.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        yield port


@contextmanager
def running(program: str, server_url: str, name: str, *options: str) -> Iterator[Target]:
    """Start ``program`` on a new database called ``name``; it is ended by its id."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with running_on(program, server_url.replace("/postgres?", f"/{name}?"), *options) as target:
        yield target


@contextmanager
def running_on(program: str, database_url: str, *options: str) -> Iterator[Target]:
    """Start ``program`` on a database; it is ended by its id."""
    with reserved_port() as port:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{program}", str(port), database_url, *options]
        )
        try:
            _wait_for(port)
            yield Target(port, process.pid, database_url)
        finally:
            process.terminate()
            process.wait(15)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the service does not listen")
