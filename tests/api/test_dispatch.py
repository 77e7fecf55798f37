"""A request finds its route before FastAPI is asked; FastAPI has what fits no route."""

from collections.abc import Iterator

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.dispatch import Dispatcher
from app.api.routing import Routes
from app.main import ROUTES
from tests.support.api import UNKNOWN_ID

Answered = list[tuple[str, dict[str, str]]]


def route(name: str, answered: Answered) -> ASGIApp:
    """Return an ASGI application that notes its name, and the parameters that its scope has."""

    async def note(scope: Scope, _receive: Receive, _send: Send) -> None:
        answered.append((name, scope.get("path_params", {})))

    return note


async def find(method: str, path: str) -> tuple[str, dict[str, str]]:
    """Return which route of the service takes a request, and its parameters; "" is FastAPI."""
    answered: Answered = []
    modules = []
    for module in ROUTES:
        named = Routes()
        named.apps = [(method, path, route(f"{method} {path}", answered)) for method, path, _ in module.apps]
        modules.append(named)
    dispatcher = Dispatcher(modules, otherwise=route("", answered))
    await dispatcher({"type": "http", "method": method, "path": path}, no_message, no_answer)
    (found,) = answered
    return found


async def no_message() -> dict[str, object]:
    raise AssertionError("nobody asks for a message")


async def no_answer(_message: object) -> None:
    raise AssertionError("nobody answers")


def every_route() -> Iterator[tuple[str, str]]:
    for module in ROUTES:
        for endpoint in module.endpoints:
            yield endpoint.method, endpoint.path
            if endpoint.method == "GET":
                yield "HEAD", endpoint.path


@pytest.mark.parametrize(("method", "path"), list(every_route()))
async def test_every_declared_route_is_found_without_fastapi(method: str, path: str) -> None:
    given = {"job_id": UNKNOWN_ID, "code": "lease_lost"}
    parameters = {name: value for name, value in given.items() if f"{{{name}}}" in path}
    assert await find(method, path.format(**given)) == (f"{method} {path}", parameters)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("GET", "/docs"),
        ("GET", "/v1/jobs/"),
        ("GET", "/v1//jobs"),
        ("GET", f"/v1/jobs/{UNKNOWN_ID}/"),
        ("POST", "/v1/jobs//complete"),
        ("POST", f"/v1/jobs/{UNKNOWN_ID}/complete/now"),
        ("PUT", "/v1/jobs"),
        ("BREW", f"/v1/jobs/{UNKNOWN_ID}"),
        ("PATCH", "/v1/jobs/batch"),
    ],
)
async def test_what_fits_no_route_is_left_to_fastapi(method: str, path: str) -> None:
    name, _ = await find(method, path)
    assert name == ""


async def test_name_of_a_route_is_a_job_id_where_no_such_route_goes_on() -> None:
    assert await find("POST", "/v1/jobs/batch/cancel") == (
        "POST /v1/jobs/{job_id}/cancel",
        {"job_id": "batch"},
    )
