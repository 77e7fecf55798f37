"""Heartbeat, complete, fail, release and verify: what a holder may say, and saying it again."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from app.operations.context import Context
from tests.support.api import (
    UNKNOWN_ID,
    invalid,
    lease,
    list_all,
    lost,
    no_reaper,
    quick_reaper,
    read,
    read_attempts,
    refused,
    run_job,
    state_becomes,
    submit,
    tell,
    tell_ok,
)
from tests.support.factory import elapse

SETTLING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("complete", {"result": {"a": 1, "b": 2}}, {"result": {"a": 1}}),
    ("fail", {"error": {"message": "m", "details": {"x": 1}}}, {"error": {"message": "other"}}),
    ("release", {"reason": "r", "delay_seconds": 5}, {"reason": "r"}),
]
settling = pytest.mark.parametrize(
    ("verb", "members", "other"), SETTLING, ids=["complete", "fail", "release"]
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_heartbeat_extends_by_the_leases_own_length(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=30)
    beat = await tell_ok(client, "heartbeat", leased)
    assert beat.keys() == {"lease_expires_at", "deadline_at", "cancel_requested"}
    assert (beat["deadline_at"], beat["cancel_requested"]) == (None, False)
    assert (
        timedelta(0) < at(beat["lease_expires_at"]) - at(leased["lease_expires_at"]) < timedelta(seconds=20)
    )
    job = await read(client, leased["id"])
    assert job["lease"]["expires_at"] == beat["lease_expires_at"]
    assert job["lease_version"] == leased["lease_version"]


async def test_heartbeat_extends_by_what_it_asks_for_longer_or_shorter(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=60)
    longer = await tell_ok(client, "heartbeat", leased, extend_seconds=3600)
    assert at(longer["lease_expires_at"]) - at(leased["lease_expires_at"]) > timedelta(seconds=3500)
    shorter = await tell_ok(client, "heartbeat", leased, extend_seconds=10)
    assert at(shorter["lease_expires_at"]) < at(leased["lease_expires_at"])
    own = await tell_ok(client, "heartbeat", leased)
    assert at(own["lease_expires_at"]) - at(shorter["lease_expires_at"]) > timedelta(seconds=45)


async def test_heartbeat_never_passes_the_deadline(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=10, max_runtime_seconds=20)
    beat = await tell_ok(client, "heartbeat", leased, extend_seconds=3600)
    assert beat["lease_expires_at"] == beat["deadline_at"] == leased["deadline_at"]


async def test_lower_progress_seq_is_ignored(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    await tell_ok(client, "heartbeat", leased, progress={"seq": 5, "percent": 50, "message": "half"})
    await tell_ok(client, "heartbeat", leased, progress={"seq": 4, "percent": 40, "message": "less"})
    await tell_ok(client, "heartbeat", leased)
    shown = (await read(client, leased["id"]))["lease"]["progress"]
    assert shown == {"seq": 5, "percent": 50, "message": "half"}
    await tell_ok(client, "heartbeat", leased, progress={"seq": 6})
    shown = (await read(client, leased["id"]))["lease"]["progress"]
    assert shown == {"seq": 6, "percent": None, "message": None}
    invalid(await tell(client, "heartbeat", leased, progress={"percent": 5}), "seq")


async def test_checkpoint_is_kept_until_the_next_one(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, backoff={"base_seconds": 0})
    await tell_ok(client, "heartbeat", leased, checkpoint={"row": 10})
    await tell_ok(client, "heartbeat", leased)
    assert (await read(client, leased["id"]))["checkpoint"] == {"row": 10}
    await tell_ok(client, "fail", leased, error={"message": "m"})
    (again,) = await lease(client)
    assert again["checkpoint"] == {"row": 10}
    await tell_ok(client, "heartbeat", again, checkpoint=None)
    assert (await read(client, leased["id"]))["checkpoint"] is None


async def test_complete_stores_the_result(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    job = await tell_ok(client, "complete", leased, result=[1])
    assert (job["state"], job["result"], job["lease"], job["attempt"]) == ("succeeded", [1], None, 1)
    assert job["finished_at"] >= job["created_at"]
    assert job == await read(client, leased["id"])
    assert await lease(client) == []


async def test_complete_creates_its_follow_ups_with_their_parent(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    follow_ups = [{"kind": "a", "queue": "next", "payload": 1.0}, {"kind": "b", "queue": "next"}]
    await tell_ok(client, "complete", leased, enqueue=follow_ups)
    children = await list_all(client, parent_id=leased["id"])
    assert [job["kind"] for job in children] == ["b", "a"]
    for job in children:
        assert job["parent"] == {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    repeat = await tell(client, "complete", leased, enqueue=follow_ups)
    assert repeat.headers["idempotent-replayed"] == "true"
    lost(await tell(client, "complete", leased, enqueue=follow_ups[:1]), "finished")
    assert len(await list_all(client)) == 3
    assert [job["kind"] for job in await lease(client, queue="next", max_jobs=9)] == ["a", "b"]


async def test_refused_complete_creates_no_follow_ups(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    stale = leased | {"lease_version": 2}
    lost(await tell(client, "complete", stale, enqueue=[{"kind": "a"}]), "unknown")
    both = {"kind": "a", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}
    invalid(await tell(client, "complete", leased, enqueue=[{"kind": "a"}, both]), "/enqueue/1")
    own = {"kind": "a", "parent": {"job_id": leased["id"], "lease_version": 1}}
    invalid(await tell(client, "complete", leased, enqueue=[own]), "parent")
    invalid(await tell(client, "complete", leased, enqueue=[{"kind": "a", "idempotency_key": "k"}]))
    assert [job["id"] for job in await list_all(client)] == [leased["id"]]


async def test_fail_schedules_the_next_attempt_after_the_backoff(client: httpx.AsyncClient) -> None:
    for backoff, waits in [
        ({"type": "fixed", "base_seconds": 7}, [7, 7, 7]),
        ({"type": "linear", "base_seconds": 7}, [7, 14, 21]),
        ({"type": "exponential", "base_seconds": 7, "factor": 3}, [7, 21, 63]),
        ({"type": "exponential", "base_seconds": 7, "factor": 3, "max_seconds": 20}, [7, 20, 20]),
        ({"type": "exponential", "base_seconds": 0}, [0, 0, 0]),
    ]:
        job = await submit(client, backoff=backoff | {"jitter": 0})
        for wait in waits:
            (leased,) = await lease(client)
            failed = await tell_ok(client, "fail", leased, error={"message": "m"})
            ended_at = (await read_attempts(client, job["id"]))[-1]["ended_at"]
            assert at(failed["run_at"]) - at(ended_at) == timedelta(seconds=wait)
            assert failed["state"] == ("scheduled" if wait else "ready")
            await client.patch(f"/v1/jobs/{job['id']}", json={"run_at": "2020-01-01T00:00:00Z"})
        await client.post(f"/v1/jobs/{job['id']}/cancel")


async def test_retry_after_seconds_replaces_the_backoff(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, backoff={"jitter": 1})
    failed = await tell_ok(client, "fail", leased, error={"message": "m"}, retry_after_seconds=100.5)
    ended_at = (await read_attempts(client, leased["id"]))[-1]["ended_at"]
    assert at(failed["run_at"]) - at(ended_at) == timedelta(seconds=100.5)
    at_once = await run_job(client, queue="other")
    job = await tell_ok(client, "fail", at_once, error={"message": "m"}, retry_after_seconds=0)
    assert job["state"] == "ready"


async def test_fail_keeps_the_last_error(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    failed = await tell_ok(client, "fail", leased, error={"message": "m"})
    assert failed["error"] == {"type": None, "message": "m", "details": None}
    assert (failed["lease"], failed["attempt"], failed["lease_version"]) == (None, 1, 1)
    for error in ({}, {"type": "T"}, {"message": 5}, {"message": None}, "text", None):
        invalid(await tell(client, "fail", leased, error=error), "/error")
    invalid(await tell(client, "fail", leased), "/error")


async def test_fail_without_attempts_left_or_not_retryable_is_dead(client: httpx.AsyncClient) -> None:
    last = await run_job(client, queue="a", max_attempts=1)
    assert (await tell_ok(client, "fail", last, error={"message": "m"}))["state"] == "dead"
    given_up = await run_job(client, queue="b")
    dead = await tell_ok(
        client, "fail", given_up, error={"message": "m"}, retryable=False, retry_after_seconds=5
    )
    assert (dead["state"], dead["attempt"]) == ("dead", 1)
    assert dead["finished_at"] is not None


async def test_max_attempts_is_the_number_of_handler_runs(client: httpx.AsyncClient) -> None:
    job = await submit(client, max_attempts=3, backoff={"base_seconds": 0})
    numbers = []
    while jobs := await lease(client):
        numbers.append(jobs[0]["attempt"])
        await tell_ok(client, "fail", jobs[0], error={"message": "m"})
    assert numbers == [1, 2, 3]
    assert (await read(client, job["id"]))["state"] == "dead"


async def test_release_gives_the_attempt_back_and_the_version_goes_on(client: httpx.AsyncClient) -> None:
    job = await submit(client, max_attempts=1)
    for version in (1, 2, 3):
        (leased,) = await lease(client)
        assert (leased["attempt"], leased["lease_version"]) == (1, version)
        released = await tell_ok(client, "release", leased)
        assert (released["state"], released["attempt"]) == ("ready", 0)
    (leased,) = await lease(client)
    later = await tell_ok(client, "release", leased, delay_seconds=60)
    assert later["state"] == "scheduled"
    assert await lease(client) == []
    assert (await read(client, job["id"]))["lease_version"] == 4


async def test_verify_is_204_without_a_body_while_the_lease_is_held(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    response = await tell(client, "verify", leased)
    assert (response.status_code, response.content) == (204, b"")
    lost(await tell(client, "verify", leased | {"lease_version": 2}), "unknown")
    await tell_ok(client, "complete", leased)
    lost(await tell(client, "verify", leased), "finished")


async def test_unknown_job_is_404_and_unknown_version_409(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    for verb, members in (
        ("heartbeat", {}),
        ("complete", {}),
        ("fail", {"error": {"message": "m"}}),
        ("release", {}),
        ("verify", {}),
    ):
        unknown = leased | {"id": UNKNOWN_ID}
        refused(await tell(client, verb, unknown, **members), 404, "job_not_found")
        for version in (0, 2, 2**53 - 1):
            problem = lost(
                await tell(client, verb, leased | {"lease_version": version}, **members), "unknown"
            )
            assert problem["presented_version"] == version
            assert (problem["current_version"], problem["job_state"]) == (1, "running")
    ready = await submit(client, queue="waiting")
    lost(await tell(client, "complete", {"id": ready["id"], "lease_version": 0}), "unknown")


@settling
async def test_repeat_after_a_lost_answer_changes_nothing(
    client: httpx.AsyncClient, verb: str, members: dict[str, Any], other: dict[str, Any]
) -> None:
    leased = await run_job(client)
    first = await tell(client, verb, leased, **members)
    assert "idempotent-replayed" not in first.headers
    repeats = await asyncio.gather(*(tell(client, verb, leased, **members) for _ in range(3)))
    for repeat in repeats:
        assert repeat.status_code == 200
        assert repeat.headers["idempotent-replayed"] == "true"
        assert repeat.json() == first.json()
    reason = {"complete": "finished", "fail": "failed", "release": "released"}[verb]
    lost(await tell(client, verb, leased, **other), reason)
    for another, its_members, _ in SETTLING:
        if another != verb:
            lost(await tell(client, another, leased, **its_members), reason)
    lost(await tell(client, "heartbeat", leased), reason)
    assert await read(client, leased["id"]) == first.json()
    assert len(await read_attempts(client, leased["id"])) == 1


@settling
async def test_repeat_in_other_words_is_the_same_body(
    client: httpx.AsyncClient, verb: str, members: dict[str, Any], other: dict[str, Any]
) -> None:
    leased = await run_job(client)
    await tell_ok(client, verb, leased, **members)
    bodies: dict[str, dict[str, Any]] = {
        "complete": {"result": {"b": 2, "a": 1}, "enqueue": []},
        "fail": {"retryable": True, "error": {"details": {"x": 1}, "type": None, "message": "m"}},
        "release": {"delay_seconds": 5.0, "reason": "r"},
    }
    assert (await tell(client, verb, leased, **bodies[verb])).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("verb", "members", "other"), SETTLING[1:], ids=["fail", "release"])
async def test_repeat_is_answered_after_later_grants_too(
    client: httpx.AsyncClient, verb: str, members: dict[str, Any], other: dict[str, Any]
) -> None:
    first = await run_job(client)
    await tell_ok(client, verb, first, **members)
    await client.patch(f"/v1/jobs/{first['id']}", json={"run_at": "2020-01-01T00:00:00Z"})
    (second,) = await lease(client)
    running = await read(client, first["id"])
    for _ in range(2):
        repeat = await tell(client, verb, first, **members)
        assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (200, "true")
        assert repeat.json() == running
    await tell_ok(client, "complete", second, result=2)
    repeat = await tell(client, verb, first, **members)
    assert (repeat.json()["state"], repeat.json()["result"]) == ("succeeded", 2)
    lost(await tell(client, verb, first, **other), {"fail": "failed", "release": "released"}[verb])


async def test_fail_is_repeated_after_death_and_redrive(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, max_attempts=1)
    dead = await tell_ok(client, "fail", leased, error={"message": "m"})
    assert (await tell(client, "fail", leased, error={"message": "m"})).json() == dead
    await client.post(f"/v1/jobs/{leased['id']}/redrive")
    repeat = await tell(client, "fail", leased, error={"message": "m"})
    assert (repeat.json()["state"], repeat.headers["idempotent-replayed"]) == ("ready", "true")


@no_reaper
@settling
async def test_late_holder_is_accepted_until_the_lease_is_reclaimed(
    client: httpx.AsyncClient, verb: str, members: dict[str, Any], other: dict[str, Any]
) -> None:
    leased = await run_job(client, lease_seconds=1)
    await asyncio.sleep(1.05)
    assert (await tell(client, "verify", leased)).status_code == 204
    assert (await tell(client, verb, leased, **members)).status_code == 200


@no_reaper
async def test_late_heartbeat_revives_the_lease_and_a_late_parent_may_have_children(
    client: httpx.AsyncClient,
) -> None:
    leased = await run_job(client, lease_seconds=1, max_runtime_seconds=1)
    free = await run_job(client, lease_seconds=1, queue="free")
    await asyncio.sleep(1.05)
    parent = {"job_id": free["id"], "lease_version": free["lease_version"]}
    await submit(client, queue="children", parent=parent)
    revived = await tell_ok(client, "heartbeat", free, extend_seconds=60)
    assert at(revived["lease_expires_at"]) - at(free["lease_expires_at"]) > timedelta(seconds=50)
    held = await tell_ok(client, "heartbeat", leased, extend_seconds=60)
    assert held["lease_expires_at"] == leased["deadline_at"]
    await tell_ok(client, "complete", leased)


CLOCKS: list[tuple[dict[str, Any], str, str]] = [
    ({"lease_seconds": 60}, "lease_expired", "expired"),
    ({"progress_timeout_seconds": 60, "lease_seconds": 3600}, "stalled", "stalled"),
    ({"max_runtime_seconds": 60, "lease_seconds": 3600}, "deadline_exceeded", "deadline_exceeded"),
]


@quick_reaper
@pytest.mark.parametrize(("members", "outcome", "reason"), CLOCKS, ids=lambda value: str(value)[:20])
async def test_each_clock_ends_the_attempt_with_its_own_outcome(
    client: httpx.AsyncClient, context: Context, members: dict[str, Any], outcome: str, reason: str
) -> None:
    leased = await run_job(client, backoff={"base_seconds": 0}, **members)
    loser = await run_job(client, backoff={"base_seconds": 60, "jitter": 0}, queue="slow", **members)
    if outcome != "lease_expired":
        await tell_ok(client, "heartbeat", leased, extend_seconds=3600)
    await elapse(context, 61)
    (again,) = await lease(client, wait_seconds=20)
    assert (again["id"], again["attempt"], again["lease_version"]) == (leased["id"], 2, 2)
    assert (again["previous"]["attempt"], again["previous"]["outcome"]) == (1, outcome)
    lost(await tell(client, "complete", leased), reason)
    assert [each["outcome"] for each in await read_attempts(client, leased["id"])] == [outcome, "running"]
    assert (await read(client, leased["id"]))["error"]["type"] == outcome
    # Only a lease that expired goes back without its backoff.
    expected = "ready" if outcome == "lease_expired" else "scheduled"
    await state_becomes(client, loser["id"], expected)
    await tell_ok(client, "complete", again)


@quick_reaper
@pytest.mark.parametrize(("members", "outcome", "reason"), CLOCKS, ids=lambda value: str(value)[:20])
async def test_each_clock_uses_the_last_attempt_up(
    client: httpx.AsyncClient, context: Context, members: dict[str, Any], outcome: str, reason: str
) -> None:
    leased = await run_job(client, max_attempts=1, **members)
    await elapse(context, 61)
    dead = await state_becomes(client, leased["id"], "dead")
    assert (dead["attempt"], dead["error"]["type"]) == (1, outcome)
    lost(await tell(client, "heartbeat", leased), reason)


@quick_reaper
async def test_only_a_higher_seq_keeps_a_job_from_stalling(
    client: httpx.AsyncClient, context: Context
) -> None:
    asked = {"lease_seconds": 3600, "progress_timeout_seconds": 60}
    moving = await run_job(client, queue="moving", **asked)
    standing = await run_job(client, queue="standing", **asked)
    unasked = await run_job(client, queue="unasked", lease_seconds=3600)
    for seq in range(2):
        await tell_ok(client, "heartbeat", moving, progress={"seq": seq})
        await tell_ok(client, "heartbeat", standing, progress={"seq": 0})
        await elapse(context, 40)
    await state_becomes(client, standing["id"], "scheduled")
    lost(await tell(client, "heartbeat", standing, progress={"seq": 0}), "stalled")
    await tell_ok(client, "complete", moving)
    await tell_ok(client, "complete", unasked)


async def test_parent_fence_of_single_jobs(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    held = {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    child = await submit(client, queue="children", parent=held)
    assert child["parent"] == held
    (worker_view,) = await lease(client, queue="children")
    assert worker_view["parent"] == held
    for parent, reason in (
        (held | {"lease_version": 7}, "unknown"),
        ({"job_id": UNKNOWN_ID, "lease_version": 1}, "unknown"),
        ({"job_id": child["id"], "lease_version": 0}, "unknown"),
    ):
        problem = lost(await client.post("/v1/jobs", json={"kind": "w", "parent": parent}), reason)
        assert problem["job_id"] == parent["job_id"]
    await tell_ok(client, "complete", leased)
    lost(await client.post("/v1/jobs", json={"kind": "w", "parent": held}), "finished")
    for malformed in (
        {},
        {"job_id": leased["id"]},
        {"lease_version": 1},
        "x",
        {"job_id": "1", "lease_version": 1},
    ):
        invalid(await client.post("/v1/jobs", json={"kind": "w", "parent": malformed}), "/parent")
    assert len(await list_all(client)) == 2
    assert (await read(client, child["id"]))["parent"] == held
