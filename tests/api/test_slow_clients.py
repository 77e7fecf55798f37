"""Clients that take their time: deadlines for what they send, and for what they do not read.

The server is a real process with short deadlines. A wait is never a length of time: what shows that a
deadline has passed is another connection that it has ended.
"""

import contextlib
import json
import time
from collections.abc import Callable

import httpx
import psutil
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.connections import Connection
from app.deadlines import DEADLINES
from tests.support.api import UNKNOWN_ID
from tests.support.server import ServerProcess
from tests.support.sockets import RawConnection, sockets_without_clients, wait_for_sockets

# Short, and longer than a machine stands still: a test may be held up between any two bytes that it sends.
HEAD_SECONDS, BODY_SECONDS, GRACE_SECONDS, UNREAD_SECONDS = 3.0, 3.0, 0.5, 3.0
WITHIN = [
    *("-m", "tests.support.serve_within"),
    *(str(seconds) for seconds in (HEAD_SECONDS, BODY_SECONDS, GRACE_SECONDS, UNREAD_SECONDS)),
]
HALF_HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: test\r\nContent-"
BODY = b'{"kind":"work"}'
HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
# Of a body that nobody dribbles in time.
LONG_HEAD = HEAD.replace(b"Length: 15", b"Length: 1500")
POLL = b'{"worker_id":"w","queues":["default"],"wait_seconds":30}'


@pytest.fixture
def server(serve: Callable[..., ServerProcess]) -> ServerProcess:
    return serve(program=WITHIN)


def sit_out(server: ServerProcess, sent: bytes = b"") -> bytes:
    """Return what a client that sends no more than this got until it was ended."""
    with RawConnection(server.port) as connection:
        connection.send(sent)
        return connection.read_to_end()


def test_head_and_body_together_have_at_most_a_minute() -> None:
    assert DEADLINES.head_seconds + DEADLINES.body_seconds + DEADLINES.grace_seconds <= 60


def test_what_a_connection_overrides_is_there_in_uvicorn() -> None:
    own = {"head_without_upgrade", "deadlines"}
    for name in vars(Connection).keys() - own:
        assert name.startswith("_") or hasattr(HttpToolsProtocol, name), name


@pytest.mark.slow
def test_hundreds_of_slow_clients_are_ended_while_others_are_served(server: ServerProcess) -> None:
    before = sockets_without_clients(server)
    files_before = psutil.Process(server.process.pid).num_fds()
    with contextlib.ExitStack() as stack:
        half_heads, dribblers = (
            [stack.enter_context(RawConnection(server.port)) for _ in range(150)] for _ in range(2)
        )
        for connection in half_heads:
            connection.send(HALF_HEAD)
        for connection in dribblers:
            connection.send(LONG_HEAD)
        slow = [*half_heads, *dribblers]
        served, deadline = 0, time.monotonic() + 60
        while slow:
            assert time.monotonic() < deadline, f"{len(slow)} slow clients are still there"
            assert (
                httpx.post(f"{server.url}/v1/jobs", json={"kind": "ordinary"}, timeout=30).status_code == 201
            )
            served += 1
            slow = [connection for connection in slow if not connection.has_ended()]
            for connection in slow:
                with contextlib.suppress(ConnectionError):
                    connection.send(b" " if connection in dribblers else b"x")
            time.sleep(0.2)
        assert {connection.read_to_end() for connection in half_heads} == {b""}
        for connection in dribblers:
            assert connection.read_answer()[0] == 408
    wait_for_sockets(server, before)
    # The pool opens its connections when they are needed first.
    assert psutil.Process(server.process.pid).num_fds() <= files_before + 4
    jobs = httpx.get(f"{server.url}/v1/jobs", params={"limit": 200}).json()["jobs"]
    assert [job["kind"] for job in jobs] == ["ordinary"] * served
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_body_that_is_late_is_408_in_the_one_shape_and_changes_nothing(server: ServerProcess) -> None:
    routes = (b"/v1/jobs", b"/v1/jobs/batch", b"/v1/leases", f"/v1/jobs/{UNKNOWN_ID}/complete".encode())
    requests = [HEAD.replace(b"/v1/jobs", path) + BODY[:-1] for path in routes]
    # All of it but the last chunk.
    requests.append(HEAD.replace(b"Content-Length: 15", b"Transfer-Encoding: chunked") + b"f\r\n" + BODY)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(server.port)) for _ in requests]
        for connection, request in zip(connections, requests, strict=True):
            connection.send(request)
        for connection in connections:
            status, headers, body = connection.read_answer()
            assert connection.read_to_end() == b""
            problem = json.loads(body)
            assert (status, headers["content-type"]) == (408, "application/problem+json")
            assert (problem["code"], problem["status"]) == ("request_timeout", 408)
            assert problem["type"] == "/problems/request_timeout"
            assert problem["request_id"] == headers["x-request-id"]
            assert headers["connection"] == "close"
    assert httpx.get(f"{server.url}/v1/jobs").json()["jobs"] == []


