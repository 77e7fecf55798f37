"""``complete`` in a lease call: one round trip ends what a worker has done and brings it the next jobs."""

import asyncio
from typing import Any

import httpx
import pytest

from app.domain.errors import Unavailable
from app.domain.job import Token
from app.operations.polls import Polls
from app.settings import Settings
from app.store import endings
from app.store.engine import Database
from tests.support.api import (
    UNKNOWN_ID,
    Json,
    invalid,
    lease,
    list_all,
    read,
    read_attempts,
    refused,
    run_job,
    state_becomes,
    submit,
    tell_ok,
)
from tests.support.rivals import Pauses


def done(leased: Json, **members: object) -> Json:
    return {"job_id": leased["id"], "lease_version": leased["lease_version"]} | members


async def call(client: httpx.AsyncClient, *items: Json, **members: object) -> Json:
    """Complete items and lease, in one call; return the answer."""
    body = {"worker_id": "w1", "queues": ["default"], "complete": list(items)} | members
    response = await client.post("/v1/leases", json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def leased_jobs(client: httpx.AsyncClient, count: int) -> list[Json]:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * count})
    return await lease(client, max_jobs=count)


async def test_jobs_are_completed_and_others_leased_in_one_call(client: httpx.AsyncClient) -> None:
    one, two = await leased_jobs(client, 2)
    waiting = await submit(client)
    answer = await call(client, done(two, result=[1.0]), done(one))
    assert answer["completed"] == [
        {"job_id": two["id"], "status": "ok", "state": "succeeded"},
        {"job_id": one["id"], "status": "ok", "state": "succeeded"},
    ]
    assert [job["id"] for job in answer["jobs"]] == [waiting["id"]]
    assert (await read(client, two["id"]))["result"] == [1.0]


async def test_a_call_that_completes_nothing_has_no_word_of_it(client: httpx.AsyncClient) -> None:
    asked = {"worker_id": "w1", "queues": ["default"]}
    for body in (asked, asked | {"complete": None}):
        assert (await client.post("/v1/leases", json=body)).json().keys() == {"jobs", "server_time"}
    assert (await call(client))["completed"] == []


