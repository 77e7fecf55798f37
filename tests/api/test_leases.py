"""POST and GET /v1/leases: what a worker is handed, in which order, and repeating a call."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx

from tests.support.api import (
    Json,
    eventually,
    invalid,
    lease,
    quick_reaper,
    read,
    run_job,
    state_becomes,
    submit,
    tell_ok,
)
from tests.support.stopwatch import until_quick


async def call(client: httpx.AsyncClient, **members: object) -> Json:
    body = {"worker_id": "w1", "queues": ["default"]} | members
    response = await client.post("/v1/leases", json=body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def test_leased_job_has_every_member(client: httpx.AsyncClient) -> None:
    job = await submit(client, payload=[1], metadata={"a": "b"}, priority=3, max_runtime_seconds=10)
    answer = await call(client, lease_seconds=30.5)
    assert answer["server_time"].endswith("Z")
    (leased,) = answer["jobs"]
    expires_at, deadline_at = (
        datetime.fromisoformat(leased[name]) for name in ("lease_expires_at", "deadline_at")
    )
    assert expires_at == deadline_at
    expected = {
        "id": job["id"],
        "queue": "default",
        "kind": "work",
        "payload": [1],
        "metadata": {"a": "b"},
        "priority": 3,
        "attempt": 1,
        "max_attempts": 10,
        "lease_version": 1,
        "lease_expires_at": leased["lease_expires_at"],
        "lease_seconds": 30.5,
        "deadline_at": leased["deadline_at"],
        "checkpoint": None,
        "previous": None,
        "created_at": job["created_at"],
        "run_at": job["run_at"],
        "traceparent": None,
        "parent": None,
    }
    assert {name: leased[name] for name in expected} == expected


async def test_lease_lasts_lease_seconds_from_the_grant(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=30)
    lease_view = (await read(client, leased["id"]))["lease"]
    granted_at = datetime.fromisoformat(lease_view["granted_at"])
    assert datetime.fromisoformat(leased["lease_expires_at"]) - granted_at == timedelta(seconds=30)
    assert leased["deadline_at"] is None


async def test_server_time_is_the_databases(client: httpx.AsyncClient) -> None:
    job = await submit(client, queue="other")
    answer = await call(client)
    difference = datetime.fromisoformat(answer["server_time"]) - datetime.fromisoformat(job["created_at"])
    assert abs(difference) < timedelta(minutes=1)


async def test_nothing_to_do_is_an_empty_list_at_once(client: httpx.AsyncClient) -> None:
    for watch in until_quick(seconds=1):
        with watch:
            assert (await call(client))["jobs"] == []


async def test_wait_ends_empty_after_its_time(client: httpx.AsyncClient) -> None:
    for watch in until_quick(seconds=1.5):
        with watch:
            assert (await call(client, wait_seconds=0.5))["jobs"] == []
        assert watch.seconds >= 0.5


async def test_parked_poll_is_woken_by_new_work(client: httpx.AsyncClient) -> None:
    # Without the wake-up it would look by itself after some seconds.
    for watch in until_quick(seconds=1):
        poll = asyncio.create_task(call(client, wait_seconds=20, queues=["a", "b"]))
        await asyncio.sleep(0.1)
        with watch:
            job = await submit(client, queue="b")
            assert [each["id"] for each in (await poll)["jobs"]] == [job["id"]]


async def test_max_jobs_is_an_upper_bound_that_is_not_waited_for(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 5})
    assert len((await call(client, max_jobs=3, wait_seconds=20))["jobs"]) == 3
    async with asyncio.timeout(15):
        assert len((await call(client, max_jobs=1000, wait_seconds=20))["jobs"]) == 2


async def test_order_is_priority_then_due_time_then_creation_over_all_queues(
    client: httpx.AsyncClient,
) -> None:
    late = await submit(client, queue="a", priority=0, run_at="2020-01-02T00:00:00Z")
    early = await submit(client, queue="b", priority=0, run_at="2020-01-01T00:00:00Z")
    urgent = await submit(client, queue="b", priority=-1)
    twin_one = await submit(client, queue="b", run_at="2020-01-03T00:00:00Z")
    twin_two = await submit(client, queue="a", run_at="2020-01-03T00:00:00Z")
    last = await submit(client, queue="a", priority=1, run_at="2019-01-01T00:00:00Z")
    order = [job["id"] for job in (urgent, early, late, twin_one, twin_two, last)]
    first = (await call(client, queues=["a", "b"], max_jobs=2))["jobs"]
    rest = (await call(client, queues=["b", "a"], max_jobs=100))["jobs"]
    assert [job["id"] for job in first + rest] == order


async def test_queues_are_1_to_32(client: httpx.AsyncClient) -> None:
    for queues in ([], [f"q{n}" for n in range(33)], "default", None, [1]):
        response = await client.post("/v1/leases", json={"worker_id": "w", "queues": queues})
        invalid(response, "/queues")
    await submit(client, queue="q31")
    assert len((await call(client, queues=[f"q{n}" for n in range(32)]))["jobs"]) == 1
    for missing in ({"queues": ["q"]}, {"worker_id": "w"}):
        invalid(await client.post("/v1/leases", json=missing))


async def test_queue_named_twice_gives_no_job_twice(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 3})
    jobs = (await call(client, queues=["default", "default"], max_jobs=3))["jobs"]
    assert len({job["id"] for job in jobs}) == len(jobs) == 3


async def test_no_job_is_granted_twice_to_rivals(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 60})
    answers = await asyncio.gather(*(call(client, worker_id=f"w{n}", max_jobs=4) for n in range(20)))
    ids = [job["id"] for answer in answers for job in answer["jobs"]]
    assert len(ids) == len(set(ids)) == 60


async def test_worker_sees_what_it_holds(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, max_runtime_seconds=100)
    assert (await client.get("/v1/leases", params={"worker_id": "other"})).json() == {"leases": []}
    (held,) = (await client.get("/v1/leases", params={"worker_id": "w1"})).json()["leases"]
    assert held["job_id"] == leased["id"]
    assert held["lease_version"] == 1
    assert held["expires_at"] == leased["lease_expires_at"]
    await tell_ok(client, "complete", leased)
    assert (await client.get("/v1/leases", params={"worker_id": "w1"})).json() == {"leases": []}
    invalid(await client.get("/v1/leases"), "worker_id")


async def test_repeat_with_a_request_id_gives_the_same_grants(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w", "payload": n} for n in range(5)]})
    asked = {"request_id": "r-1", "max_jobs": 3}
    first = (await call(client, **asked))["jobs"]
    assert len(first) == 3
    assert (await call(client, **asked))["jobs"] == first
    assert (await call(client, **asked, queues=["default", "default"]))["jobs"] == first


async def test_repeat_leaves_out_what_was_touched_and_leases_nothing_new(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 8})
    asked = {"request_id": "r-1", "max_jobs": 4}
    beaten, done, released, left = (await call(client, **asked))["jobs"]
    await tell_ok(client, "heartbeat", beaten)
    await tell_ok(client, "complete", done)
    await tell_ok(client, "release", released)
    assert (await call(client, **asked))["jobs"] == [left]
    await tell_ok(client, "heartbeat", left)
    assert (await call(client, **asked, wait_seconds=0))["jobs"] == []
    assert (await read(client, left["id"]))["lease_version"] == 1


async def test_request_id_with_another_body_is_422(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 3})
    (granted,) = (await call(client, request_id="r"))["jobs"]
    body = {"worker_id": "w1", "queues": ["default"], "request_id": "r"}
    for change in ({"max_jobs": 2}, {"lease_seconds": 61}, {"queues": ["other"]}, {"wait_seconds": 1}):
        invalid(await client.post("/v1/leases", json=body | change), "request_id")
    assert (await call(client, request_id="r"))["jobs"] == [granted]


async def test_request_id_belongs_to_its_worker(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 2})
    (one,) = (await call(client, request_id="r", worker_id="a"))["jobs"]
    (two,) = (await call(client, request_id="r", worker_id="b"))["jobs"]
    assert one["id"] != two["id"]


async def test_empty_answer_is_not_remembered(client: httpx.AsyncClient) -> None:
    assert (await call(client, request_id="r"))["jobs"] == []
    job = await submit(client)
    assert [each["id"] for each in (await call(client, request_id="r", max_jobs=2))["jobs"]] == [job["id"]]


async def waiting_call(client: httpx.AsyncClient, **asked: Any) -> asyncio.Task[Json]:
    """Make a call with a request_id; return when it is known to wait: it has taken the place of a twin."""
    twins = [asyncio.create_task(call(client, **asked)) for _ in range(2)]
    _, waiting = await asyncio.wait(twins, return_when=asyncio.FIRST_COMPLETED)
    return waiting.pop()


async def test_repeat_of_a_parked_call_takes_its_place(client: httpx.AsyncClient) -> None:
    earlier = await waiting_call(client, request_id="r", wait_seconds=30)
    later = asyncio.create_task(call(client, request_id="r", wait_seconds=30))
    assert (await asyncio.wait_for(earlier, 20))["jobs"] == []
    job = await submit(client)
    assert [each["id"] for each in (await asyncio.wait_for(later, 20))["jobs"]] == [job["id"]]


async def test_parked_call_refuses_its_request_id_to_another_body(client: httpx.AsyncClient) -> None:
    earlier = await waiting_call(client, request_id="r", wait_seconds=20)
    body = {"worker_id": "w1", "queues": ["default"], "request_id": "r"}
    invalid(await client.post("/v1/leases", json=body), "request_id")
    await submit(client)
    assert len((await earlier)["jobs"]) == 1


async def test_concurrent_repeats_share_one_grant(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 10})
    answers = await asyncio.gather(*(call(client, request_id="r", max_jobs=2) for _ in range(8)))
    granted = {job["id"] for answer in answers for job in answer["jobs"]}
    assert len(granted) == 2
    assert len((await client.get("/v1/jobs", params={"state": "running"})).json()["jobs"]) == 2


@quick_reaper
async def test_request_id_is_free_again_when_its_lease_is_over(client: httpx.AsyncClient) -> None:
    first = await run_job(client, queue="other", lease_seconds=60)
    await submit(client)
    (granted,) = (await call(client, request_id="r", lease_seconds=1))["jobs"]
    await state_becomes(client, granted["id"], "ready")

    async def is_granted_anew() -> list[Json] | None:
        jobs: list[Json] = (await call(client, request_id="r", lease_seconds=1))["jobs"]
        return jobs or None

    (again,) = await eventually(is_granted_anew)
    assert (again["id"], again["lease_version"]) == (granted["id"], 2)
    assert first["id"] != again["id"]


async def test_request_id_is_1_to_64_characters(client: httpx.AsyncClient) -> None:
    body = {"worker_id": "w", "queues": ["q"]}
    for request_id in ("", "x" * 65, 5, True, ["r"], "a\u0000"):
        answer = await client.post("/v1/leases", json=body | {"request_id": request_id})
        invalid(answer, "/request_id")
    assert (await client.post("/v1/leases", json=body | {"request_id": "é" * 64})).status_code == 200


async def test_previous_tells_how_the_last_attempt_ended_releases_included(client: httpx.AsyncClient) -> None:
    job = await submit(client, backoff={"base_seconds": 0})
    (first,) = await lease(client)
    assert first["previous"] is None
    error = {"type": "T", "message": "m", "details": {"n": 1.0}}
    await tell_ok(client, "fail", first, error=error)
    (second,) = await lease(client)
    assert second["previous"] == {"attempt": 1, "outcome": "failed", "error": error}
    await tell_ok(client, "release", second, reason="shutting down")
    (third,) = await lease(client)
    assert (third["previous"]["attempt"], third["previous"]["outcome"]) == (2, "released")
    assert third["previous"]["error"]["message"] == "shutting down"
    assert third["attempt"] == 2
    await tell_ok(client, "release", third)
    (fourth,) = await lease(client)
    assert fourth["previous"] == {"attempt": 2, "outcome": "released", "error": None}
    assert (await read(client, job["id"]))["error"] == error
