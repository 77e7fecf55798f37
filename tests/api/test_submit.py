"""POST /v1/jobs: the job that comes back, its defaults, and when it is due."""

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.support.api import invalid, lease, read, submit

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


async def test_created_job_has_every_member_with_its_default(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/jobs", json={"kind": "mail"})
    assert response.status_code == 201
    job = response.json()
    assert UUID7.fullmatch(job.pop("id"))
    assert TIME.fullmatch(job["created_at"])
    assert job.pop("run_at") == job.pop("created_at")
    assert job == {
        "queue": "default",
        "kind": "mail",
        "state": "ready",
        "priority": 0,
        "payload": None,
        "metadata": {},
        "finished_at": None,
        "attempt": 0,
        "max_attempts": 10,
        "backoff": {
            "type": "exponential",
            "base_seconds": 5,
            "factor": 2,
            "max_seconds": 3600,
            "jitter": 0.1,
        },
        "max_runtime_seconds": None,
        "progress_timeout_seconds": None,
        "lease_version": 0,
        "lease": None,
        "result": None,
        "error": None,
        "checkpoint": None,
        "parent": None,
        "idempotency_key": None,
    }


async def test_created_job_is_read_back_as_it_was_answered(client: httpx.AsyncClient) -> None:
    job = await submit(
        client,
        queue="q:1",
        payload={"to": ["é", 1.50]},
        priority=-5,
        delay_seconds=60,
        max_attempts=3,
        backoff={"type": "linear", "base_seconds": 1, "factor": 3, "max_seconds": 9, "jitter": 0},
        max_runtime_seconds=30.5,
        progress_timeout_seconds=2,
        metadata={"tenant": "a", "é": "ü\n"},
    )
    assert job["metadata"] == {"tenant": "a", "é": "ü\n"}
    assert job["state"] == "scheduled"
    assert await read(client, job["id"]) == job


async def test_location_names_the_job(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/jobs", json={"kind": "mail"})
    assert response.headers["location"] == f"/v1/jobs/{response.json()['id']}"
    assert "idempotent-replayed" not in response.headers
    assert (await client.get(response.headers["location"])).json() == response.json()


async def test_delay_counts_from_the_creation(client: httpx.AsyncClient) -> None:
    job = await submit(client, delay_seconds=90.5)
    created_at, run_at = (datetime.fromisoformat(job[name]) for name in ("created_at", "run_at"))
    assert run_at - created_at == timedelta(seconds=90.5)
    assert job["state"] == "scheduled"
    assert await lease(client) == []


async def test_run_at_ahead_schedules_and_run_at_behind_is_ready(client: httpx.AsyncClient) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert (await submit(client, run_at=ahead))["state"] == "scheduled"
    behind = await submit(client, run_at="1999-12-31T23:59:59Z")
    assert (behind["state"], behind["run_at"]) == ("ready", "1999-12-31T23:59:59Z")


async def test_scheduled_job_becomes_due_by_itself(client: httpx.AsyncClient) -> None:
    job = await submit(client, delay_seconds=0.2)
    (leased,) = await lease(client, wait_seconds=20)
    assert leased["id"] == job["id"]
    assert leased["run_at"] == job["run_at"]


async def test_run_at_and_delay_together_are_refused(client: httpx.AsyncClient) -> None:
    both = {"kind": "work", "run_at": "2027-01-01T00:00:00Z", "delay_seconds": 1}
    invalid(await client.post("/v1/jobs", json=both), "delay_seconds", "run_at")
    invalid(await client.post("/v1/jobs/batch", json={"jobs": [both]}), "/jobs/0")


async def test_kind_is_required(client: httpx.AsyncClient) -> None:
    invalid(await client.post("/v1/jobs", json={}), "kind")
    invalid(await client.post("/v1/jobs"), "kind")


@pytest.mark.parametrize(
    "metadata", [[], "text", None, {"a": 1}, {"a": None}, {"a": {"b": "c"}}, {"a": True}], ids=repr
)
async def test_metadata_is_an_object_of_strings(client: httpx.AsyncClient, metadata: object) -> None:
    invalid(await client.post("/v1/jobs", json={"kind": "work", "metadata": metadata}), "metadata")


async def test_backoff_that_is_partly_given_is_filled_with_defaults(client: httpx.AsyncClient) -> None:
    job = await submit(client, backoff={"type": "fixed", "base_seconds": 0})
    assert job["backoff"] == {
        "type": "fixed",
        "base_seconds": 0,
        "factor": 2,
        "max_seconds": 3600,
        "jitter": 0.1,
    }
    assert await read(client, job["id"]) == job
    invalid(await client.post("/v1/jobs", json={"kind": "w", "backoff": {"type": "cubic"}}), "/backoff/type")
    invalid(await client.post("/v1/jobs", json={"kind": "w", "backoff": {"base": 1}}), "/backoff/base")


async def test_trace_headers_reach_the_worker(client: httpx.AsyncClient) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": traceparent, "tracestate": "a=1,b=2"}
    await client.post("/v1/jobs", json={"kind": "work"}, headers=headers)
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "work"}]}, headers=headers)
    for leased in await lease(client, max_jobs=2):
        assert leased["traceparent"] == traceparent
        assert leased["tracestate"] == "a=1,b=2"


async def test_refused_request_creates_nothing(client: httpx.AsyncClient) -> None:
    for body in ({}, {"kind": "w", "priority": "5"}, {"kind": "w", "color": "red"}):
        assert (await client.post("/v1/jobs", json=body)).status_code == 422
    assert (await client.get("/v1/jobs")).json() == {"jobs": [], "next_cursor": None}