async def test_completions_count_although_there_is_nothing_to_lease(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    answer = await call(client, done(leased))
    assert (answer["jobs"], answer["completed"][0]["status"]) == ([], "ok")


async def test_completions_are_committed_while_the_call_waits_for_jobs(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    waiting = asyncio.create_task(call(client, done(leased), wait_seconds=20))
    await state_becomes(client, leased["id"], "succeeded")
    assert not waiting.done()
    job = await submit(client)
    answer = await waiting
    assert [each["id"] for each in answer["jobs"]] == [job["id"]]
    assert [each["status"] for each in answer["completed"]] == ["ok"]


async def test_a_follow_up_of_a_completion_is_leased_by_the_same_call(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    trace = {"traceparent": "00-1-2-01"}
    body = {"worker_id": "w1", "queues": ["default"], "complete": [done(leased, enqueue=[{"kind": "next"}])]}
    [follow_up] = (await client.post("/v1/leases", json=body, headers=trace)).json()["jobs"]
    assert follow_up["kind"] == "next"
    assert follow_up["parent"] == {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    assert follow_up["traceparent"] == "00-1-2-01"


async def test_an_item_that_is_lost_is_told_so_and_touches_nothing_else(client: httpx.AsyncClient) -> None:
    one, two = await leased_jobs(client, 2)
    waiting = await submit(client)
    answer = await call(
        client,
        done(one | {"lease_version": 9}, enqueue=[{"kind": "never"}]),
        done({"id": UNKNOWN_ID, "lease_version": 1}),
        done(two),
    )
    assert [each["status"] for each in answer["completed"]] == ["lease_lost", "not_found", "ok"]
    lost = answer["completed"][0]
    assert (lost["code"], lost["presented_version"], lost["current_version"]) == ("lease_lost", 9, 1)
    assert [job["id"] for job in answer["jobs"]] == [waiting["id"]]
    assert (await read(client, one["id"]))["state"] == "running"
    assert len(await list_all(client)) == 3


async def test_a_repeat_of_a_call_whose_answer_was_lost_is_replayed(client: httpx.AsyncClient) -> None:
    one, two = await leased_jobs(client, 2)
    await call(client, done(one, result=1), done(two))
    again = await call(client, done(one, result=1), done(two, result="another"))
    assert [each["status"] for each in again["completed"]] == ["replayed", "lease_lost"]
    assert again["completed"][1]["reason"] == "finished"
    assert len(await read_attempts(client, one["id"])) == 1


async def test_a_repeat_with_a_request_id_gives_the_same_jobs(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 5})
    asked: Json = {"request_id": "r", "max_jobs": 2}
    first = await call(client, done(leased, result={"a": 1, "b": 2}), **asked)
    again = await call(client, done(leased, result={"b": 2, "a": 1}), **asked)
    assert [each["status"] for each in first["completed"] + again["completed"]] == ["ok", "replayed"]
    assert len(first["jobs"]) == 2
    assert again["jobs"] == first["jobs"]


async def test_a_request_id_with_other_completions_is_refused_and_completes_nothing(
    client: httpx.AsyncClient,
) -> None:
    one, two, three = await leased_jobs(client, 3)
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 5})
    body: Json = {"worker_id": "w1", "queues": ["default"], "request_id": "r"}
    assert len((await call(client, done(one), request_id="r"))["jobs"]) == 1
    others: list[Any] = [
        [done(one, result=1)],
        [done(one), done(two)],
        [done(two)],
        [done(one | {"lease_version": 7})],
        [],
        None,
    ]
    for items in others:
        invalid(await client.post("/v1/leases", json=body | {"complete": items}), "request_id")
    for leased in (two, three):
        assert (await read(client, leased["id"]))["state"] == "running"


async def test_a_request_id_of_a_call_that_still_waits_is_refused_before_anything_is_completed(
    client: httpx.AsyncClient,
) -> None:
    one, two = await leased_jobs(client, 2)
    twins = [asyncio.create_task(call(client, done(one), request_id="r", wait_seconds=20)) for _ in range(2)]
    # One takes the place of the other, and so is known to wait.
    _, (waiting,) = await asyncio.wait(twins, return_when=asyncio.FIRST_COMPLETED)
    body: Json = {"worker_id": "w1", "queues": ["none"], "request_id": "r"}
    invalid(await client.post("/v1/leases", json=body), "request_id")
    invalid(await client.post("/v1/leases", json=body | {"complete": [done(two)]}), "request_id")
    assert (await read(client, two["id"]))["state"] == "running"
    await submit(client)
    assert len((await waiting)["jobs"]) == 1


async def test_a_malformed_item_refuses_the_whole_call(client: httpx.AsyncClient) -> None:
    one, two = await leased_jobs(client, 2)
    await submit(client)
    body: Json = {"worker_id": "w1", "queues": ["default"]}
    for bad, pointer in [
        (done(two | {"lease_version": "1"}), "/complete/1/lease_version"),
        ({"lease_version": 1}, "/complete/1/job_id"),
        (done(two | {"id": two["id"].upper()}), "/complete/1/job_id"),
        (done(two, unknown=1), "/complete/1/unknown"),
        (done(two, enqueue=[{"kind": ""}]), "/complete/1/enqueue/0/kind"),
        (5, "/complete/1"),
    ]:
        invalid(await client.post("/v1/leases", json=body | {"complete": [done(one), bad]}), pointer)
    invalid(await client.post("/v1/leases", json=body | {"complete": {}}), "/complete")
    invalid(await client.post("/v1/leases", json=body | {"complete": [done(one)], "max_jobs": 0}))
    assert (await read(client, one["id"]))["state"] == "running"
    assert len(await lease(client, max_jobs=9)) == 1


async def test_names_recur_from_item_to_item_and_nowhere_else(client: httpx.AsyncClient) -> None:
    one, two = await leased_jobs(client, 2)
    tokens = [f'"job_id":"{each["id"]}","lease_version":{each["lease_version"]}' for each in (one, two)]
    asked = '"worker_id":"w1","queues":["default"]'
    for text in (
        f'{{{asked},"complete":[{{{tokens[0]}}}],"complete":[{{{tokens[0]}}}]}}',
        f'{{"queues":["other"],{asked},"complete":[{{{tokens[0]}}},{{{tokens[1]}}}]}}',
        f'{{{asked},"complete":[{{{tokens[0]}}},{{{tokens[1]},{tokens[1]}}}]}}',
    ):
        response = await client.post("/v1/leases", content=text, headers={"Content-Type": "application/json"})
        assert "stands twice" in str(invalid(response))
    text = f'{{"complete":[{{{tokens[0]}}},{{{tokens[1]},"result":{{"a":1,"a":2}}}}],{asked}}}'
    response = await client.post("/v1/leases", content=text, headers={"Content-Type": "application/json"})
    assert [each["status"] for each in response.json()["completed"]] == ["ok", "ok"]
    assert '"result":{"a":1,"a":2}' in (await client.get(f"/v1/jobs/{two['id']}")).text


@pytest.mark.parametrize(
    "settings", [Settings(max_batch_items=2, max_body_bytes=1000, max_batch_body_bytes=5000)]
)
async def test_limits_are_those_of_a_call_for_many(client: httpx.AsyncClient) -> None:
    jobs = await leased_jobs(client, 2)
    body: Json = {"worker_id": "w1", "queues": ["default"]}
    three = [done(job) for job in (*jobs, jobs[0])]
    problem = refused(await client.post("/v1/leases", json=body | {"complete": three}), 413, "too_large")
    assert problem["pointer"] == "/complete"
    over = [done(jobs[0], result="x" * 5000)]
    refused(await client.post("/v1/leases", json=body | {"complete": over}), 413, "too_large")
    answer = await call(client, *(done(job, result="x" * 1000) for job in jobs))
    assert [each["status"] for each in answer["completed"]] == ["ok", "ok"]


async def test_a_thousand_are_completed_by_the_call_that_leases_a_thousand(client: httpx.AsyncClient) -> None:
    jobs = await leased_jobs(client, 1000)
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 1000})
    answer = await call(client, *(done(job, result=job["id"]) for job in jobs), max_jobs=1000)
    assert [each["job_id"] for each in answer["completed"]] == [job["id"] for job in jobs]
    assert {each["status"] for each in answer["completed"]} == {"ok"}
    assert len(answer["jobs"]) == 1000


