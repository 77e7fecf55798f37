"""Many holder calls at once: each item is answered by itself, with the members of the single call."""

from typing import Any

import httpx
import pytest

from tests.support.api import (
    UNKNOWN_ID,
    Json,
    invalid,
    lease,
    read,
    read_attempts,
    tell_ok,
)

VERBS: dict[str, dict[str, Any]] = {
    "heartbeat": {"progress": {"seq": 1}},
    "complete": {"result": 1},
    "fail": {"error": {"message": "m"}},
    "release": {"reason": "r"},
}
verbs = pytest.mark.parametrize("verb", VERBS)
REASONS = {"heartbeat": "unknown", "complete": "finished", "fail": "failed", "release": "released"}


async def leased_jobs(client: httpx.AsyncClient, count: int) -> list[Json]:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * count})
    return await lease(client, max_jobs=count)


async def tell_many(client: httpx.AsyncClient, verb: str, items: list[Json]) -> list[Json]:
    response = await client.post(f"/v1/leases/{verb}", json={"items": items})
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"results"}
    results: list[Json] = response.json()["results"]
    assert [result["job_id"] for result in results] == [item["job_id"] for item in items]
    return results


def item_of(leased: Json, verb: str) -> Json:
    return {"job_id": leased["id"], "lease_version": leased["lease_version"]} | VERBS[verb]


@verbs
async def test_each_item_is_answered_by_itself_in_input_order(client: httpx.AsyncClient, verb: str) -> None:
    one, two, three = await leased_jobs(client, 3)
    items = [
        item_of(three, verb),
        item_of(two | {"lease_version": 9}, verb),
        item_of({"id": UNKNOWN_ID, "lease_version": 1}, verb),
        item_of(one, verb),
    ]
    results = await tell_many(client, verb, items)
    assert [result["status"] for result in results] == ["ok", "lease_lost", "not_found", "ok"]
    lost = results[1]
    assert (lost["code"], lost["reason"]) == ("lease_lost", "unknown")
    assert (lost["presented_version"], lost["current_version"], lost["job_state"]) == (9, 1, "running")
    assert results[2]["code"] == "job_not_found"
    for result, leased in ((results[0], three), (results[3], one)):
        job = await read(client, leased["id"])
        if verb == "heartbeat":
            assert result["lease_expires_at"] == job["lease"]["expires_at"]
            assert (result["deadline_at"], result["cancel_requested"]) == (None, False)
            assert job["lease"]["progress"]["seq"] == 1
        else:
            assert result["state"] == job["state"] != "running"
    assert (await read(client, two["id"]))["state"] == "running"


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
async def test_repeat_of_many_is_replayed_item_by_item(client: httpx.AsyncClient, verb: str) -> None:
    one, two = await leased_jobs(client, 2)
    single = {name: value for name, value in item_of(one, verb).items() if name != "job_id"}
    first = await client.post(f"/v1/jobs/{one['id']}/{verb}", json=single)
    assert first.status_code == 200
    items = [item_of(one, verb), item_of(two, verb)]
    results = await tell_many(client, verb, items)
    assert [result["status"] for result in results] == ["replayed", "ok"]
    again = await tell_many(client, verb, items)
    assert [result["status"] for result in again] == ["replayed", "replayed"]
    assert [result["state"] for result in again] == [result["state"] for result in results]
    for leased in (one, two):
        assert len(await read_attempts(client, leased["id"])) == 1


@verbs
async def test_job_that_stands_twice_is_told_twice(client: httpx.AsyncClient, verb: str) -> None:
    (leased,) = await leased_jobs(client, 1)
    results = await tell_many(client, verb, [item_of(leased, verb)] * 2)
    second = "ok" if verb == "heartbeat" else "replayed"
    assert [result["status"] for result in results] == ["ok", second]


async def test_rivals_within_one_call_have_one_winner(client: httpx.AsyncClient) -> None:
    (leased,) = await leased_jobs(client, 1)
    token = {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    results = await tell_many(client, "complete", [token | {"result": 1}, token | {"result": 2}])
    assert [result["status"] for result in results] == ["ok", "lease_lost"]
    assert results[1]["reason"] == "finished"
    assert (await read(client, leased["id"]))["result"] == 1


@verbs
async def test_malformed_item_refuses_the_whole_call(client: httpx.AsyncClient, verb: str) -> None:
    one, two = await leased_jobs(client, 2)
    good = item_of(one, verb)
    for bad, pointer in [
        (item_of(two, verb) | {"lease_version": "1"}, "/items/1/lease_version"),
        ({"lease_version": 1} | VERBS[verb], "/items/1/job_id"),
        (item_of(two, verb) | {"job_id": two["id"].upper()}, "/items/1/job_id"),
        (item_of(two, verb) | {"job_id": "1"}, "/items/1/job_id"),
        (5, "/items/1"),
    ]:
        invalid(await client.post(f"/v1/leases/{verb}", json={"items": [good, bad]}), pointer)
    bodies: list[Json] = [{}, {"items": {}}, {"items": None}]
    for body in bodies:
        invalid(await client.post(f"/v1/leases/{verb}", json=body), "/items")
    for leased in (one, two):
        job = await read(client, leased["id"])
        assert (job["state"], job["lease"]["progress"]) == ("running", None)


@verbs
async def test_no_items_are_no_results(client: httpx.AsyncClient, verb: str) -> None:
    assert await tell_many(client, verb, []) == []


async def test_follow_ups_of_many_are_created_with_the_completions_that_counted(
    client: httpx.AsyncClient,
) -> None:
    one, two = await leased_jobs(client, 2)
    items = [
        {"job_id": one["id"], "lease_version": 1, "enqueue": [{"kind": "a"}, {"kind": "b"}]},
        {"job_id": two["id"], "lease_version": 9, "enqueue": [{"kind": "c"}]},
    ]
    results = await tell_many(client, "complete", items)
    assert [result["status"] for result in results] == ["ok", "lease_lost"]
    assert [job["kind"] for job in await lease(client, max_jobs=9)] == ["a", "b"]


async def test_a_thousand_are_completed_in_one_call(client: httpx.AsyncClient) -> None:
    jobs = await leased_jobs(client, 1000)
    results = await tell_many(client, "complete", [item_of(job, "complete") for job in jobs])
    assert {result["status"] for result in results} == {"ok"}


async def test_cancel_request_is_shown_in_the_item(client: httpx.AsyncClient) -> None:
    (leased,) = await leased_jobs(client, 1)
    await client.post(f"/v1/jobs/{leased['id']}/cancel")
    (result,) = await tell_many(client, "heartbeat", [item_of(leased, "heartbeat")])
    assert result["cancel_requested"] is True
    (result,) = await tell_many(client, "release", [item_of(leased, "release")])
    assert result["state"] == "cancelled"
    assert (await tell_ok(client, "release", leased, reason="r"))["state"] == "cancelled"
