"""What only a real socket shows: bodies in chunks, limits on the way, one connection for many answers."""

import contextlib
import json
from collections.abc import Callable

import httpx
import psutil
import pytest

from tests.support.api import UNKNOWN_ID
from tests.support.server import ServerProcess
from tests.support.sockets import RawConnection

JSON_CHUNKED = ["Content-Type: application/json", "Transfer-Encoding: chunked"]
CHUNK = b"8000\r\n" + b" " * 0x8000 + b"\r\n"


@pytest.fixture(name="running", scope="module")
def _running(serve_all: Callable[..., ServerProcess]) -> ServerProcess:
    return serve_all(max_body_bytes=100_000, max_batch_body_bytes=200_000)


@pytest.fixture
def server(running: ServerProcess, database_url: str) -> ServerProcess:
    """One process for all tests here; each finds its database empty."""
    return running


def test_body_in_chunks_is_read_like_any_other(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send_request("POST", "/v1/jobs", JSON_CHUNKED)
        for part in (b'{"kind"', b':"work"', b"}"):
            connection.send(b"%x\r\n%s\r\n" % (len(part), part))
        connection.send(b"0\r\n\r\n")
        assert connection.read_answer()[0] == 201
        connection.send_request("POST", f"/v1/jobs/{UNKNOWN_ID}/cancel", ["Transfer-Encoding: chunked"])
        connection.send(b"0\r\n\r\n")
        assert connection.read_answer()[0] == 404


def test_413_reaches_a_client_that_sends_its_whole_body_first(server: ServerProcess) -> None:
    for path in ("/v1/jobs", "/v1/jobs/batch", f"/v1/jobs/{UNKNOWN_ID}/complete", "/v1/leases/complete"):
        for size in (200_001, 5_000_000):
            with RawConnection(server.port) as connection:
                connection.send_request("POST", path, body=b'{"x":"' + b" " * (size - 8) + b'"}')
                status, headers, body = connection.read_answer()
            assert status == 413
            assert headers["content-type"] == "application/problem+json"
            assert json.loads(body)["code"] == "too_large"
            assert ("100000" in body.decode()) or ("200000" in body.decode())


def test_endless_body_in_chunks_is_cut_off_and_held_in_no_memory(server: ServerProcess) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    for path in ("/v1/jobs", "/v1/jobs/batch", f"/v1/jobs/{UNKNOWN_ID}/fail"):
        sent = 0
        with RawConnection(server.port) as connection:
            connection.send_request("POST", path, JSON_CHUNKED)
            # Either the connection is closed on us, or we see the 413 when we stop.
            with contextlib.suppress(ConnectionError):
                while sent < 50_000_000:
                    connection.send(CHUNK)
                    sent += len(CHUNK)
            with contextlib.suppress(ConnectionError):
                assert connection.read_answer()[0] == 413
        assert sent < 50_000_000, path
    assert process.memory_info().rss - before < 20_000_000
    assert httpx.get(f"{server.url}/v1/jobs").json()["jobs"] == []


def test_413_reaches_a_client_that_sends_chunks_somewhat_over_the_limit(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send_request("POST", "/v1/jobs", JSON_CHUNKED)
        for _ in range(20):
            connection.send(CHUNK)
        connection.send(b"0\r\n\r\n")
        status, _, body = connection.read_answer()
    assert (status, json.loads(body)["code"]) == (413, "too_large")


def test_client_that_waits_for_100_continue_gets_its_answer(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        headers = ["Content-Type: application/json", "Content-Length: 15", "Expect: 100-continue"]
        connection.send_request("POST", "/v1/jobs", headers)
        connection.send(b'{"kind":"work"}')
        status, _, _ = connection.read_answer()
        if status == 100:
            status, _, _ = connection.read_answer()
        assert status == 201


def test_empty_and_bodiless_answers_leave_the_connection_clean(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send_request("POST", "/v1/jobs", body=b'{"kind":"work"}')
        job = json.loads(connection.read_answer()[2])
        for _ in range(20):
            connection.send_request("POST", "/v1/leases", body=b'{"worker_id":"w","queues":["empty"]}')
            status, _, body = connection.read_answer()
            assert (status, json.loads(body)["jobs"]) == (200, [])
            connection.send_request("GET", f"/v1/jobs/{job['id']}")
            assert json.loads(connection.read_answer()[2])["id"] == job["id"]
        connection.send_request("POST", "/v1/leases", body=b'{"worker_id":"w","queues":["default"]}')
        (leased,) = json.loads(connection.read_answer()[2])["jobs"]
        token = json.dumps({"lease_version": leased["lease_version"]}).encode()
        for _ in range(5):
            connection.send_request("POST", f"/v1/jobs/{job['id']}/verify", body=token)
            status, headers, body = connection.read_answer()
            assert (status, body, connection.unread) == (204, b"", b"")
            assert "content-type" not in headers
            connection.send_request("GET", "/livez")
            assert connection.read_answer()[0] == 200
    assert "Traceback" not in server.log


def test_head_of_a_key_may_be_doubled_large_or_not_ascii_without_a_fault(server: ServerProcess) -> None:
    body = b'{"kind":"work"}'
    for lines in (
        ["Idempotency-Key: a", "Idempotency-Key: a"],
        ["Idempotency-Key: \xc3\xa9"],
        ["Idempotency-Key: \xe9"],
        ["Idempotency-Key: " + "k" * 6000],
        ["Idempotency-Key:"],
        ["Idempotency-Key:    "],
    ):
        with RawConnection(server.port) as connection:
            connection.send_request("POST", "/v1/jobs", lines, body)
            status, _, answer = connection.read_answer()
        assert status in (400, 422, 431), lines
        if status == 422:
            assert "Idempotency-Key" in answer.decode()
    with RawConnection(server.port) as connection:
        connection.send_request("POST", "/v1/jobs", ["iDEMPOTENCY-kEY: odd"], body)
        assert connection.read_answer()[0] == 201
        connection.send_request("POST", "/v1/jobs", ["idempotency-key: odd"], body)
        assert connection.read_answer()[0] == 200
    assert len(httpx.get(f"{server.url}/v1/jobs").json()["jobs"]) == 1


def test_dots_and_encodings_in_a_path_reach_no_other_route(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        for path in (
            "/v1/jobs/..",
            "/v1/jobs/../leases",
            "/v1/jobs/%2e%2e/x",
            "/v1/jobs/%00",
            "/%ff",
            "//livez",
        ):
            connection.send_request("GET", path)
            status, headers, body = connection.read_answer()
            assert status == 404, path
            assert json.loads(body)["request_id"] == headers["x-request-id"]


def test_server_takes_all_the_open_files_that_the_system_lets_it_have(
    serve: Callable[..., ServerProcess],
) -> None:
    few = (
        "import resource, runpy;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard));"
        "runpy.run_module('app', run_name='__main__')"
    )
    server = serve(program=("-c", few, "serve"))
    # psutil has it on Linux alone.
    soft, hard = psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard > 200
