"""BO-52: what must not be seen, looked for in every answer and in the whole log."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.api import UNKNOWN_ID
from tests.support.server import ServerProcess

_PASSWORD = "p#a@s:s/w^o%rd-marker"
_PAYLOAD = "payload-marker"
_KEY = "key-marker"
_FORBIDDEN_IN_ANSWERS = ("marker", "select ", "insert ", "traceback", "psycopg", "postgresql://", "42501")


@pytest.fixture(name="owned")
def _owned(new_database: Callable[..., str], admin_url: str) -> Iterator[tuple[str, str]]:
    """An empty database that an ordinary role owns: its owner's URL, with a password, and the role's name."""
    role = f"fencepost_{uuid.uuid4().hex[:8]}"
    given = conninfo_to_dict(new_database())
    name = sql.Identifier(str(given["dbname"]))
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(_PASSWORD))
        )
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, sql.Identifier(role)))
    credentials = f"{role}:{quote(_PASSWORD, safe='')}"
    host, port = quote(str(given["host"]), safe=""), given.get("port", 5432)
    yield f"postgresql://{credentials}@/{given['dbname']}?host={host}&port={port}", role
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def _calls(job_id: str) -> list[tuple[str, str, object]]:
    token = {"lease_version": 1}
    item = {"job_id": job_id, **token}
    error = {"message": _PAYLOAD, "details": {"secret": _PAYLOAD}}
    return [
        ("POST", "/v1/jobs", {"kind": "w", "payload": _PAYLOAD, "metadata": {"a": _PAYLOAD}}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"kind": "w", "payload": _PAYLOAD, "idempotency_key": _KEY}]}),
        ("GET", f"/v1/jobs/{job_id}", None),
        ("GET", f"/v1/jobs/{job_id}/attempts", None),
        ("GET", "/v1/jobs", None),
        ("PATCH", f"/v1/jobs/{job_id}", {"priority": 3}),
        ("POST", f"/v1/jobs/{job_id}/cancel", {"reason": _PAYLOAD}),
        ("POST", f"/v1/jobs/{job_id}/redrive", {}),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["default"]}),
        ("POST", f"/v1/jobs/{job_id}/heartbeat", token | {"checkpoint": _PAYLOAD}),
        ("POST", f"/v1/jobs/{job_id}/complete", token | {"result": _PAYLOAD}),
        ("POST", f"/v1/jobs/{job_id}/fail", token | {"error": error}),
        ("POST", f"/v1/jobs/{job_id}/release", token | {"reason": _PAYLOAD}),
        ("POST", "/v1/leases/complete", {"items": [item | {"result": _PAYLOAD}]}),
        ("POST", "/v1/leases/fail", {"items": [item | {"error": error}]}),
    ]


def test_no_secret_is_in_an_answer_or_the_log_when_a_table_right_is_gone(
    owned: tuple[str, str], serve: Callable[..., ServerProcess], admin_url: str
) -> None:
    database_url, role = owned
    server = serve(database_url=database_url)
    with httpx.Client(base_url=server.url, timeout=20) as client:
        job_id = client.post("/v1/jobs", json={"kind": "w", "payload": _PAYLOAD}).json()["id"]
        _change_rights(admin_url, database_url, "REVOKE ALL ON {} FROM {}", role)
        failed = [
            answer
            for method, path, body in _calls(job_id)
            if (answer := _call(client, method, path, body)).status_code >= 500
        ]
        _change_rights(admin_url, database_url, "GRANT ALL ON {} TO {}", role)
        assert client.get(f"/v1/jobs/{job_id}").json()["payload"] == _PAYLOAD
    # Nearly every route needs the table; what was refused can be found in the log.
    assert len(failed) >= 10
    for answer in failed:
        assert answer.json()["code"] in ("internal_error", "unavailable")
        assert answer.headers["x-request-id"] in server.log
        assert not [word for word in _FORBIDDEN_IN_ANSWERS if word in answer.text.lower()], answer.text
    assert "InsufficientPrivilege" in server.log
    assert not [word for word in (_PASSWORD, quote(_PASSWORD, safe=""), _PAYLOAD, _KEY) if word in server.log]


def _call(client: httpx.Client, method: str, path: str, body: object) -> httpx.Response:
    headers = {"Idempotency-Key": _KEY} if (method, path) == ("POST", "/v1/jobs") else {}
    return client.request(method, path, json=body, headers=headers)


def _change_rights(admin_url: str, database_url: str, statement: str, role: str) -> None:
    given = conninfo_to_dict(database_url)
    admin = conninfo_to_dict(admin_url) | {"dbname": given["dbname"]}
    table = sql.Identifier("fencepost", "jobs")
    with psycopg.connect(**admin, autocommit=True) as connection:  # type: ignore[arg-type]  # all are texts
        connection.execute(sql.SQL(statement).format(table, sql.Identifier(role)))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{_PASSWORD}@localhost/db",
        f"postgresql://u:x@localhost:{_PASSWORD}/db",
        f"postgresql://{quote(_PASSWORD, safe='')}@localhost:1/db?password={quote(_PASSWORD, safe='')}",
        f"postgres:/{_PASSWORD}",
    ],
)
def test_a_start_that_fails_does_not_quote_the_database_url(url: str, tmp_path: Path) -> None:
    server = ServerProcess({"database_url": url}, log_path=tmp_path / "log")
    assert server.wait() != 0
    assert len(server.log.strip().splitlines()) == 1
    assert not [part for part in ("marker", "p#a", "s/w", "rd-") if part in server.log], server.log


def test_a_body_that_is_refused_is_not_logged(serve: Callable[..., ServerProcess]) -> None:
    server = serve(log_level="debug")
    bodies: list[object] = [
        {"kind": "w", "payload": _PAYLOAD, "priority": "high"},
        {"kind": _PAYLOAD + "!", "payload": _PAYLOAD},
        {"lease_version": 1, "result": _PAYLOAD},
    ]
    with httpx.Client(base_url=server.url, timeout=20) as client:
        for path in ("/v1/jobs", f"/v1/jobs/{UNKNOWN_ID}/complete"):
            for body in bodies:
                _call(client, "POST", path, body)
        client.get(f"/v1/jobs?{_PAYLOAD}={_PAYLOAD}")
    assert _PAYLOAD not in server.log
    assert _KEY not in server.log
