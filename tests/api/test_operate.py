"""Cancel, redrive and edit: what people do to a job."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.support.api import (
    UNKNOWN_ID,
    invalid,
    lease,
    lost,
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

FORCE = {"force": True}


async def cancel(client: httpx.AsyncClient, job_id: str, **members: object) -> httpx.Response:
    return await client.post(f"/v1/jobs/{job_id}/cancel", json=members)


@pytest.mark.parametrize("delay_seconds", [0, 60])
async def test_waiting_job_is_cancelled_at_once(client: httpx.AsyncClient, delay_seconds: int) -> None:
    job = await submit(client, delay_seconds=delay_seconds)
    answer = await cancel(client, job["id"], reason="not wanted")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["lease_version"]) == ("cancelled", 0)
    assert answer.json()["finished_at"] is not None
    assert answer.json() == await read(client, job["id"])
    assert await lease(client) == []
    again = await cancel(client, job["id"])
    assert (again.status_code, again.json()) == (200, answer.json())


async def test_running_job_is_asked_to_stop_and_told_with_its_heartbeat(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    assert (await tell_ok(client, "heartbeat", leased))["cancel_requested"] is False
    for _ in range(2):
        answer = await cancel(client, leased["id"], reason="stop")
        assert answer.status_code == 202
        assert (answer.json()["state"], answer.json()["lease"]["cancel_requested"]) == ("running", True)
    assert (await tell_ok(client, "heartbeat", leased))["cancel_requested"] is True
    (held,) = (await client.get("/v1/leases", params={"worker_id": "w1"})).json()["leases"]
    assert held["cancel_requested"] is True


@pytest.mark.parametrize(
    ("verb", "members", "outcome"),
    [("fail", {"error": {"message": "m"}}, "failed"), ("release", {}, "released")],
)
async def test_whatever_ends_an_attempt_after_a_cancel_makes_the_job_cancelled(
    client: httpx.AsyncClient, verb: str, members: dict[str, object], outcome: str
) -> None:
    leased = await run_job(client, backoff={"base_seconds": 0})
    await cancel(client, leased["id"])
    assert (await tell_ok(client, verb, leased, **members))["state"] == "cancelled"
    assert await lease(client) == []
    assert [each["outcome"] for each in await read_attempts(client, leased["id"])] == [outcome]


@quick_reaper
async def test_expiry_after_a_cancel_makes_the_job_cancelled(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=1)
    await cancel(client, leased["id"])
    await state_becomes(client, leased["id"], "cancelled")
    assert [each["outcome"] for each in await read_attempts(client, leased["id"])] == ["lease_expired"]


async def test_complete_still_wins_after_a_cancel_was_asked_for(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    await cancel(client, leased["id"])
    job = await tell_ok(client, "complete", leased, result=1)
    assert (job["state"], job["result"]) == ("succeeded", 1)
    refused(await cancel(client, leased["id"]), 409, "already_finished")


async def test_forced_cancel_voids_the_lease_and_raises_the_version_once(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    answer = await cancel(client, leased["id"], **FORCE, reason="now")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["lease"]) == ("cancelled", None)
    assert answer.json()["lease_version"] == leased["lease_version"] + 1
    assert answer.json()["error"]["message"] == "now"
    for verb in ("heartbeat", "complete", "release", "verify"):
        problem = lost(await tell(client, verb, leased), "cancelled")
        assert (problem["job_state"], problem["current_version"]) == ("cancelled", 2)
    again = await cancel(client, leased["id"], **FORCE)
    assert (again.status_code, again.json()) == (200, answer.json())
    (attempt,) = await read_attempts(client, leased["id"])
    assert attempt["outcome"] == "cancelled"


async def test_forced_cancel_of_a_waiting_job_raises_the_version(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    assert (await cancel(client, job["id"], **FORCE)).json()["lease_version"] == 1
    assert (await cancel(client, job["id"], **FORCE)).json()["lease_version"] == 1


async def test_finished_job_cannot_be_cancelled(client: httpx.AsyncClient) -> None:
    done = await run_job(client, queue="done")
    await tell_ok(client, "complete", done)
    dead = await run_job(client, queue="dead")
    await tell_ok(client, "fail", dead, error={"message": "m"}, retryable=False)
    for leased in (done, dead):
        before = await read(client, leased["id"])
        for members in ({}, FORCE):
            problem = refused(await cancel(client, leased["id"], **members), 409, "already_finished")
            assert problem["job_id"] == leased["id"]
        assert await read(client, leased["id"]) == before
    refused(await cancel(client, UNKNOWN_ID), 404, "job_not_found")


async def test_dead_job_is_redriven_with_all_its_attempts_and_its_past(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, max_attempts=1)
    await tell_ok(client, "heartbeat", leased, checkpoint={"at": 5})
    dead = await tell_ok(client, "fail", leased, error={"message": "m"})
    assert (dead["state"], dead["attempt"]) == ("dead", 1)
    answer = await client.post(f"/v1/jobs/{leased['id']}/redrive")
    assert answer.status_code == 200
    job = answer.json()
    assert (job["state"], job["attempt"], job["finished_at"]) == ("ready", 0, None)
    assert job["lease_version"] > leased["lease_version"]
    assert (job["checkpoint"], job["error"]["message"]) == ({"at": 5}, "m")
    assert job["created_at"] == dead["created_at"]
    (again,) = await lease(client)
    assert (again["attempt"], again["checkpoint"]) == (1, {"at": 5})
    assert again["previous"]["outcome"] == "failed"
    assert again["lease_version"] > job["lease_version"]
    assert [each["outcome"] for each in await read_attempts(client, leased["id"])] == ["failed", "running"]
    lost(await tell(client, "complete", leased), "failed")
    await tell_ok(client, "complete", again)


async def test_cancelled_job_is_redriven_for_later(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    await cancel(client, job["id"])
    run_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    answer = await client.post(f"/v1/jobs/{job['id']}/redrive", json={"run_at": run_at})
    assert (answer.json()["state"], answer.json()["run_at"]) == ("scheduled", run_at)
    assert answer.json()["lease_version"] == 1
    refused(await client.post(f"/v1/jobs/{job['id']}/redrive"), 409, "not_redrivable")


async def test_redriven_job_wakes_a_parked_poll(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    await cancel(client, job["id"])
    await client.post(f"/v1/jobs/{job['id']}/redrive", json={"run_at": "1999-01-01T00:00:00Z"})
    (leased,) = await lease(client, wait_seconds=5)
    assert leased["id"] == job["id"]


async def test_only_dead_and_cancelled_jobs_are_redriven(client: httpx.AsyncClient) -> None:
    ready, scheduled = await submit(client, queue="r"), await submit(client, queue="s", delay_seconds=60)
    running, done = await run_job(client, queue="x"), await run_job(client, queue="y")
    await tell_ok(client, "complete", done)
    for job in (ready, scheduled, running, done):
        before = await read(client, job["id"])
        problem = refused(await client.post(f"/v1/jobs/{job['id']}/redrive"), 409, "not_redrivable")
        assert problem["job_state"] == before["state"]
        assert await read(client, job["id"]) == before


async def test_waiting_job_is_edited(client: httpx.AsyncClient) -> None:
    job = await submit(client, priority=5, payload="p", metadata={"a": "b"})
    path = f"/v1/jobs/{job['id']}"
    answer = await client.patch(path, json={"priority": -1, "max_attempts": 3})
    assert answer.status_code == 200
    assert answer.json() == job | {"priority": -1, "max_attempts": 3}
    assert (await client.patch(path, json={})).json() == answer.json()
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    answer = await client.patch(path, json={"run_at": ahead})
    assert (answer.json()["state"], answer.json()["run_at"]) == ("scheduled", ahead)
    assert await lease(client) == []
    answer = await client.patch(path, json={"run_at": "2020-01-01T00:00:00Z"})
    assert answer.json()["state"] == "ready"
    assert answer.json() == await read(client, job["id"])
    (leased,) = await lease(client)
    assert (leased["priority"], leased["max_attempts"]) == (-1, 3)


async def test_edited_priority_changes_the_order(client: httpx.AsyncClient) -> None:
    first, second = await submit(client), await submit(client)
    await client.patch(f"/v1/jobs/{second['id']}", json={"priority": -1})
    assert [job["id"] for job in await lease(client, max_jobs=2)] == [second["id"], first["id"]]


async def test_only_waiting_jobs_are_edited(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    refused(await client.patch(path, json={"priority": 1}), 409, "not_editable")
    await tell_ok(client, "complete", leased)
    problem = refused(await client.patch(path, json={"priority": 1}), 409, "not_editable")
    assert problem["job_state"] == "succeeded"
    refused(await client.patch(f"/v1/jobs/{UNKNOWN_ID}", json={"priority": 1}), 404, "job_not_found")


async def test_edit_cannot_leave_a_waiting_job_without_an_attempt(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, backoff={"base_seconds": 60})
    waiting = await tell_ok(client, "fail", leased, error={"message": "m"})
    invalid(await client.patch(f"/v1/jobs/{leased['id']}", json={"max_attempts": 1}), "/max_attempts")
    assert await read(client, leased["id"]) == waiting
    assert (await client.patch(f"/v1/jobs/{leased['id']}", json={"max_attempts": 2})).status_code == 200
