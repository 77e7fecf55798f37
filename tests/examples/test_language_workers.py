"""The workers in other languages, each against the real service: one test a rule, each in every language."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.examples.language_workers import (
    DEADLINE_SECONDS,
    LANGUAGES,
    LanguageWorker,
    folder_of_the_run,
)
from tests.examples.lost_answers import LostAnswers
from tests.support.server import ServerProcess

Serve = Callable[..., ServerProcess]
Start = Callable[..., LanguageWorker]

pytestmark = pytest.mark.slow


class Service:
    """A server, and the queue of one test on it: what a test has left behind must not meet the next one."""

    def __init__(self, process: ServerProcess, queue: str) -> None:
        self.process = process
        self.url = process.url
        self.queue = queue


@pytest.fixture
def queue() -> str:
    return f"naps-{uuid.uuid4().hex}"


@pytest.fixture(params=LANGUAGES)
def start(
    request: pytest.FixtureRequest, queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Start workers in one language; keyword arguments are what their environment has."""
    command = LANGUAGES[request.param](folder_of_the_run(tmp_path_factory))
    started: list[LanguageWorker] = []

    def start_worker(url: str, **environ: object) -> LanguageWorker:
        variables = {name.upper(): str(value) for name, value in environ.items()}
        started.append(LanguageWorker(command, url, queue, variables))
        return started[-1]

    yield start_worker
    for worker in started:
        worker.end()


@pytest.fixture
def server(shared_service: ServerProcess, queue: str) -> Service:
    return Service(shared_service, queue)


@pytest.fixture
def losing() -> Iterator[Callable[..., LostAnswers]]:
    started: list[LostAnswers] = []

    def start_proxy(server: Service, *, instead: tuple[int, str] | None = None) -> LostAnswers:
        started.append(LostAnswers(server.url, instead=instead))
        return started[-1]

    yield start_proxy
    for proxy in started:
        proxy.close()


def submit(server: Service, payload: object, *, max_attempts: int = 10, api_key: str = "") -> str:
    body = {"kind": "nap", "queue": server.queue, "payload": payload, "max_attempts": max_attempts}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    job_id: str = (
        httpx.post(f"{server.url}/v1/jobs", json=body, headers=headers).raise_for_status().json()["id"]
    )
    return job_id


def read(server: Service, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = httpx.get(f"{server.url}/v1/jobs/{job_id}").raise_for_status().json()
    return job


def post(server: Service, path: str, body: object) -> dict[str, Any]:
    answer: dict[str, Any] = (
        httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60).raise_for_status().json()
    )
    return answer


