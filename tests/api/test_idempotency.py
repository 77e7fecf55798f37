"""Idempotency-Key: same meaning, same job; another meaning, a refusal; a refused request leaves no trace."""

import asyncio
from typing import Any

import httpx
import pytest

from app.operations.context import Context
from app.settings import Settings
from tests.support.api import (
    Json,
    eventually,
    invalid,
    lease,
    list_all,
    lost,
    post_text,
    quick_reaper,
    read,
    refused,
    run_job,
    state_becomes,
    submit_with_key,
    tell_ok,
)
from tests.support.factory import elapse, elapse_since_finish

KEY = "order-17"
JSON_WITH_KEY = {"Content-Type": "application/json", "Idempotency-Key": KEY}


def replayed(response: httpx.Response, job_id: str) -> Json:
    assert response.status_code == 200, response.text
    assert response.headers["idempotent-replayed"] == "true"
    job: Json = response.json()
    assert job["id"] == job_id
    return job


async def test_repeat_is_answered_with_the_job_as_it_is_now(client: httpx.AsyncClient) -> None:
    first = await submit_with_key(client, KEY, payload={"n": 1})
    assert first.status_code == 201
    assert first.json()["idempotency_key"] == KEY
    assert replayed(await submit_with_key(client, KEY, payload={"n": 1}), first.json()["id"]) == first.json()
    (leased,) = await lease(client)
    await tell_ok(client, "complete", leased, result=7)
    again = replayed(await submit_with_key(client, KEY, payload={"n": 1}), first.json()["id"])
    assert (again["state"], again["result"]) == ("succeeded", 7)
    assert again["created_at"] == first.json()["created_at"]
    assert again == await read(client, again["id"])
    assert len(await list_all(client)) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"queue": "default", "priority": 0, "max_attempts": 10, "payload": None, "metadata": {}}),
        ({}, {"backoff": {}, "max_runtime_seconds": None, "run_at": None, "parent": None}),
        (
            {},
            {
                "backoff": {
                    "type": "exponential",
                    "base_seconds": 5.0,
                    "factor": 2,
                    "max_seconds": 3600,
                    "jitter": 0.1,
                }
            },
        ),
        ({"delay_seconds": 60}, {"delay_seconds": 60.0}),
        ({"run_at": "2099-01-01T12:00:00Z"}, {"run_at": "2099-01-01T13:00:00+01:00"}),
        ({"metadata": {"a": "1", "b": "2"}}, {"metadata": {"b": "2", "a": "1"}}),
        ({"payload": {"a": 1, "b": [2]}}, {"payload": {"b": [2], "a": 1}}),
    ],
    ids=lambda members: str(members)[:60],
)
async def test_requests_of_one_meaning_are_one(
    client: httpx.AsyncClient, first: dict[str, Any], second: dict[str, Any]
) -> None:
    created = await submit_with_key(client, KEY, **first)
    assert created.status_code == 201
    replayed(await submit_with_key(client, KEY, **second), created.json()["id"])


