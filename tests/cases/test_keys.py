"""API keys on a real server: what stands on the wire, in its log and in its command lines."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import psycopg

from tests.support.server import ServerProcess
from tests.support.sockets import RawConnection

Serve = Callable[..., ServerProcess]

SECRET = "marker-of-a-secret"
KEYS = f"producer:produce:{SECRET},worker:work:{SECRET}-of-a-worker"
RIGHT = f"Authorization: Bearer {SECRET}"
FOR_PRODUCE, FOR_WORK = ({"Authorization": f"Bearer {SECRET}{suffix}"} for suffix in ("", "-of-a-worker"))


def ask(server: ServerProcess, *headers: str) -> tuple[int, dict[str, str], bytes]:
    with RawConnection(server.port) as connection:
        connection.send_request("GET", "/v1/jobs", headers)
        return connection.read_answer()


def test_malformed_keys_on_the_wire_are_401_with_one_body(serve: Serve) -> None:
    """BO-53."""
    server = serve(api_keys=KEYS)
    bodies = []
    for headers in (
        [],
        ["Authorization: Bearer caf\xe9"],
        ["Authorization: Bearer caf\xc3\xa9"],
        ["Authorization:"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        ["Authorization: Bearer " + "k" * 60_000],
        [RIGHT + "x"],
        [RIGHT, RIGHT],
        [RIGHT, "authorization: Bearer wrong"],
    ):
        status, answer_headers, body = ask(server, *headers)
        assert status == 401, headers
        assert answer_headers["www-authenticate"] == "Bearer"
        bodies.append({**json.loads(body), "request_id": ""})
    assert all(body == bodies[0] for body in bodies)
    for line in (RIGHT, RIGHT.replace("Bearer", "bearer"), RIGHT.replace("Bearer", "BEARER  "), RIGHT + "  "):
        assert ask(server, line)[0] == 200, line
    assert "Traceback" not in server.log


def test_refusal_comes_before_the_body_and_leaves_the_connection_usable(serve: Serve) -> None:
    server = serve(api_keys=KEYS)
    without_scope = f"{RIGHT}-of-a-worker"
    body = b'{"kind": "work", "payload": "' + b"x" * 100_000 + b'"}'
    for headers, expected in (([], 401), ([without_scope], 403)):
        with RawConnection(server.port) as connection:
            announced = [*headers, f"Content-Length: {len(body)}", "Expect: 100-continue"]
            connection.send_request("POST", "/v1/jobs", announced)
            assert connection.read_answer()[0] == expected
        with RawConnection(server.port) as connection:
            for _ in range(2):
                connection.send_request("POST", "/v1/jobs", headers, body)
                assert connection.read_answer()[0] == expected
            connection.send_request("POST", "/v1/jobs", [RIGHT], body)
            assert connection.read_answer()[0] == 201


def test_every_process_of_several_checks_the_keys_of_a_file_on_all_addresses(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("# who\n\n" + KEYS.replace(",", "\n  # and who else\n") + "\n", encoding="utf-8")
    server = serve(api_keys_file=path, processes=2, host="0.0.0.0")
    children = psutil.Process(server.process.pid).children()
    assert len(children) == 2
    for _ in range(40):
        # A client of its own each time: the kernel picks a process for each connection.
        assert httpx.get(f"{server.url}/v1/jobs").status_code == 401
        assert httpx.get(f"{server.url}/v1/jobs", headers=FOR_PRODUCE).status_code == 200
        assert httpx.get(f"{server.url}/v1/jobs", headers=FOR_WORK).status_code == 200


def test_no_key_is_in_a_log_an_answer_or_a_command_line(serve: Serve, database_url: str) -> None:
    """BO-52."""
    server = serve(api_keys=KEYS, processes=2, log_level="debug")
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    command_lines = " ".join(" ".join(process.cmdline()) for process in processes)
    with httpx.Client(base_url=server.url, headers=FOR_PRODUCE) as client:
        answers = [
            client.get("/v1/jobs", headers={b"Authorization": f"Bearer {SECRET}é".encode()}),
            client.get("/v1/jobs", headers={"Authorization": f"Bearer {SECRET}-unknown"}),
            client.post("/v1/leases", json={}),
            client.post("/v1/jobs", json={"kind": SECRET + "/"}),
            client.get("/nowhere"),
            client.put("/v1/jobs"),
        ]
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("ALTER SCHEMA fencepost RENAME TO elsewhere")
        answers.append(client.post("/v1/jobs", json={"kind": "work"}))
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("ALTER SCHEMA elsewhere RENAME TO fencepost")
    assert [answer.status_code for answer in answers] == [401, 401, 403, 422, 404, 405, 500]
    server.end()
    assert answers[-1].json()["request_id"] in server.log
    for text in (server.log, command_lines, *(answer.text for answer in answers)):
        assert text
        assert SECRET not in text