def wait_for_lease(server: Service, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (job := read(server, job_id))["state"] != "running":
        assert time.monotonic() < deadline, f"the job is not running: {job}"
        time.sleep(0.02)
    return job


def wait_for_heartbeat(server: Service, job_id: str) -> None:
    """Return when the worker has begun: a grant alone may not have reached it yet."""
    granted = wait_for_lease(server, job_id)["lease"]["expires_at"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while read(server, job_id)["lease"]["expires_at"] == granted:
        assert time.monotonic() < deadline, "no heartbeat came"
        time.sleep(0.02)


def test_worker_completes_and_fails_jobs(server: Service, start: Start) -> None:
    good, bad = submit(server, {"seconds": 0.2}), submit(server, {"fail": 'bad "luck"'}, max_attempts=1)
    worker = start(server.url)
    assert worker.next_line() == f"{good} succeeded"
    assert read(server, good)["result"] == "waited 0.2 s"
    assert worker.next_line() == f"{bad} dead"
    assert read(server, bad)["error"]["message"].strip() == 'bad "luck"'


def test_payload_that_is_hard_to_read_stops_no_worker(server: Service, start: Start) -> None:
    deep: list[Any] = []
    for _ in range(95):
        deep = [deep]
    payload = {"seconds": 0, "text": '\\"]},\u2028\x7f💤\n' * 5_000, "number": 2**70, "deep": deep}
    body = json.dumps({"kind": "nap", "queue": server.queue, "payload": payload}).replace(
        "1180591620717411303424", "1e400"
    )
    headers = {"Content-Type": "application/json"}
    job_id = (
        httpx.post(f"{server.url}/v1/jobs", content=body, headers=headers).raise_for_status().json()["id"]
    )
    assert start(server.url).next_line() == f"{job_id} succeeded"


def test_result_that_is_refused_fails_the_job_for_good(serve: Serve, queue: str, start: Start) -> None:
    server = Service(serve(max_result_bytes=4), queue)
    job_id = submit(server, {"seconds": 0})
    assert start(server.url).next_line() == f"{job_id} dead"
    assert read(server, job_id)["error"]["type"] == "result_refused"


def test_worker_shows_its_api_key_and_ends_when_that_is_refused(
    serve: Serve, queue: str, start: Start
) -> None:
    server = Service(serve(api_keys="shop:produce:key-of-a-shop,worker:work:key-of-a-worker"), queue)
    job_id = submit(server, {"seconds": 0}, api_key="key-of-a-shop")
    stranger = start(server.url, api_key="no-such-key")
    exit_code, errors = stranger.wait()
    assert exit_code != 0
    assert errors
    assert start(server.url, api_key="key-of-a-worker").next_line() == f"{job_id} succeeded"


def test_handler_stops_when_a_cancel_is_asked_for(server: Service, start: Start) -> None:
    job_id = submit(server, {"seconds": 3600})
    worker = start(server.url, lease_seconds=6)
    wait_for_lease(server, job_id)
    assert post(server, f"jobs/{job_id}/cancel", {})["state"] == "running"
    assert worker.next_line() == f"{job_id} cancelled"
    assert read(server, job_id)["error"]["type"] == "cancelled"


def test_handler_stops_when_a_heartbeat_says_that_the_lease_is_lost(server: Service, start: Start) -> None:
    job_id = submit(server, {"seconds": 3600})
    worker = start(server.url, lease_seconds=6)
    wait_for_lease(server, job_id)
    post(server, f"jobs/{job_id}/cancel", {"force": True})
    assert worker.next_line() == f"{job_id} lost"
    after = submit(server, {"seconds": 0})
    assert worker.next_line() == f"{after} succeeded"


def test_complete_without_the_lease_is_refused_and_the_worker_goes_on(server: Service, start: Start) -> None:
    job_id = submit(server, {"seconds": 6})
    # Its first heartbeat would be in eighteen seconds at the earliest.
    worker = start(server.url, lease_seconds=60)
    wait_for_lease(server, job_id)
    cancelled = post(server, f"jobs/{job_id}/cancel", {"force": True})
    assert worker.next_line() == f"{job_id} lost"
    assert read(server, job_id) == cancelled
    after = submit(server, {"seconds": 0})
    assert worker.next_line() == f"{after} succeeded"


def test_worker_that_was_paused_cannot_end_the_job_of_another(server: Service, start: Start) -> None:
    job_id = submit(server, {"seconds": 5})
    worker = start(server.url, lease_seconds=3)
    held = wait_for_lease(server, job_id)
    worker.freeze()
    wish = {"worker_id": "another", "queues": [server.queue], "wait_seconds": 30}
    (taken,) = post(server, "leases", wish)["jobs"]
    assert taken["lease_version"] > held["lease_version"]
    post(server, f"jobs/{job_id}/complete", {"lease_version": taken["lease_version"], "result": "another's"})
    worker.thaw()
    assert worker.next_line() == f"{job_id} lost"
    assert read(server, job_id)["result"] == "another's"
    after = submit(server, {"seconds": 0})
    assert worker.next_line() == f"{after} succeeded"


def test_job_is_given_back_when_the_shutdown_takes_too_long(server: Service, start: Start) -> None:
    job_id = submit(server, {"seconds": 3600})
    worker = start(server.url, drain_seconds=1, lease_seconds=6)
    wait_for_heartbeat(server, job_id)
    worker.terminate()
    assert worker.next_line() == f"{job_id} ready"
    assert worker.wait() == (0, "")
    job = read(server, job_id)
    assert (job["state"], job["attempt"]) == ("ready", 0)


def test_handler_may_end_in_a_shutdown_and_nothing_more_is_leased(server: Service, start: Start) -> None:
    job_id, next_id = submit(server, {"seconds": 6}), submit(server, {"seconds": 0})
    worker = start(server.url, lease_seconds=6)
    wait_for_heartbeat(server, job_id)
    worker.terminate()
    assert worker.next_line() == f"{job_id} succeeded"
    assert worker.wait() == (0, "")
    assert read(server, next_id)["lease_version"] == 0


def test_worker_without_a_job_ends_at_once(server: Service, start: Start) -> None:
    worker = start(server.url)
    for _ in range(2):
        job_id = submit(server, {"seconds": 0})
        assert worker.next_line() == f"{job_id} succeeded"
    began = time.monotonic()
    worker.terminate()
    assert worker.wait() == (0, "")
    # Its call waits for 20 s.
    assert time.monotonic() - began < 15


def test_job_outlives_a_restart_of_the_service(serve: Serve, queue: str, start: Start) -> None:
    server = Service(serve(), queue)
    job_id = submit(server, {"seconds": 3})
    worker = start(server.url, lease_seconds=30)
    wait_for_lease(server, job_id)
    server.process.kill()
    serve(port=server.process.port)
    assert worker.next_line() == f"{job_id} succeeded"
    assert read(server, job_id)["lease_version"] == 1
    after = submit(server, {"seconds": 0})
    assert worker.next_line() == f"{after} succeeded"


def test_lost_answers_are_repaired_by_the_same_calls(
    server: Service, start: Start, losing: Callable[[Service], LostAnswers]
) -> None:
    proxy = losing(server)
    job_id = submit(server, {"seconds": 4})
    worker = start(proxy.url, lease_seconds=9)
    assert worker.next_line() == f"{job_id} succeeded"
    job = read(server, job_id)
    assert (job["attempt"], job["lease_version"]) == (1, 1)
    for verb in ("leases", "heartbeat", "complete"):
        lost, repeated, *_ = proxy.calls[verb]
        assert lost == repeated


@pytest.mark.parametrize("status", [408, 429, 503])
def test_refusals_that_pass_are_repaired_by_the_same_calls(
    server: Service, start: Start, losing: Callable[..., LostAnswers], status: int
) -> None:
    # In place of the first answers: a proxy between them has no time, and names a date.
    proxy = losing(server, instead=(status, "Wed, 21 Oct 2037 07:28:00 GMT"))
    job_id = submit(server, {"seconds": 4})
    worker = start(proxy.url, lease_seconds=9)
    assert worker.next_line() == f"{job_id} succeeded"
    assert read(server, job_id)["lease_version"] == 1
    for verb in ("leases", "heartbeat", "complete"):
        refused, repeated, *_ = proxy.calls[verb]
        assert refused == repeated
