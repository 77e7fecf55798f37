"""What tests say to the service over HTTP, and what every refusal must look like."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx
import pytest

from app.settings import Settings
from tests.support.waiting import DEADLINE_SECONDS

Json = dict[str, Any]
T = TypeVar("T")

PROBLEM_TYPE = "application/problem+json"
UNKNOWN_ID = "0193a3f0-5c00-7000-8000-000000000000"

# Marks that give the application other settings for one test.
quick_reaper = pytest.mark.parametrize(
    "settings", [Settings(reaper_interval_seconds=0.05)], ids=["quick_reaper"]
)
no_reaper = pytest.mark.parametrize("settings", [Settings(reaper_interval_seconds=86_400)], ids=["no_reaper"])


async def submit(client: httpx.AsyncClient, **members: object) -> Json:
    """Create a job; return it."""
    response = await client.post("/v1/jobs", json={"kind": "work"} | members)
    assert response.status_code == 201, response.text
    return as_object(response)


async def submit_with_key(client: httpx.AsyncClient, key: str, **members: object) -> httpx.Response:
    return await client.post("/v1/jobs", json={"kind": "work"} | members, headers={"Idempotency-Key": key})


async def lease(client: httpx.AsyncClient, *, queue: str = "default", **members: object) -> list[Json]:
    """Lease jobs of one queue; return them."""
    body = {"worker_id": "w1", "queues": [queue]} | members
    response = await client.post("/v1/leases", json=body)
    assert response.status_code == 200, response.text
    jobs: list[Json] = response.json()["jobs"]
    return jobs


async def run_job(client: httpx.AsyncClient, *, lease_seconds: float = 60, **members: object) -> Json:
    """Create a job and lease it; return the leased job. The queue must hold nothing else."""
    job = await submit(client, **members)
    queue = str(members.get("queue", "default"))
    (leased,) = await lease(client, queue=queue, lease_seconds=lease_seconds)
    assert leased["id"] == job["id"]
    return leased


async def tell(
    client: httpx.AsyncClient, verb: str, leased: Mapping[str, Any], **members: object
) -> httpx.Response:
    """Say something as the holder of a leased job; return the response."""
    body = {"lease_version": leased["lease_version"]} | members
    return await client.post(f"/v1/jobs/{leased['id']}/{verb}", json=body)


async def tell_ok(client: httpx.AsyncClient, verb: str, leased: Mapping[str, Any], **members: object) -> Json:
    response = await tell(client, verb, leased, **members)
    assert response.status_code == 200, response.text
    return as_object(response)


async def read(client: httpx.AsyncClient, job_id: str) -> Json:
    response = await client.get(f"/v1/jobs/{job_id}")
    assert response.status_code == 200, response.text
    return as_object(response)


async def read_attempts(client: httpx.AsyncClient, job_id: str) -> list[Json]:
    response = await client.get(f"/v1/jobs/{job_id}/attempts", params={"limit": 200})
    assert response.status_code == 200, response.text
    attempts: list[Json] = response.json()["attempts"]
    return attempts


async def post_text(client: httpx.AsyncClient, path: str, text: str | bytes) -> httpx.Response:
    """Post a JSON text exactly as it stands."""
    content = text.encode() if isinstance(text, str) else text
    return await client.post(path, content=content, headers={"Content-Type": "application/json"})


async def list_all(client: httpx.AsyncClient, *, limit: int = 200, **params: str | int) -> list[Json]:
    """Follow the cursors of a list to its end."""
    found: list[Json] = []
    query: dict[str, str | int] = {"limit": limit, **params}
    while True:
        response = await client.get("/v1/jobs", params=query)
        assert response.status_code == 200, response.text
        page = response.json()
        found += page["jobs"]
        if page["next_cursor"] is None:
            assert "link" not in response.headers
            return found
        query["cursor"] = page["next_cursor"]


def as_object(response: httpx.Response) -> Json:
    body = response.json()
    assert isinstance(body, dict)
    return body


def refused(response: httpx.Response, status: int, code: str) -> Json:
    """Check the one shape of every refusal; return its members."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM_TYPE
    problem: Json = json.loads(response.content.decode(), parse_constant=_no_constant)
    assert problem["code"] == code, problem
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return problem


def invalid(response: httpx.Response, *named: str) -> Json:
    """Check a 422 ``invalid_request``; its errors must name every text of ``named``."""
    problem = refused(response, 422, "invalid_request")
    assert problem["errors"], problem
    for error in problem["errors"]:
        assert isinstance(error["pointer"], str)
        assert isinstance(error["message"], str)
    for name in named:
        assert name in json.dumps(problem["errors"], ensure_ascii=False), problem
    return problem


def lost(response: httpx.Response, reason: str) -> Json:
    """Check a 409 ``lease_lost`` with its members."""
    problem = refused(response, 409, "lease_lost")
    assert problem["reason"] == reason, problem
    assert {"job_id", "presented_version", "current_version", "job_state"} <= problem.keys()
    return problem


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what ``look`` finds as soon as it finds anything."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, "the awaited condition did not come about"
        await asyncio.sleep(0.02)


async def state_becomes(client: httpx.AsyncClient, job_id: str, *states: str) -> Json:
    """Wait until a job is in one of the states; return it."""

    async def look() -> Json | None:
        job = await read(client, job_id)
        return job if job["state"] in states else None

    return await eventually(look)


def _no_constant(name: str) -> object:
    raise AssertionError(f"{name} is not JSON")
