"""The Python client against a real service: one for the whole run, and a queue for each test.

url        the service's address; its leases are reclaimed a fifth of a second after their time
queue      a name that no other test has
producer   a client
program    starts a worker of ``programs.py`` as a process of its own
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fencepost import Client

from tests.clients.python.running import Program
from tests.support.server import ServerProcess

_PROGRAMS = Path(__file__).with_name("programs.py")


@pytest.fixture
def url(shared_service: ServerProcess) -> str:
    return shared_service.url


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4().hex}"


@pytest.fixture
def producer(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def program(url: str, queue: str, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """``program("hold", lease_seconds=2)``: a worker whose options are given, on this test's queue."""
    started: list[Program] = []

    def start(name: str, **options: object) -> Program:
        log = tmp_path / f"worker{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(_PROGRAMS), name, str(tmp_path), url, queue]
                + [f"{option}={value}" for option, value in options.items()],
                stdout=out,
                stderr=out,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        started.append(Program(process, log, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()