async def test_white_space_and_escapes_of_a_payload_do_not_count_but_the_last_of_doubled_names_does(
    client: httpx.AsyncClient,
) -> None:
    async def send(payload: str) -> httpx.Response:
        text = f'{{"kind":"w","payload":{payload}}}'
        return await client.post("/v1/jobs", content=text.encode(), headers=JSON_WITH_KEY)

    created = await send('{"a":1,"b":"é"}')
    job_id = created.json()["id"]
    for same in ('{ "b" : "\\u00e9",\n"a":1 }', '{"a":2,"a":1,"b":"é"}'):
        replayed(await send(same), job_id)
    for other in ('{"a":1,"a":2,"b":"é"}', '{"a":1.0,"b":"é"}', '{"a":1e0,"b":"é"}', '{"a":1,"b":"e"}'):
        refused(await send(other), 422, "idempotency_key_reused")


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"n": 2}},
        {"payload": {"n": "1"}},
        {"payload": {"n": True}},
        {"payload": {"n": 1.0}},
        {"payload": {}},
        {"payload": None},
        {"kind": "other"},
        {"queue": "other"},
        {"priority": 1},
        {"max_attempts": 3},
        {"run_at": "2099-01-01T00:00:00Z"},
        {"delay_seconds": 1},
        {"delay_seconds": 0},
        {"backoff": {"type": "fixed"}},
        {"max_runtime_seconds": 5},
        {"progress_timeout_seconds": 5},
        {"metadata": {"a": "b"}},
    ],
    ids=str,
)
async def test_another_request_with_the_key_is_refused_and_names_the_job(
    client: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    created = await submit_with_key(client, KEY, payload={"n": 1})
    problem = refused(
        await submit_with_key(client, KEY, **{"payload": {"n": 1}} | change), 422, "idempotency_key_reused"
    )
    assert problem["job_id"] == created.json()["id"]
    assert await list_all(client, include="payload,result") == [created.json()]


async def test_trace_headers_do_not_count(client: httpx.AsyncClient) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    created = await client.post("/v1/jobs", json={"kind": "work"}, headers=trace | {"Idempotency-Key": KEY})
    replayed(await submit_with_key(client, KEY), created.json()["id"])


async def test_quoted_key_is_the_bare_key(client: httpx.AsyncClient) -> None:
    created = await submit_with_key(client, "a b-1")
    replayed(await submit_with_key(client, '"a b-1"'), created.json()["id"])
    with_quote = await submit_with_key(client, '"a\\"b\\\\c"')
    assert with_quote.json()["idempotency_key"] == 'a"b\\c'


@pytest.mark.parametrize(
    "key", ["", "   ", '""', '"  "', '"open', '"a"b"', '"a\\x"', "x" * 256, '"' + "x" * 256 + '"']
)
async def test_malformed_key_is_422(client: httpx.AsyncClient, key: str) -> None:
    invalid(await submit_with_key(client, key), "Idempotency-Key")
    assert await list_all(client) == []


async def test_key_of_255_characters_and_one_more(client: httpx.AsyncClient) -> None:
    created = await submit_with_key(client, "k" * 255)
    assert created.status_code == 201
    replayed(await submit_with_key(client, f'"{"k" * 255}"'), created.json()["id"])
    batch = {"jobs": [{"kind": "work", "idempotency_key": "k" * 256}]}
    invalid(await client.post("/v1/jobs/batch", json=batch), "/jobs/0/idempotency_key")
    for key in ("", "  ", "é", "a\n", "\t", 5, ["a"]):
        item: Json = {"kind": "work", "idempotency_key": key}
        answer = await client.post("/v1/jobs/batch", json={"jobs": [item]})
        invalid(answer, "/jobs/0/idempotency_key")


async def test_key_on_any_other_route_is_422(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    headers = {"Idempotency-Key": KEY}
    token = {"lease_version": 1}
    before = await read(client, leased["id"])
    calls: list[tuple[str, str, Json | None]] = [
        ("GET", "/v1/jobs", None),
        ("GET", path, None),
        ("GET", f"{path}/attempts", None),
        ("PATCH", path, {}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"kind": "w"}]}),
        ("POST", f"{path}/cancel", {}),
        ("POST", f"{path}/redrive", {}),
        ("POST", f"{path}/heartbeat", token),
        ("POST", f"{path}/complete", token),
        ("POST", f"{path}/fail", token | {"error": {"message": "m"}}),
        ("POST", f"{path}/release", token),
        ("POST", f"{path}/verify", token),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["q"]}),
        ("GET", "/v1/leases?worker_id=w1", None),
        ("POST", "/v1/leases/complete", {"items": []}),
    ]
    for method, address, body in calls:
        invalid(await client.request(method, address, json=body, headers=headers), "Idempotency-Key")
    assert await list_all(client, include="payload,result") == [before]


async def test_single_and_batch_calls_share_one_namespace(client: httpx.AsyncClient) -> None:
    created = await submit_with_key(client, KEY, payload=1)
    item = {"kind": "work", "payload": 1, "idempotency_key": KEY}
    batch = await client.post("/v1/jobs/batch", json={"jobs": [item, item | {"idempotency_key": "b"}]})
    assert batch.status_code == 201
    known, new = batch.json()["jobs"]
    assert (known["created"], known["job"]["id"]) == (False, created.json()["id"])
    assert new["created"] is True
    replayed(await submit_with_key(client, "b", payload=1), new["job"]["id"])


async def test_refused_request_never_consumes_its_key(client: httpx.AsyncClient) -> None:
    big = {"kind": "work", "payload": "x" * 262_144}
    headers = {"Idempotency-Key": KEY}
    invalid(await submit_with_key(client, KEY, priority=1.5))
    assert (await client.post("/v1/jobs", json=big, headers=headers)).status_code == 413
    assert (await client.post("/v1/jobs", content=b"{", headers=JSON_WITH_KEY)).status_code == 400
    assert (await client.post("/v1/jobs", content=b"{}", headers=headers)).status_code == 415
    parent = {"job_id": "0193a3f0-5c00-7000-8000-000000000000", "lease_version": 1}
    lost(await submit_with_key(client, KEY, parent=parent), "unknown")
    item = {"kind": "work", "idempotency_key": KEY}
    batch = {"jobs": [item, {"kind": "work", "parent": parent}]}
    lost(await client.post("/v1/jobs/batch", json=batch), "unknown")
    created = await submit_with_key(client, KEY)
    assert created.status_code == 201
    replayed(await submit_with_key(client, KEY), created.json()["id"])


async def test_keys_differ_by_case(client: httpx.AsyncClient) -> None:
    assert (await submit_with_key(client, "abc")).status_code == 201
    assert (await submit_with_key(client, "ABC")).status_code == 201


async def test_concurrent_twins_are_one_job(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(submit_with_key(client, KEY, payload=[1]) for _ in range(30)))
    assert sorted(answer.status_code for answer in answers) == [200] * 29 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert {answer.headers.get("idempotent-replayed") for answer in answers} == {None, "true"}


