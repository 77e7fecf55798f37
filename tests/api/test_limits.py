"""Limits in bytes and items: up to the limit it is accepted, beyond it is 413 that names the limit."""

import json

import httpx
import pytest

from app.settings import Settings
from tests.support.api import (
    Json,
    invalid,
    list_all,
    post_text,
    read,
    refused,
    run_job,
    submit,
    tell,
    tell_ok,
)

small_limits = pytest.mark.parametrize(
    "settings",
    [
        Settings(
            max_payload_bytes=100,
            max_result_bytes=110,
            max_checkpoint_bytes=120,
            max_metadata_bytes=130,
            max_body_bytes=2000,
            max_batch_body_bytes=4000,
            max_batch_items=3,
        )
    ],
    ids=["small_limits"],
)


def text_of(size: int) -> str:
    """Return a string whose JSON text has so many bytes."""
    return "é" * ((size - 2) // 2) + "x" * (size % 2)


def too_large(response: httpx.Response, limit: int, pointer: str | None) -> Json:
    problem = refused(response, 413, "too_large")
    assert str(limit) in problem["detail"]
    assert problem.get("pointer") == pointer
    return problem


def padded(body: Json, size: int) -> str:
    text = json.dumps(body)
    return text[:-1] + " " * (size - len(text)) + "}"


@small_limits
async def test_payload_limit(client: httpx.AsyncClient) -> None:
    job = await submit(client, payload=text_of(100))
    assert (await read(client, job["id"]))["payload"] == text_of(100)
    over = {"kind": "w", "payload": text_of(101)}
    too_large(await client.post("/v1/jobs", json=over), 100, "/payload")
    batch = {"jobs": [{"kind": "w"}, over]}
    too_large(await client.post("/v1/jobs/batch", json=batch), 100, "/jobs/1/payload")
    assert len(await list_all(client)) == 1


@small_limits
async def test_metadata_limit(client: httpx.AsyncClient) -> None:
    await submit(client, metadata={"a": "x" * 122})
    over = {"kind": "w", "metadata": {"a": "x" * 123}}
    too_large(await client.post("/v1/jobs", json=over), 130, "/metadata")
    too_large(await client.post("/v1/jobs/batch", json={"jobs": [over]}), 130, "/jobs/0/metadata")
    assert len(await list_all(client)) == 1


@small_limits
async def test_checkpoint_limit_keeps_the_lease_and_the_stored_checkpoint(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    await tell_ok(client, "heartbeat", leased, checkpoint=text_of(120))
    before = await read(client, leased["id"])
    too_large(await tell(client, "heartbeat", leased, checkpoint=text_of(121)), 120, "/checkpoint")
    item = {"job_id": leased["id"], "lease_version": 1, "checkpoint": text_of(121)}
    answer = await client.post("/v1/leases/heartbeat", json={"items": [item]})
    too_large(answer, 120, "/items/0/checkpoint")
    assert await read(client, leased["id"]) == before


@small_limits
async def test_result_limit_keeps_the_lease(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    before = await read(client, leased["id"])
    too_large(await tell(client, "complete", leased, result=text_of(111)), 110, "/result")
    item = {"job_id": leased["id"], "lease_version": 1, "result": text_of(111)}
    too_large(await client.post("/v1/leases/complete", json={"items": [item]}), 110, "/items/0/result")
    follow_up = {"kind": "w", "payload": text_of(101)}
    too_large(await tell(client, "complete", leased, enqueue=[follow_up]), 100, "/enqueue/0/payload")
    assert await read(client, leased["id"]) == before
    assert (await tell_ok(client, "complete", leased, result=text_of(110)))["result"] == text_of(110)


@small_limits
async def test_details_over_the_result_limit_are_replaced_by_a_marker(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    job = await tell_ok(client, "fail", leased, error={"message": "m", "details": text_of(111)})
    assert job["error"]["message"] == "m"
    assert isinstance(job["error"]["details"], dict)


@small_limits
async def test_body_limit(client: httpx.AsyncClient) -> None:
    assert (await post_text(client, "/v1/jobs", padded({"kind": "w"}, 2000))).status_code == 201
    too_large(await post_text(client, "/v1/jobs", padded({"kind": "w"}, 2001)), 2000, None)
    for path in (f"/v1/jobs/{'x' * 36}/cancel", f"/v1/jobs/{'x' * 36}/complete"):
        assert (await post_text(client, path, padded({}, 2001))).status_code in (404, 413)
    leased = await run_job(client, queue="q")
    for verb in ("heartbeat", "complete", "fail", "release", "verify"):
        body = padded({"lease_version": 1}, 2001)
        too_large(await post_text(client, f"/v1/jobs/{leased['id']}/{verb}", body), 2000, None)
    assert (await read(client, leased["id"]))["state"] == "running"


@small_limits
async def test_batch_body_limit(client: httpx.AsyncClient) -> None:
    assert (await post_text(client, "/v1/jobs/batch", padded({"jobs": []}, 4000))).status_code == 201
    too_large(await post_text(client, "/v1/jobs/batch", padded({"jobs": []}, 4001)), 4000, None)
    for verb in ("heartbeat", "complete", "fail", "release"):
        assert (await post_text(client, f"/v1/leases/{verb}", padded({"items": []}, 4000))).status_code == 200
        too_large(await post_text(client, f"/v1/leases/{verb}", padded({"items": []}, 4001)), 4000, None)
    # It may complete many.
    wish = {"worker_id": "w", "queues": ["q"]}
    assert (await post_text(client, "/v1/leases", padded(wish, 4000))).status_code == 200
    too_large(await post_text(client, "/v1/leases", padded(wish, 4001)), 4000, None)


@small_limits
async def test_batch_item_limit_refuses_the_whole_call(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 3})
    assert len(answer.json()["jobs"]) == 3
    too_large(await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 4}), 3, "/jobs")
    leased = await run_job(client, queue="q")
    item = {"job_id": leased["id"], "lease_version": 1}
    for verb, more in (
        ("heartbeat", {}),
        ("complete", {}),
        ("fail", {"error": {"message": "m"}}),
        ("release", {}),
    ):
        answer = await client.post(f"/v1/leases/{verb}", json={"items": [item | more] * 4})
        too_large(answer, 3, "/items")
    assert len(await list_all(client)) == 4
    assert (await read(client, leased["id"]))["state"] == "running"


async def test_default_limits_are_those_of_the_contract(client: httpx.AsyncClient) -> None:
    await submit(client, payload=text_of(256 * 1024), queue="big")
    too_large(
        await client.post("/v1/jobs", json={"kind": "w", "payload": text_of(256 * 1024 + 1)}),
        256 * 1024,
        "/payload",
    )
    leased = await run_job(client)
    too_large(
        await tell(client, "heartbeat", leased, checkpoint=text_of(64 * 1024 + 1)), 64 * 1024, "/checkpoint"
    )
    await tell_ok(client, "heartbeat", leased, checkpoint=text_of(64 * 1024))
    too_large(await tell(client, "complete", leased, result=text_of(256 * 1024 + 1)), 256 * 1024, "/result")
    await tell_ok(client, "complete", leased, result=text_of(256 * 1024))
    over = {"kind": "w", "metadata": {"a": "x" * 16 * 1024}}
    too_large(await client.post("/v1/jobs", json=over), 16 * 1024, "/metadata")
    too_large(await post_text(client, "/v1/jobs", padded({"kind": "w"}, 2**20 + 1)), 2**20, None)
    assert (await post_text(client, "/v1/jobs", padded({"kind": "w"}, 2**20))).status_code == 201


async def test_follow_ups_of_one_completion_are_limited_to_100(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    invalid(await tell(client, "complete", leased, enqueue=[{"kind": "w"}] * 101), "/enqueue")
    assert (await read(client, leased["id"]))["state"] == "running"
    await tell_ok(client, "complete", leased, enqueue=[{"kind": "w"}] * 100)
    assert len(await list_all(client)) == 101