@pytest.mark.slow
def test_silence_blank_lines_and_half_a_head_are_ended_without_an_answer(server: ServerProcess) -> None:
    for sent in (b"", b"\r\n\r\n", b"G", HALF_HEAD):
        assert sit_out(server, sent) == b""
    with RawConnection(server.port) as connection:
        connection.send_request("GET", "/livez")
        assert connection.read_answer()[0] == 200
        # The bytes stop uvicorn's clock for idle connections, and begin no request.
        while not connection.has_ended():
            with contextlib.suppress(ConnectionError):
                connection.send(b"\r\n")
            time.sleep(0.05)


@pytest.mark.slow
def test_slow_but_whole_request_is_served_and_its_connection_used_again(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        for _ in range(2):
            for piece in (HEAD[:20], HEAD[20:], BODY[:5], BODY[5:]):
                connection.send(piece)
                time.sleep(HEAD_SECONDS / 6)
            assert connection.read_answer()[0] == 201
        # Nothing is owed between two requests.
        assert sit_out(server) == b""
        connection.send(HEAD + BODY)
        assert connection.read_answer()[0] == 201


@pytest.mark.slow
def test_parked_calls_are_no_slow_clients(server: ServerProcess) -> None:
    job = httpx.post(f"{server.url}/v1/jobs", json={"kind": "work", "queue": "other"}).json()
    with RawConnection(server.port) as poll, RawConnection(server.port) as watch:
        # A line break after the body is no request; half a head has to wait for its turn.
        poll.send_request("POST", "/v1/leases", body=POLL)
        poll.send(b"\r\n")
        watch.send_request("GET", f"/v1/jobs/{job['id']}?wait_seconds=30")
        watch.send(HALF_HEAD)
        for _ in range(2):
            assert b" 408 " in sit_out(server, HEAD)
        assert httpx.post(f"{server.url}/v1/jobs", json={"kind": "work"}).status_code == 201
        assert len(json.loads(poll.read_answer()[2])["jobs"]) == 1
        poll.send_request("GET", "/livez")
        assert poll.read_answer()[0] == 200
        httpx.post(f"{server.url}/v1/jobs/{job['id']}/cancel")
        assert json.loads(watch.read_answer()[2])["state"] == "cancelled"
        assert watch.read_to_end() == b""


@pytest.mark.slow
def test_body_that_nobody_reads_has_a_deadline_too(server: ServerProcess) -> None:
    for method, path, status in (("GET", "/livez", b"200"), ("POST", "/nowhere", b"404")):
        head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nbody".encode()
        answer = sit_out(server, head)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.slow
def test_client_that_takes_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not(
    server: ServerProcess,
) -> None:
    for _ in range(48):
        job = {"kind": "work", "payload": "x" * 260_000}
        assert httpx.post(f"{server.url}/v1/jobs", json=job).status_code == 201
    before = sockets_without_clients(server)
    path = "/v1/jobs?include=payload&limit=48"
    with (
        RawConnection(server.port, receive_buffer_bytes=4096) as deaf,
        RawConnection(server.port, receive_buffer_bytes=4096) as slow,
    ):
        deaf.send_request("GET", path)
        slow.send_request("GET", path)
        read = b""
        # So little that the kernel, which holds megabytes of the answer, asks for no more all the while.
        for _ in range(12):
            piece = slow.read_bytes(50_000)
            assert piece, "the slow reader was cut off"
            read += piece
            time.sleep(UNREAD_SECONDS / 4)
        read += slow.read_bytes(len(read.partition(b"\r\n\r\n")[0]) + 4 + length_of(read) - len(read))
        slow.send_request("GET", "/livez")
        assert slow.read_answer()[0] == 200
        wait_for_sockets(server, before + 1)
        assert len(deaf.read_to_end()) < 12_000_000
    wait_for_sockets(server, before)


def length_of(answer: bytes) -> int:
    head = answer.partition(b"\r\n\r\n")[0].decode().lower()
    return int(head.partition("content-length: ")[2].partition("\r\n")[0])
