"""One shape of refusal: every route of the document, every error that can be provoked on all of them."""

from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest

from app.api import handlers
from app.settings import Settings
from tests.support.api import refused
from tests.support.document import Operation, check_answer, operations

JSON = {"Content-Type": "application/json"}


@pytest.fixture(name="settings")
def _settings() -> Settings:
    return Settings(max_body_bytes=2000, max_batch_body_bytes=2000)


@pytest.fixture(name="client")
async def _client(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.event_hooks["response"].append(check_answer)
    return client


async def send(client: httpx.AsyncClient, operation: Operation, **changes: Any) -> httpx.Response:
    """Send a request that is good in everything but what is changed."""
    request: dict[str, Any] = {"params": operation.query}
    if operation.has_body and "content" not in changes:
        request["json"] = operation.example
    return await client.request(operation.method, operation.address, **request | changes)


def bodies(operation: Operation) -> bool:
    return operation.has_body


def always(_operation: Operation) -> bool:
    return True


PROVOKED: list[tuple[str, Callable[[Operation], bool], dict[str, Any], int, str]] = [
    ("unknown query parameter", always, {"params": {"colour": "red"}}, 422, "invalid_request"),
    ("query that is not UTF-8", always, {"params": b"x=%ff"}, 422, "invalid_request"),
    (
        "misplaced key",
        lambda operation: operation.path.startswith("/v1/") and not operation.takes_idempotency_key,
        {"headers": {"Idempotency-Key": "k"}},
        422,
        "invalid_request",
    ),
    (
        "malformed key",
        lambda operation: operation.takes_idempotency_key,
        {"headers": {"Idempotency-Key": '"'}},
        422,
        "invalid_request",
    ),
    ("broken JSON", bodies, {"content": b"{", "headers": JSON}, 400, "malformed_json"),
    ("not UTF-8", bodies, {"content": b'{"\xff":1}', "headers": JSON}, 400, "malformed_json"),
    ("no object", bodies, {"content": b"[]", "headers": JSON}, 422, "invalid_request"),
    ("unknown member", bodies, {"content": b'{"colour":1}', "headers": JSON}, 422, "invalid_request"),
    ("NaN", bodies, {"content": b'{"colour":NaN}', "headers": JSON}, 422, "invalid_request"),
    ("lone surrogate", bodies, {"content": b'{"\\ud800":1}', "headers": JSON}, 422, "invalid_request"),
    (
        "deep",
        bodies,
        {"content": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}", "headers": JSON},
        422,
        "invalid_request",
    ),
    ("too large", bodies, {"content": b" " * 2001, "headers": JSON}, 413, "too_large"),
    ("no content type", bodies, {"content": b"{}"}, 415, "unsupported_media_type"),
    (
        "content encoding",
        bodies,
        {"content": b"{}", "headers": JSON | {"Content-Encoding": "gzip"}},
        415,
        "unsupported_media_type",
    ),
]


@pytest.mark.parametrize(
    ("concerns", "changes", "status", "code"),
    [row[1:] for row in PROVOKED],
    ids=[row[0] for row in PROVOKED],
)
async def test_every_route_refuses_in_one_shape(
    client: httpx.AsyncClient,
    concerns: Callable[[Operation], bool],
    changes: dict[str, Any],
    status: int,
    code: str,
) -> None:
    for operation in filter(concerns, operations()):
        problem = refused(await send(client, operation, **changes), status, code)
        assert code in operation.codes(status), operation.name
        if status == 422:
            assert problem["errors"], operation.name
    assert (await client.get("/v1/jobs")).json()["jobs"] == []


async def test_every_route_of_one_job_answers_404_for_an_unknown_one(client: httpx.AsyncClient) -> None:
    for operation in operations():
        if "{job_id}" in operation.path:
            refused(await send(client, operation), 404, "job_not_found")


async def test_every_route_answers_405_in_the_one_shape(client: httpx.AsyncClient) -> None:
    for path in {operation.address for operation in operations()}:
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
            answer = await client.request(method, path)
            refused(answer, 405, "method_not_allowed")
            assert answer.headers["allow"]


async def test_every_route_refuses_the_methods_that_the_document_does_not_give_it(
    client: httpx.AsyncClient,
) -> None:
    methods: dict[str, set[str]] = {}
    for operation in operations():
        methods.setdefault(operation.address, set()).add(operation.method)
    for address, documented in methods.items():
        allowed = documented | ({"HEAD"} if "GET" in documented else set())
        for method in {"GET", "POST", "PATCH", "PUT", "DELETE"} - allowed:
            answer = await client.request(method, address, json={})
            refused(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == ", ".join(sorted(allowed))


async def test_every_route_answers_500_in_the_one_shape(
    client: httpx.AsyncClient,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the tests before have told does not count against this one.
    monkeypatch.setattr(handlers, "_trouble", handlers._Trouble())
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SCHEMA fencepost RENAME TO elsewhere")
    answer = await client.get("/v1/jobs", headers={"X-Request-Id": "found-in-the-log"})
    refused(answer, 500, "internal_error")
    assert "found-in-the-log" in caplog.text
    for operation in operations():
        if operation.codes(503) and operation.name != "get_readiness":
            refused(await send(client, operation), 500, "internal_error")


async def test_documented_examples_are_served(client: httpx.AsyncClient) -> None:
    for operation in operations():
        answer = await send(client, operation)
        assert answer.status_code < 300 or answer.json()["code"] == "job_not_found", operation.name
