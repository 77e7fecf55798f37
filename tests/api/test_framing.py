"""One reading of every message: what two servers in a row could read in two ways is refused.

Raw bytes over a socket to a real server. An answer of 400 comes from the connection, before the
application is called, and ends it; everything else is the application's.
"""

import json
import re
from collections.abc import Callable, Iterable

import httpx
import pytest

from app.connections import MAX_OPEN_REQUESTS
from tests.support.server import ServerProcess
from tests.support.sockets import RawConnection, sockets_without_clients, wait_for_sockets

JSON = b"Content-Type: application/json\r\n"
BODY = b'{"kind":"work"}'
CHUNKED_BODY = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


@pytest.fixture(name="running", scope="module")
def _running(serve_all: Callable[..., ServerProcess]) -> ServerProcess:
    return serve_all()


@pytest.fixture
def server(running: ServerProcess, database_url: str) -> ServerProcess:
    """One process for all tests here; each finds its database empty."""
    return running


def get(
    target: bytes, headers: bytes = b"", *, method: bytes = b"GET", version: bytes = b"HTTP/1.1"
) -> bytes:
    return method + b" " + target + b" " + version + b"\r\nHost: test\r\n" + headers + b"\r\n"


def post(headers: bytes, body: bytes = BODY, *, version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST /v1/jobs " + version + b"\r\nHost: test\r\n" + JSON + headers + b"\r\n" + body


def length(body: bytes = BODY) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked\r\n", body)


def answers_to(server: ServerProcess, *messages: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Return the answers to messages that are sent at once, and to a last one that ends the connection."""
    with RawConnection(server.port) as connection:
        connection.send(b"".join(messages) + get(b"/livez", b"Connection: close\r\nX-Request-Id: last\r\n"))
        found = []
        while True:
            try:
                found.append(connection.read_answer())
            except ConnectionError:
                return found


def assert_unread(server: ServerProcess, messages: Iterable[bytes]) -> None:
    """Check that each message gets a 400 (or nothing), then the end, and does nothing."""
    for message in messages:
        with RawConnection(server.port) as connection:
            try:
                connection.send(message + get(b"/livez"))
            except ConnectionError:
                continue
            answer = connection.read_to_end()
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        assert statuses in ([b"400"], []), (message[:200], answer)
    assert httpx.get(f"{server.url}/v1/jobs").json()["jobs"] == []
    assert "Traceback" not in server.log


def test_length_of_a_body_has_one_reading(server: ServerProcess) -> None:
    both = length() + b"Transfer-Encoding: chunked\r\n"
    assert_unread(
        server,
        [
            post(both, CHUNKED_BODY),
            post(both),
            post(b"Content-Length: 5\r\n" + length()),
            post(length() + length()),
            post(b"Content-Length: 15, 15\r\n"),
            *(
                post(b"Content-Length: " + token + b"\r\n")
                for token in (b"+15", b"-15", b"0xf", b"1 5", b"", b"15.0", b"\x0b15", b"9" * 30)
            ),
            post(b"Content-Length : 15\r\n"),
        ],
    )


def test_transfer_coding_is_chunked_or_refused(server: ServerProcess) -> None:
    codings = [
        *(b"gzip", b"identity", b"xchunked", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip"),
        *(b"\x0bchunked", b"chunked;q=1", b""),
    ]
    assert_unread(
        server,
        [
            *(post(b"Transfer-Encoding: " + coding + b"\r\n", CHUNKED_BODY) for coding in codings),
            post(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", CHUNKED_BODY),
            post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED_BODY),
            post(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKED_BODY),
            post(b"Transfer-Encoding: chunked\r\n", CHUNKED_BODY, version=b"HTTP/1.0"),
            chunked(b"0xf\r\n" + BODY + b"\r\n0\r\n\r\n"),
            chunked(b"+f\r\n" + BODY + b"\r\n0\r\n\r\n"),
            chunked(b"1000000000000000f\r\n" + BODY + b"\r\n0\r\n\r\n"),
            chunked(b"f\r\n" + BODY + b"0\r\n\r\n"),
            chunked(b"f\n" + BODY + b"\n0\n\n"),
            chunked(b"f;" + b"a" * 400_000 + b"\r\n"),
            chunked(b"f\r\n" + BODY + b"\r\n0\r\nX: " + b"a" * 400_000),
        ],
    )


def test_head_that_is_not_plain_http_is_refused(server: ServerProcess) -> None:
    assert_unread(
        server,
        [
            get(b"/livez", b"X-A: b\r\n c\r\n"),
            b"GET /livez HTTP/1.1\nHost: test\n\n",
            b"GET /livez HTTP/1.1\r\nHost: test\nX-B: c\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: test\rX-B: c\r\n\r\n",
            get(b"/livez", b"X-A: a\x00b\r\n"),
            get(b"/livez", b"X-A: a\x01b\r\n"),
            get(b"/livez", b"X A: b\r\n"),
            get(b"/livez", b"X-A\r\n"),
            get(b"/livez", b": b\r\n"),
            get(b"/livez", b"Host: other\r\n"),
            b"GET /livez HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
            *(
                get(b"/livez", version=version)
                for version in (b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1")
            ),
            *(get(b"/livez", method=method) for method in (b"get", b"A" * 1000, b"CONNECT", b"G\xc3\x89T")),
            get(b"test:80", method=b"CONNECT"),
        ],
    )


def test_target_that_needs_guessing_is_refused(server: ServerProcess) -> None:
    targets = [
        *(b"test:80", b"http://test", b"http://test?x=1", b"", b"v1/jobs"),
        *(b"/v1/jobs?queue=a b", b"/v1/jobs?queue=a\tb", b"/v1/jobs#x", b"/v1/jobs?queue=a#x"),
        *(b"/v1/jobs/\xff", b"/v1/jobs/\xc3\xa9", b"/v1/jobs?queue=\xff", b"/v1/jobs?queue=\x00"),
    ]
    assert_unread(server, map(get, targets))


def test_head_has_a_limit_and_many_headers_have_room_in_it(server: ServerProcess) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(100))
    assert [status for status, _, _ in answers_to(server, get(b"/livez", many))] == [200, 200]
    fits = get(b"/livez", b"X-A: " + b"a" * 60_000 + b"\r\n")
    assert [status for status, _, _ in answers_to(server, fits)] == [200, 200]
    assert_unread(
        server,
        [
            get(b"/livez", b"X-A: " + b"a" * 65_536 + b"\r\n"),
            get(b"/livez", b"X-A: a\r\n" * 20_000),
            get(b"/v1/jobs?queue=" + b"a" * 65_536),
            b"GET /livez HTTP/1.1\r\nX-A: " + b"a" * 8_000_000,
        ],
    )


def test_path_is_decoded_once_and_reaches_no_other_route(server: ServerProcess) -> None:
    targets = [
        *(b"//v1/jobs", b"/v1/./jobs", b"/v1/jobs/../leases", b"/v1/jobs/.", b"/v1/jobs;a=b", b"/V1/jobs"),
        *(b"/v1%2fjobs", b"/v1%2Fjobs", b"/v1/%2e/jobs", b"/v1/jobs/%2E%2e/leases", b"/v1%252fjobs"),
        *(b"/v1/jobs/%00", b"/v1/jobs/%zz", b"/v1/jobs/%", b"/v1/jobs/%ff", b"/v1/jobs/%C3%A9"),
    ]
    for target in targets:
        (status, headers, body), _ = answers_to(server, get(target))
        assert status == 404, target
        assert json.loads(body)["request_id"] == headers["x-request-id"]
    # RFC 3986: an escape of a letter is that letter, in either case of its digits; a scheme changes nothing.
    for target in (b"/v1/%6aobs", b"/v1/%6Aobs", b"http://test/v1/jobs", b"/v1/jobs?", b"/v1/jobs?&"):
        assert answers_to(server, get(target))[0][0] == 200, target
    for query in (b"queue=%ff", b"queue=%00", b"queue=%zz", b"%ff=1"):
        assert answers_to(server, get(b"/v1/jobs?" + query))[0][0] == 422, query


def test_methods_that_no_route_has_are_405(server: ServerProcess) -> None:
    for method in (b"TRACE", b"OPTIONS", b"PUT", b"M-SEARCH"):
        (status, headers, _), _ = answers_to(
            server, get(b"/v1/jobs", b"X-Request-Id: mine\r\n", method=method)
        )
        assert (status, headers["x-request-id"]) == (405, "mine")
        assert {"GET", "POST"} <= set(headers["allow"].split(", "))
    assert answers_to(server, get(b"*", method=b"OPTIONS"))[0][0] == 404


def test_version_1_0_gets_its_answer_and_the_end(server: ServerProcess) -> None:
    for headers in (b"", b"Connection: keep-alive\r\n"):
        ((status, answer, _),) = answers_to(server, get(b"/livez", headers, version=b"HTTP/1.0"))
        assert (status, answer["connection"]) == (200, "close")
    with RawConnection(server.port) as connection:
        connection.send(b"GET /livez HTTP/1.0\r\n\r\n")
        assert connection.read_answer()[0] == 200


def test_requests_sent_at_once_are_answered_in_their_order(server: ServerProcess) -> None:
    messages = [
        post(length() + b"X-Request-Id: a\r\n"),
        get(b"/v1/jobs?limit=1", b"X-Request-Id: b\r\n"),
        get(b"/nowhere", b"X-Request-Id: c\r\n"),
        chunked(CHUNKED_BODY),
    ]
    found = answers_to(server, *messages)
    assert [status for status, _, _ in found] == [201, 200, 404, 201, 200]
    assert [headers["x-request-id"] for _, headers, _ in found[:3]] == ["a", "b", "c"]
    assert len(json.loads(found[1][2])["jobs"]) == 1


def test_what_was_asked_before_something_unreadable_is_answered_first(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        connection.send(post(length()) + get(b"/livez") + b"junk\r\n\r\n" + get(b"/livez"))
        assert connection.read_answer()[0] == 201
        status, headers, _ = connection.read_answer()
        assert (status, headers["connection"]) == (200, "close")
        assert connection.read_to_end() == b""
    # The body that cannot be read belongs to the second request; the first may be answered or not.
    with RawConnection(server.port) as connection:
        connection.send(get(b"/v1/jobs") + chunked(b"zz\r\n"))
        assert re.findall(rb"HTTP/1\.1 (\d+)", connection.read_to_end()) in ([], [b"200"])
    assert len(httpx.get(f"{server.url}/v1/jobs").json()["jobs"]) == 1


def test_offer_to_upgrade_is_passed_over_and_the_body_read(server: ServerProcess) -> None:
    """Clients that speak HTTP/2, Java's among them, offer it with their first request."""
    offers = [
        post(OFFER + length()),
        post(OFFER + b"Transfer-Encoding: chunked\r\n", CHUNKED_BODY),
        get(b"/livez", OFFER),
        get(b"/livez", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    ]
    assert [status for status, _, _ in answers_to(server, *offers)] == [201, 201, 200, 200, 200]
    with RawConnection(server.port) as connection:
        for piece in (post(OFFER + length(), b""), BODY[:4], BODY[4:]):
            connection.send(piece)
        assert connection.read_answer()[0] == 201
        connection.send(get(b"/livez"))
        assert connection.read_answer()[0] == 200
    jobs = httpx.get(f"{server.url}/v1/jobs").json()["jobs"]
    assert [job["kind"] for job in jobs] == ["work"] * 3


def test_trailer_is_no_header(server: ServerProcess) -> None:
    body = b"f\r\n" + BODY + b"\r\n0\r\nIdempotency-Key: k\r\nX-Request-Id: trailer\r\n\r\n"
    for _ in range(2):
        (status, headers, answer), _ = answers_to(server, chunked(body))
        assert (status, json.loads(answer)["idempotency_key"]) == (201, None)
        assert headers["x-request-id"] != "trailer"


def test_type_and_encoding_of_a_body_have_one_reading(server: ServerProcess) -> None:
    for headers, body, expected in [
        (b"Content-Type: text/plain\r\n", BODY, 415),
        (b"Content-Type: application/json\r\n", BODY, 415),
        (b"Content-Type:\r\n", BODY, 415),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", BODY, 415),
        (b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n", BODY, 415),
        (b"Content-Encoding:\r\n", BODY, 415),
        (b"", b"\xef\xbb\xbf" + BODY, 400),
        (b"", BODY.decode().encode("utf-16"), 400),
        (b"", BODY.decode().encode("utf-16-le"), 400),
        (b"", BODY + b"x", 400),
        (b"", BODY + BODY, 400),
        (b"", BODY + b"\x00", 400),
        (b"", b'{"\\u006bind":"a","kind":"b"}', 422),
        (b"", b'{"kind":"a","metadata":{"m":"1","\\u006d":"2"}}', 422),
    ]:
        (status, answer, problem), _ = answers_to(server, post(headers + length(body), body))
        assert status == expected, (headers, body)
        assert json.loads(problem)["request_id"] == answer["x-request-id"]
    assert httpx.get(f"{server.url}/v1/jobs").json()["jobs"] == []
    # Any parameter is accepted, and changes nothing: the body is UTF-8.
    plain = post(length()).replace(JSON, b"Content-Type: application/json; charset=utf-16\r\n")
    assert answers_to(server, plain)[0][0] == 201


def test_requests_that_wait_for_their_answers_on_one_connection_are_bounded(server: ServerProcess) -> None:
    """Else one client that sends faster than it is answered fills the memory and holds everybody up."""
    with RawConnection(server.port) as connection:
        connection.send(get(b"/livez") * (MAX_OPEN_REQUESTS + 10))
        answers = connection.read_to_end().count(b"HTTP/1.1 200")
    assert answers == MAX_OPEN_REQUESTS
    with RawConnection(server.port) as connection:
        for _ in range(3):
            connection.send(get(b"/livez") * MAX_OPEN_REQUESTS)
            for _ in range(MAX_OPEN_REQUESTS):
                assert connection.read_answer()[0] == 200


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_client_that_has_sent_more_and_is_gone_is_granted_nothing(server: ServerProcess, how: str) -> None:
    body = b'{"worker_id": "gone", "queues": ["q"], "wait_seconds": 20}'
    parked = post(b"Content-Length: %d\r\n" % len(body), body).replace(b"/v1/jobs", b"/v1/leases")
    before = sockets_without_clients(server)
    connection = RawConnection(server.port)
    connection.send(parked + get(b"/livez"))
    wait_for_sockets(server, before + 1)
    connection.close(reset=how == "reset")
    wait_for_sockets(server, before)
    job = httpx.post(f"{server.url}/v1/jobs", json={"kind": "work", "queue": "q"}).json()
    leased = httpx.post(
        f"{server.url}/v1/leases", json={"worker_id": "w", "queues": ["q"], "wait_seconds": 5}
    ).json()["jobs"]
    assert [(each["id"], each["attempt"]) for each in leased] == [(job["id"], 1)]
