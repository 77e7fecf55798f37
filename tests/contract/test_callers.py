"""What each route asks of a caller: every route with no key, a wrong one, and one of each scope."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from app.api.routing import Endpoint
from app.domain.caller import Scope
from app.main import ROUTES, describe_app
from app.settings import Settings
from tests.support.api import UNKNOWN_ID, refused
from tests.support.document import Operation, check_answer, operations
from tests.support.keys import API_KEYS, SECRET_OF_ALL, SECRETS, bearer, without_request_id

JSON = {"Content-Type": "application/json"}
OPEN = {(method, path) for method in ("GET", "HEAD") for path in ("/livez", "/readyz")}
ENDPOINTS: dict[str, Endpoint] = {
    endpoint.operation_id: endpoint for routes in ROUTES for endpoint in routes.endpoints
}
GUARDED = [operation for operation in operations() if ENDPOINTS[operation.name].scopes is not None]


@pytest.fixture(name="settings")
def _settings() -> Settings:
    return Settings(api_keys=API_KEYS, max_body_bytes=2000, max_batch_body_bytes=2000)


@pytest.fixture(name="client")
async def _client(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.event_hooks["response"].append(check_answer)
    return client


def every_call() -> Iterator[tuple[str, str]]:
    """Yield (method, path) of all that is served, FastAPI's own pages included, and of some that is not."""
    for route in describe_app().routes:
        assert isinstance(route, Route)
        path = route.path.replace("{job_id}", UNKNOWN_ID).replace("{code}", "lease_lost")
        for method in {*(route.methods or ()), "PUT", "OPTIONS", "BREW"}:
            yield method, path
    for path in ("/", "/v1", "/v2/jobs", "/livez/", "/readyz/x", "//livez", "/metrics", "/favicon.ico"):
        yield "GET", path
        yield "POST", path


async def send(
    client: httpx.AsyncClient, operation: Operation, secret: str, *, method: str | None = None
) -> httpx.Response:
    """Send a request that is good in everything, with a key."""
    return await client.request(
        method or operation.method,
        operation.address,
        params=operation.query,
        json=operation.example,
        headers=bearer(secret),
    )


@pytest.mark.parametrize("headers", [{}, bearer("wrong")], ids=["no key", "wrong key"])
async def test_everything_is_closed_without_a_known_key_but_what_probes_read(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    calls = set(every_call())
    assert len(calls) > 100
    assert calls >= OPEN | {("GET", "/docs"), ("GET", "/openapi.json")}
    bodies = []
    for method, path in calls:
        answer = await client.request(method, path, headers=headers)
        if (method, path) in OPEN:
            # 503: the background loops are just starting.
            assert answer.status_code in (200, 503), path
            continue
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        if method != "HEAD":
            refused(answer, 401, "unauthorized")
            bodies.append(without_request_id(answer))
    assert all(body == bodies[0] for body in bodies)


async def test_each_scope_opens_the_routes_that_declare_it_and_no_other(client: httpx.AsyncClient) -> None:
    for operation in GUARDED:
        declared = ENDPOINTS[operation.name].scopes
        assert declared
        for scope in declared:
            answer = await send(client, operation, SECRETS[scope])
            assert answer.status_code < 300 or answer.json()["code"] == "job_not_found", operation.name
        for scope in set(Scope) - declared:
            problem = refused(await send(client, operation, SECRETS[scope]), 403, "forbidden")
            assert set(re.findall(r"\b(?:produce|work|operate)\b", problem["detail"])) == declared
            if operation.method == "GET":
                answer = await send(client, operation, SECRETS[scope], method="HEAD")
                assert answer.status_code == 403


async def test_key_with_all_scopes_opens_every_route(client: httpx.AsyncClient) -> None:
    for operation in operations():
        answer = await send(client, operation, SECRET_OF_ALL)
        assert answer.status_code < 300 or answer.json()["code"] == "job_not_found", operation.name


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
async def test_any_key_reads_the_pages_about_the_service_and_learns_what_is_not_there(
    client: httpx.AsyncClient, secret: str
) -> None:
    for path in ("/openapi.json", "/docs", "/problems/lease_lost"):
        assert (await client.get(path, headers=bearer(secret))).status_code == 200
    refused(await client.get("/nowhere", headers=bearer(secret)), 404, "not_found")
    for operation in operations():
        answer = await client.request("BREW", operation.address, headers=bearer(secret))
        refused(answer, 405, "method_not_allowed")


FAULTS: dict[str, dict[str, Any]] = {
    "unknown parameter": {"params": {"colour": "red"}},
    "misplaced key": {"headers": {"Idempotency-Key": '"'}},
    "broken JSON": {"content": b"{", "headers": JSON},
    "too large": {"content": b" " * 2001, "headers": JSON},
    "no content type": {"content": b"{}"},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_key_is_looked_at_before_anything_else_of_a_request(
    client: httpx.AsyncClient, fault: dict[str, Any]
) -> None:
    for operation in GUARDED:
        own = fault.get("headers", {})
        for headers in (own, own | bearer("wrong")):
            answer = await client.request(operation.method, operation.address, **fault | {"headers": headers})
            refused(answer, 401, "unauthorized")
        for scope in set(Scope) - set(ENDPOINTS[operation.name].scopes or ()):
            headers = own | bearer(SECRETS[scope])
            answer = await client.request(operation.method, operation.address, **fault | {"headers": headers})
            refused(answer, 403, "forbidden")


def test_endpoint_cannot_be_declared_without_saying_who_may_call_it() -> None:
    with pytest.raises(TypeError, match="scopes"):
        Endpoint("GET", "/v1/new", "read_new", "New", (200, None))  # type: ignore[call-arg]