async def test_concurrent_rivals_with_one_key_make_one_job(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(submit_with_key(client, KEY, payload=n) for n in range(10)))
    assert sorted(answer.status_code for answer in answers) == [201] + [422] * 9
    assert len(await list_all(client)) == 1


@quick_reaper
async def test_second_run_of_a_handler_asks_again_under_its_new_version(
    client: httpx.AsyncClient, context: Context
) -> None:
    first = await run_job(client, lease_seconds=60)
    parent = {"job_id": first["id"], "lease_version": first["lease_version"]}
    child = await submit_with_key(client, KEY, queue="children", parent=parent)
    assert child.status_code == 201
    await elapse(context, 61)
    (second,) = await lease(client, wait_seconds=20)
    newer = parent | {"lease_version": second["lease_version"]}
    assert second["lease_version"] > first["lease_version"]
    job = replayed(await submit_with_key(client, KEY, queue="children", parent=newer), child.json()["id"])
    assert job["parent"] == parent


async def test_known_key_is_answered_before_the_parents_lease_is_looked_at(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    parent = {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    child = await submit_with_key(client, KEY, queue="children", parent=parent)
    await tell_ok(client, "complete", leased)
    replayed(await submit_with_key(client, KEY, queue="children", parent=parent), child.json()["id"])
    lost(await submit_with_key(client, "another", queue="children", parent=parent), "finished")
    problem = await submit_with_key(client, KEY, queue="children", parent=parent, priority=1)
    refused(problem, 422, "idempotency_key_reused")
    item = {"kind": "work", "queue": "children", "parent": parent, "idempotency_key": KEY}
    batch = await client.post("/v1/jobs/batch", json={"jobs": [item]})
    assert [entry["created"] for entry in batch.json()["jobs"]] == [False]


async def test_another_parent_is_another_request(client: httpx.AsyncClient) -> None:
    one, two = await run_job(client, queue="one"), await run_job(client, queue="two")
    await submit_with_key(client, KEY, parent={"job_id": one["id"], "lease_version": 1})
    other = await submit_with_key(client, KEY, parent={"job_id": two["id"], "lease_version": 1})
    refused(other, 422, "idempotency_key_reused")
    refused(await submit_with_key(client, KEY), 422, "idempotency_key_reused")


@pytest.mark.parametrize("settings", [Settings(idempotency_ttl_seconds=600)], ids=["ttl"])
async def test_key_is_free_again_some_time_after_the_finish_but_not_before(
    client: httpx.AsyncClient, context: Context
) -> None:
    created = (await submit_with_key(client, KEY, delay_seconds=0)).json()
    (leased,) = await lease(client, lease_seconds=3600)
    await elapse(context, 601)
    replayed(await submit_with_key(client, KEY, delay_seconds=0), created["id"])
    await tell_ok(client, "complete", leased)
    replayed(await submit_with_key(client, KEY, delay_seconds=0), created["id"])
    await elapse_since_finish(context, 601)
    again = await submit_with_key(client, KEY, priority=9)
    assert again.status_code == 201
    assert again.json()["id"] != created["id"]
    assert (await read(client, created["id"]))["state"] == "succeeded"


@pytest.mark.parametrize(
    "settings", [Settings(retention_seconds=1, dead_retention_seconds=86_400)], ids=["short_retention"]
)
async def test_key_ends_with_the_retention_of_its_job(client: httpx.AsyncClient) -> None:
    created = (await submit_with_key(client, KEY)).json()
    dead = (await submit_with_key(client, "dead", queue="dead", max_attempts=1)).json()
    (leased,) = await lease(client)
    (doomed,) = await lease(client, queue="dead")
    await tell_ok(client, "complete", leased)
    await tell_ok(client, "fail", doomed, error={"message": "m"})

    async def is_gone() -> bool:
        return (await client.get(f"/v1/jobs/{created['id']}")).status_code == 404

    await eventually(is_gone)
    again = await submit_with_key(client, KEY)
    assert again.status_code == 201
    assert again.json()["id"] != created["id"]
    replayed(await submit_with_key(client, "dead", queue="dead", max_attempts=1), dead["id"])
    await state_becomes(client, dead["id"], "dead")


async def test_key_is_kept_through_a_redrive(client: httpx.AsyncClient) -> None:
    created = (await submit_with_key(client, KEY)).json()
    await client.post(f"/v1/jobs/{created['id']}/cancel")
    await client.post(f"/v1/jobs/{created['id']}/redrive")
    assert replayed(await submit_with_key(client, KEY), created["id"])["state"] == "ready"


async def test_key_with_a_body_sent_as_text_is_the_same_request(client: httpx.AsyncClient) -> None:
    created = await submit_with_key(client, KEY, payload=[1, 2])
    text = '{ "payload" : [1,2], "kind" : "work" }'
    answer = await client.post("/v1/jobs", content=text.encode(), headers=JSON_WITH_KEY)
    replayed(answer, created.json()["id"])
    refused(await post_text(client, "/v1/jobs/batch", "["), 400, "malformed_json")
