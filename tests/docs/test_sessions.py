"""The README's sessions, pasted into a shell against a real server; the examples are the same text."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.docs.documents import README, ROOT, code, read, section
from tests.support.server import ServerProcess

Serve = Callable[..., ServerProcess]

pytestmark = pytest.mark.slow

ADDRESS = "http://127.0.0.1:8000"
DEADLINE_SECONDS = 60
SHELLS = [["bash", "-eu"], ["sh", "-eu"]]


def quickstart() -> str:
    return code(section(read(README), "## A session with curl"), "sh")


def helpers() -> str:
    """The lines of the first session that the second one goes on from."""
    return "".join(
        line for line in quickstart().splitlines(True) if line.startswith(("api=", "post()", "pick()"))
    )


def stale_worker() -> str:
    return helpers() + code(section(read(README), "## The stale worker"), "sh")


def run(shell: list[str], script: str, server: ServerProcess) -> list[str]:
    """Return the lines that a script prints; it has to end well, and to say nothing on stderr."""
    assert script.count(ADDRESS) == 1
    done = subprocess.run(
        shell,
        input=script.replace(ADDRESS, server.url),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_first_session_of_the_readme_works_when_pasted(serve: Serve, shell: list[str]) -> None:
    created, renewed, completed, last = run(shell, quickstart(), serve())
    job = json.loads(created)
    assert (job["kind"], job["state"], job["lease_version"]) == ("email.send", "ready", 0)
    assert json.loads(renewed)["cancel_requested"] is False
    finished = json.loads(completed)
    assert finished["id"] == job["id"]
    assert (finished["state"], finished["attempt"], finished["result"]) == ("succeeded", 1, {"sent": True})
    assert last == "succeeded"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_stale_worker_of_the_readme_is_refused_five_times(serve: Serve, shell: list[str]) -> None:
    created, *refusals, unchanged, result, attempts = run(shell, stale_worker(), serve())
    problems = [json.loads(refusal) for refusal in refusals]
    assert len(problems) == 5
    for problem in problems:
        assert (problem["status"], problem["code"], problem["reason"]) == (409, "lease_lost", "expired")
        assert (problem["presented_version"], problem["current_version"]) == (1, 2)
        assert problem["job_id"] == json.loads(created)["id"]
    assert unchanged == "nothing was changed"
    assert result == "new"
    outcomes = [(each["worker_id"], each["outcome"]) for each in json.loads(attempts)["attempts"]]
    assert outcomes == [("frozen", "lease_expired"), ("second", "succeeded")]


def test_refusal_that_the_readme_shows_has_the_members_of_a_real_one(serve: Serve) -> None:
    _, refusal, *_ = run(["sh", "-eu"], stale_worker(), serve())
    shown = json.loads(code(section(read(README), "## The stale worker"), "json"))
    real = json.loads(refusal)
    assert shown.keys() == real.keys()
    varying = {"request_id", "job_id"}
    assert {name: shown[name] for name in shown.keys() - varying} == {
        name: real[name] for name in real.keys() - varying
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("quickstart.sh", quickstart), ("stale-worker.sh", stale_worker)],
    ids=lambda each: each,
)
def test_example_is_the_session_of_the_readme(name: str, text: Callable[[], str]) -> None:
    lines = read(ROOT / "examples" / name).splitlines()
    assert lines[0] == "#!/bin/sh"
    assert [line for line in lines if line and line != "set -eu" and not line.startswith("#")] == [
        line for line in text().splitlines() if line
    ]


class Worker:
    """``examples/worker.py`` as a process; ``lines`` are what it prints."""

    def __init__(self, url: str, queue: str, *, api_key: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "examples" / "worker.py", url, queue],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"API_KEY": api_key},
        )

    def next_line(self) -> str:
        """Return the next line it prints; the empty one when it has ended, or took too long."""
        assert self._process.stdout is not None
        timer = threading.Timer(DEADLINE_SECONDS, self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def work() -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(url: str, queue: str, *, api_key: str = "") -> Worker:
        started.append(Worker(url, queue, api_key=api_key))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


def submit(server: ServerProcess, seconds: object) -> dict[str, Any]:
    body = {"kind": "wait", "queue": "waits", "max_attempts": 1, "payload": {"seconds": seconds}}
    created: dict[str, Any] = httpx.post(f"{server.url}/v1/jobs", json=body).raise_for_status().json()
    return created


def test_example_worker_completes_and_fails_jobs(serve: Serve, work: Callable[..., Worker]) -> None:
    server = serve()
    good, bad = submit(server, 0), submit(server, "soon")
    worker = work(server.url, "waits")
    assert worker.next_line() == f"{good['id']} succeeded"
    assert worker.next_line() == f"{bad['id']} dead"
    assert httpx.get(f"{server.url}/v1/jobs/{bad['id']}").json()["error"]["type"] == "TypeError"


def test_example_worker_shows_its_api_key(serve: Serve, work: Callable[..., Worker]) -> None:
    server = serve(api_keys="shop:produce:key-of-a-shop,worker:work:key-of-a-worker")
    body = {"kind": "wait", "queue": "waits", "payload": {"seconds": 0}}
    shop = {"Authorization": "Bearer key-of-a-shop"}
    job = httpx.post(f"{server.url}/v1/jobs", json=body, headers=shop).raise_for_status().json()
    worker = work(server.url, "waits", api_key="key-of-a-worker")
    assert worker.next_line() == f"{job['id']} succeeded"


def test_example_worker_stops_when_its_lease_is_lost(serve: Serve, work: Callable[..., Worker]) -> None:
    server = serve()
    job = submit(server, 3600)
    worker = work(server.url, "waits")
    held = wait_for_state(server, job["id"], "running")["lease_version"]
    httpx.post(f"{server.url}/v1/jobs/{job['id']}/cancel", json={"force": True}).raise_for_status()
    assert worker.next_line() == f"{job['id']} lost"
    assert httpx.get(f"{server.url}/v1/jobs/{job['id']}").json()["lease_version"] == held + 1
    after = submit(server, 0)
    assert worker.next_line() == f"{after['id']} succeeded"


def test_example_worker_stops_when_a_cancel_is_asked_for(serve: Serve, work: Callable[..., Worker]) -> None:
    server = serve()
    job = submit(server, 3600)
    worker = work(server.url, "waits")
    wait_for_state(server, job["id"], "running")
    assert httpx.post(f"{server.url}/v1/jobs/{job['id']}/cancel").status_code == 202
    assert worker.next_line() == f"{job['id']} cancelled"


def test_example_worker_outlives_a_server_that_is_away(serve: Serve, work: Callable[..., Worker]) -> None:
    server = serve()
    job = submit(server, 4)
    worker = work(server.url, "waits")
    wait_for_state(server, job["id"], "running")
    server.kill()
    serve(port=server.port)
    assert worker.next_line() == f"{job['id']} succeeded"


def test_example_worker_repeats_a_call_whose_answer_was_cut_off(work: Callable[..., Worker]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_SECONDS)
        work(f"http://127.0.0.1:{listener.getsockname()[1]}", "waits")
        bodies = []
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as request:
                headers = list(iter(request.readline, b"\r\n"))
                length = next(int(line.split()[1]) for line in headers if line.startswith(b"Content-Length"))
                bodies.append(request.read(length))
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jobs": [')
    assert bodies[0] == bodies[1]


def wait_for_state(server: ServerProcess, job_id: str, state: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        job: dict[str, Any] = httpx.get(f"{server.url}/v1/jobs/{job_id}?wait_seconds=0.05").json()
        if job["state"] == state:
            return job
        assert time.monotonic() < deadline, f"the job is not {state}: {job}"
