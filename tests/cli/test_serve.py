"""The life of `fencepost serve` as its operator sees it: real processes, signals, exit codes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from app.embedded.server import BundledServer
from tests.support.processes import answers_of
from tests.support.stopwatch import until_quick

_LIMIT_SECONDS = 60.0
_END_SECONDS = 10.0
_ROOT = Path(__file__).parents[2]


@dataclass
class Service:
    """A running `fencepost serve` with its bundled server."""

    process: "subprocess.Popen[bytes]"
    url: str
    log_path: Path
    database: BundledServer

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=_LIMIT_SECONDS)

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(_END_SECONDS)


@pytest.fixture(name="data_dir")
def _data_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-test-"))
    yield folder / "data"
    BundledServer(folder / "data").stop()
    shutil.rmtree(folder)


@pytest.fixture(name="serve")
def _serve(data_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start the service and wait until it is ready; options are added to the command line."""
    processes: list[subprocess.Popen[bytes]] = []

    def serve(*options: str) -> Service:
        log_path = tmp_path / f"log-{len(processes)}"
        process = _start(["--port=0", f"--data-dir={data_dir}", *options], log_path=log_path)
        processes.append(process)
        _wait_until(lambda: "listening on" in log_path.read_text() or process.poll() is not None)
        found = re.search(r"listening on (http://[\w.:]+)", log_path.read_text())
        assert found, log_path.read_text()
        service = Service(process, found[1], log_path, BundledServer(data_dir))
        _wait_until(service.is_ready)
        return service

    yield serve
    for process in processes:
        process.kill()
        process.wait()


def _start(
    options: list[str], *, log_path: Path, environ: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *options],
            stderr=log,
            cwd=_ROOT,
            env=inherited | (environ or {}),
        )


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def _refusal(options: list[str], *, tmp_path: Path, environ: dict[str, str] | None = None) -> tuple[int, str]:
    log_path = tmp_path / "refusal"
    exit_code = _start(options, log_path=log_path, environ=environ).wait(_LIMIT_SECONDS)
    lines = log_path.read_text().splitlines()
    assert len(lines) == 1, lines
    return exit_code, lines[0]


def _poll(service: Service, queue: str) -> httpx.Response:
    body = {"worker_id": "w", "queues": [queue], "wait_seconds": 30}
    return httpx.post(f"{service.url}/v1/leases", json=body, timeout=2 * _LIMIT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_answers_every_parked_poll_and_ends_with_code_0(
    serve: Callable[..., Service], number: signal.Signals, processes: int
) -> None:
    service = serve(f"--processes={processes}")
    with ThreadPoolExecutor(8) as pool:
        polls = [pool.submit(_poll, service, f"q{number}") for number in range(8)]
        connections = psutil.Process(service.process.pid)
        _wait_until(lambda: _established_count(connections) >= 8)
        assert service.end(number) == 0
        answers = [poll.result() for poll in polls]
    assert [(answer.status_code, answer.json()["jobs"]) for answer in answers] == [(200, [])] * 8
    assert service.database.pid is None


def _established_count(parent: psutil.Process) -> int:
    def connections(process: psutil.Process) -> list[str]:
        return [] if process.name() == "postgres" else [c.status for c in process.net_connections("tcp")]

    each = answers_of([parent, *parent.children()], connections)
    return sum(states.count(psutil.CONN_ESTABLISHED) for states in each.values())


def test_a_second_start_is_ready_within_five_seconds(serve: Callable[..., Service]) -> None:
    assert serve().end() == 0
    for watch in until_quick(seconds=5):
        with watch:
            service = serve()
        assert service.end() == 0


def test_a_killed_database_is_started_again(serve: Callable[..., Service]) -> None:
    service = serve()
    pid = service.database.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: service.database.pid not in (None, pid))
    _wait_until(service.is_ready)
    assert service.end() == 0


def test_a_database_that_cannot_be_kept_running_ends_the_service_with_one_clear_line(
    serve: Callable[..., Service], data_dir: Path
) -> None:
    service = serve()
    pid = service.database.pid
    assert pid is not None
    (data_dir / "postgres" / "PG_VERSION").write_text("17\n")
    os.kill(pid, signal.SIGKILL)
    assert service.process.wait(_LIMIT_SECONDS) == 1
    assert "cannot be kept running" in service.log_path.read_text().splitlines()[-1]


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_outlives_a_killed_service_and_the_next_one_takes_over(
    serve: Callable[..., Service], processes: int
) -> None:
    service = serve(f"--processes={processes}")
    children = psutil.Process(service.process.pid).children(recursive=True)
    assert len(children) > processes
    service.process.kill()
    service.process.wait()
    successor = serve(f"--processes={processes}")
    _wait_until(lambda: not any(child.is_running() for child in children))
    assert successor.end() == 0


def test_a_server_process_that_died_is_replaced(serve: Callable[..., Service]) -> None:
    service = serve("--processes=2")
    parent = psutil.Process(service.process.pid)

    def server_processes() -> set[int]:
        commands = answers_of(parent.children(), lambda child: child.cmdline())
        return {child.pid for child, command in commands.items() if "serve-process" in command}

    before = server_processes()
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    _wait_until(lambda: len(server_processes() - {min(before)}) == 2)
    _wait_until(service.is_ready)
    assert service.end() == 0
    assert not any(psutil.pid_exists(pid) for pid in before)


def test_a_stop_during_the_start_ends_with_code_0(data_dir: Path, tmp_path: Path) -> None:
    log_path = tmp_path / "log"
    process = _start(["--port=0", f"--data-dir={data_dir}"], log_path=log_path)
    _wait_until((data_dir / "postgres.log").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(_END_SECONDS) == 0
    _wait_until(lambda: BundledServer(data_dir).pid is None)
    assert not any((data_dir / "postgres.partial").glob("*")), "initdb has outlived the service"


def test_a_taken_port_is_told_in_one_line_before_anything_else_happens(
    data_dir: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exit_code, line = _refusal([f"--port={port}", f"--data-dir={data_dir}"], tmp_path=tmp_path)
    assert exit_code == 1
    assert str(port) in line
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ([], {"FENCEPOST_PORT": "http"}, "FENCEPOST_PORT"),
        ([], {"FENCEPOST_PORTS": "8000"}, "FENCEPOST_PORTS"),
        ([], {"FENCEPOST_DATABASE_URL": "mysql://u:hunter2@h/d"}, "FENCEPOST_DATABASE_URL"),
        (["--data-dir=x"], {"FENCEPOST_DATABASE_URL": "postgresql://u:hunter2@h/d"}, "FENCEPOST_DATA_DIR"),
        (["--host=0.0.0.0"], {}, "--insecure"),
        ([], {"FENCEPOST_API_KEYS": "a:work:hunter2,b:everything:hunter2"}, "FENCEPOST_API_KEYS"),
        ([], {"FENCEPOST_API_KEYS_FILE": os.devnull}, "FENCEPOST_API_KEYS_FILE"),
    ],
)
def test_bad_settings_end_with_code_2_and_one_line_without_secrets(
    tmp_path: Path, options: list[str], environ: dict[str, str], expected: str
) -> None:
    exit_code, line = _refusal(options, tmp_path=tmp_path, environ=environ)
    assert exit_code == 2
    assert expected in line
    assert "hunter2" not in line