async def test_completions_of_many_calls_at_once_are_each_answered_by_their_own(
    client: httpx.AsyncClient,
) -> None:
    jobs = await leased_jobs(client, 30)
    answers = await asyncio.gather(*(call(client, *map(done, jobs[n : n + 3])) for n in range(0, 30, 3)))
    told = [[each["job_id"] for each in answer["completed"]] for answer in answers]
    assert told == [[job["id"] for job in jobs[n : n + 3]] for n in range(0, 30, 3)]


async def test_a_lock_on_one_lease_does_not_hold_up_the_calls_of_others(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, *others = await leased_jobs(client, 4)
    async with database.begin() as conn:
        await endings.lock_leases(conn, [Token(held["id"], held["lease_version"])])
        stuck = await Pauses(monkeypatch).first_of(call(client, done(held)))
        for other in others:
            answer = await call(client, done(other))
            assert [each["status"] for each in answer["completed"]] == ["ok"]
        assert not stuck.done()
    assert (await stuck)["completed"][0]["status"] == "ok"


async def test_completions_stand_when_no_job_can_be_leased_after_them(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased = await run_job(client)

    async def unavailable(*_: object, **__: object) -> None:
        raise Unavailable("The database does not answer.")

    body: Json = {"worker_id": "w1", "queues": ["default"], "complete": [done(leased)]}
    with monkeypatch.context() as patch:
        patch.setattr(Polls, "lease", unavailable)
        refused(await client.post("/v1/leases", json=body), 503, "unavailable")
    assert (await read(client, leased["id"]))["state"] == "succeeded"
    assert (await call(client, done(leased)))["completed"][0]["status"] == "replayed"


async def test_completions_count_while_the_service_drains(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased = await run_job(client)
    await submit(client)
    lease_now = Polls.lease

    async def drain_first(self: Polls, *args: Any, **kwargs: Any) -> Any:
        self.drain()
        return await lease_now(self, *args, **kwargs)

    monkeypatch.setattr(Polls, "lease", drain_first)
    body: Json = {"worker_id": "w1", "queues": ["default"], "wait_seconds": 20, "complete": [done(leased)]}
    response = await client.post("/v1/leases", json=body)
    assert response.headers["Retry-After"] == "1"
    assert response.json()["jobs"] == []
    assert response.json()["completed"][0]["status"] == "ok"
    assert (await tell_ok(client, "complete", leased))["state"] == "succeeded"
