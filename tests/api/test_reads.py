"""Reading jobs: one, waiting for its end, lists with filters and cursors, attempts."""

import asyncio
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.operations.context import Context
from app.settings import Settings
from tests.support.api import (
    UNKNOWN_ID,
    invalid,
    lease,
    list_all,
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
from tests.support.factory import elapse_since_finish
from tests.support.stopwatch import until_quick


async def test_running_job_shows_its_lease(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, max_runtime_seconds=100)
    job = await read(client, leased["id"])
    assert (job["state"], job["attempt"], job["lease_version"]) == ("running", 1, 1)
    assert job["lease"].pop("granted_at").endswith("Z")
    assert job["lease"] == {
        "worker_id": "w1",
        "lease_version": 1,
        "expires_at": leased["lease_expires_at"],
        "deadline_at": leased["deadline_at"],
        "progress": None,
        "cancel_requested": False,
    }
    await tell_ok(client, "heartbeat", leased, progress={"seq": 3, "percent": 12.5, "message": "half"})
    progress = (await read(client, leased["id"]))["lease"]["progress"]
    assert progress == {"seq": 3, "percent": 12.5, "message": "half"}


async def test_wait_for_a_finished_job_is_answered_at_once(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    await tell_ok(client, "complete", leased)
    for watch in until_quick(seconds=2):
        with watch:
            answer = await client.get(f"/v1/jobs/{leased['id']}", params={"wait_seconds": 30})
        assert answer.json()["state"] == "succeeded"


@pytest.mark.parametrize("ending", ["complete", "fail", "cancel", "force"])
async def test_wait_ends_with_the_job(client: httpx.AsyncClient, ending: str) -> None:
    leased = await run_job(client, max_attempts=1)
    waiter = asyncio.create_task(client.get(f"/v1/jobs/{leased['id']}", params={"wait_seconds": 30}))
    await asyncio.sleep(0.1)
    assert not waiter.done()
    if ending == "complete":
        await tell_ok(client, "complete", leased)
    elif ending == "fail":
        await tell_ok(client, "fail", leased, error={"message": "m"})
    else:
        await client.post(f"/v1/jobs/{leased['id']}/cancel", json={"force": ending == "force"})
        if ending == "cancel":
            await tell_ok(client, "release", leased)
    # Long before its time is over.
    answer = await asyncio.wait_for(waiter, 20)
    assert answer.json()["state"] in ("succeeded", "dead", "cancelled")


async def test_wait_for_an_unfinished_job_ends_with_the_time(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for watch in until_quick(seconds=1.5):
        with watch:
            answer = await client.get(f"/v1/jobs/{job['id']}", params={"wait_seconds": "0.5"})
        assert (answer.status_code, answer.json()) == (200, job)
        assert watch.seconds >= 0.5
    answer = await client.get(f"/v1/jobs/{UNKNOWN_ID}", params={"wait_seconds": 30})
    assert refused(answer, 404, "job_not_found")["job_id"] == UNKNOWN_ID


async def test_list_is_newest_first_without_payloads_and_results(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, payload="p", queue="a")
    await tell_ok(client, "complete", leased, result="r")
    newer = await submit(client, payload="p2")
    page = (await client.get("/v1/jobs")).json()
    assert [job["id"] for job in page["jobs"]] == [newer["id"], leased["id"]]
    assert page["next_cursor"] is None
    for job in page["jobs"]:
        assert not {"payload", "result"} & job.keys()
        whole = await read(client, job["id"])
        assert {name: whole[name] for name in job} == job
        assert whole.keys() - job.keys() == {"payload", "result"}


async def test_include_brings_payload_and_result(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, payload="p")
    await tell_ok(client, "complete", leased, result="r")
    for include, names in [
        ("payload", {"payload"}),
        ("result", {"result"}),
        ("payload,result", {"payload", "result"}),
        ("result,payload", {"payload", "result"}),
    ]:
        (job,) = (await client.get("/v1/jobs", params={"include": include})).json()["jobs"]
        assert {"payload", "result"} & job.keys() == names
    for include in ("", "payload,", "error", "Payload", "payload result"):
        invalid(await client.get("/v1/jobs", params={"include": include}), "include")


async def test_list_is_filtered_by_each_member(client: httpx.AsyncClient) -> None:
    parent = await run_job(client, queue="parents", kind="parent")
    fence = {"job_id": parent["id"], "lease_version": 1}
    child = await submit(client, queue="a", kind="x", parent=fence)
    scheduled = await submit(client, queue="a", kind="y", delay_seconds=60)
    dead = await run_job(client, queue="b", kind="x", max_attempts=1)
    await tell_ok(client, "fail", dead, error={"message": "m"})
    cancelled = await submit(client, queue="b", kind="y")
    await client.post(f"/v1/jobs/{cancelled['id']}/cancel")
    done = await run_job(client, queue="c", kind="x")
    await tell_ok(client, "complete", done)
    expected: list[tuple[dict[str, str], list[str]]] = [
        ({"state": "running"}, [parent["id"]]),
        ({"state": "ready"}, [child["id"]]),
        ({"state": "scheduled"}, [scheduled["id"]]),
        ({"state": "dead"}, [dead["id"]]),
        ({"state": "cancelled"}, [cancelled["id"]]),
        ({"state": "succeeded"}, [done["id"]]),
        ({"queue": "a"}, [scheduled["id"], child["id"]]),
        ({"queue": "b"}, [cancelled["id"], dead["id"]]),
        ({"kind": "x"}, [done["id"], dead["id"], child["id"]]),
        ({"parent_id": parent["id"]}, [child["id"]]),
        ({"parent_id": UNKNOWN_ID}, []),
        ({"queue": "a", "kind": "x", "state": "ready", "parent_id": parent["id"]}, [child["id"]]),
        ({"queue": "a", "kind": "x", "state": "dead"}, []),
        ({"queue": "nowhere"}, []),
        ({"created_after": dead["created_at"]}, [done["id"], cancelled["id"], dead["id"]]),
        ({"created_before": dead["created_at"]}, [scheduled["id"], child["id"], parent["id"]]),
        ({"created_after": child["created_at"], "created_before": scheduled["created_at"]}, [child["id"]]),
        ({"created_after": "9999-12-31T23:59:59Z"}, []),
        ({"created_before": "1970-01-01T00:00:00Z"}, []),
    ]
    for query, ids in expected:
        answer = await client.get("/v1/jobs", params=query)
        assert [job["id"] for job in answer.json()["jobs"]] == ids, query


async def test_filters_are_strict(client: httpx.AsyncClient) -> None:
    for name, values in {
        "state": ["", "READY", "queued", "ready,dead"],
        "parent_id": ["", "1", UNKNOWN_ID.upper()],
    }.items():
        for value in values:
            invalid(await client.get("/v1/jobs", params={name: value}), name)


async def test_pages_follow_each_other_without_gap_or_repeat(client: httpx.AsyncClient) -> None:
    batch = {"jobs": [{"kind": "w", "queue": f"q{n % 2}"} for n in range(23)]}
    entries = (await client.post("/v1/jobs/batch", json=batch)).json()["jobs"]
    newest_first = [entry["job"]["id"] for entry in entries][::-1]
    for limit in (1, 5, 22, 23, 24):
        assert [job["id"] for job in await list_all(client, limit=limit)] == newest_first
    assert [job["id"] for job in await list_all(client, limit=3, queue="q1")] == [
        entry["job"]["id"] for entry in entries if entry["job"]["queue"] == "q1"
    ][::-1]


async def test_default_page_is_fifty_jobs(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 51})
    page = (await client.get("/v1/jobs")).json()
    assert len(page["jobs"]) == 50
    assert page["next_cursor"]
    assert len((await client.get("/v1/jobs", params={"limit": 200})).json()["jobs"]) == 51


async def test_link_header_leads_to_the_next_page(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w", "queue": "a:b"}] * 3})
    query: dict[str, str | int] = {
        "limit": 2,
        "queue": "a:b",
        "created_after": "2020-01-01T00:00:00+00:00",
        "include": "payload",
    }
    first = await client.get("/v1/jobs", params=query)
    address, _, relation = first.headers["link"].partition(";")
    assert relation.strip() == 'rel="next"'
    target = address.strip("<>")
    assert parse_qs(urlsplit(target).query)["cursor"] == [first.json()["next_cursor"]]
    second = await client.get(target)
    assert len(second.json()["jobs"]) == 1
    assert "payload" in second.json()["jobs"][0]
    assert "link" not in second.headers


async def test_broken_or_misplaced_cursors_are_400(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w"}] * 3})
    cursor = (await client.get("/v1/jobs", params={"limit": 1})).json()["next_cursor"]
    for position in range(len(cursor)):
        changed = cursor[:position] + ("A" if cursor[position] != "A" else "B") + cursor[position + 1 :]
        refused(await client.get("/v1/jobs", params={"cursor": changed}), 400, "invalid_cursor")
    for text in ("", "x", "é", "\u0000", cursor + "=", cursor + "A", cursor[:-1], " " + cursor, "a" * 5000):
        refused(await client.get("/v1/jobs", params={"cursor": text}), 400, "invalid_cursor")
    for filters in ({"queue": "default"}, {"state": "ready"}, {"created_after": "2020-01-01T00:00:00Z"}):
        params = {"cursor": cursor} | filters
        refused(await client.get("/v1/jobs", params=params), 400, "invalid_cursor")
    same = await client.get("/v1/jobs", params={"cursor": cursor, "limit": 2, "include": "payload"})
    assert len(same.json()["jobs"]) == 2


async def test_attempts_are_told_ascending_with_their_outcome(client: httpx.AsyncClient) -> None:
    job = await submit(client, backoff={"base_seconds": 0})
    assert await read_attempts(client, job["id"]) == []
    for verb, members in (
        ("release", {"reason": "later"}),
        ("fail", {"error": {"type": "T", "message": "m", "details": [1.0]}}),
        ("complete", {}),
    ):
        (leased,) = await lease(client, worker_id=f"w-{verb}")
        running = (await read_attempts(client, job["id"]))[-1]
        assert (running["outcome"], running["ended_at"], running["error"]) == ("running", None, None)
        await tell_ok(client, verb, leased, **members)
    attempts = await read_attempts(client, job["id"])
    assert [each["outcome"] for each in attempts] == ["released", "failed", "succeeded"]
    assert [each["attempt"] for each in attempts] == [1, 1, 2]
    assert [each["lease_version"] for each in attempts] == [1, 2, 3]
    assert [each["worker_id"] for each in attempts] == ["w-release", "w-fail", "w-complete"]
    assert attempts[0]["error"]["message"] == "later"
    assert attempts[1]["error"] == {"type": "T", "message": "m", "details": [1.0]}
    assert attempts[2]["error"] is None
    for each in attempts:
        assert each["granted_at"] <= each["ended_at"]
        assert each.keys() == {
            "attempt",
            "lease_version",
            "worker_id",
            "granted_at",
            "ended_at",
            "outcome",
            "error",
        }


async def test_attempts_are_paged(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for _ in range(5):
        (leased,) = await lease(client)
        await tell_ok(client, "release", leased)
    path = f"/v1/jobs/{job['id']}/attempts"
    versions: list[int] = []
    target: str | None = f"{path}?limit=2"
    while target:
        page = await client.get(target)
        versions += [each["lease_version"] for each in page.json()["attempts"]]
        assert ("link" in page.headers) == (page.json()["next_cursor"] is not None)
        target = page.headers["link"].partition(">")[0][1:] if "link" in page.headers else None
    assert versions == [1, 2, 3, 4, 5]
    cursor = (await client.get(f"{path}?limit=2")).json()["next_cursor"]
    other = await submit(client)
    for address in (f"/v1/jobs/{other['id']}/attempts", "/v1/jobs"):
        refused(await client.get(address, params={"cursor": cursor}), 400, "invalid_cursor")
    refused(await client.get(path, params={"cursor": cursor[:-1]}), 400, "invalid_cursor")


@pytest.mark.parametrize(
    "settings", [Settings(retention_seconds=3600, dead_retention_seconds=3600)], ids=["retention"]
)
async def test_job_past_its_retention_is_unknown_on_every_route(
    client: httpx.AsyncClient, context: Context
) -> None:
    done = await run_job(client, queue="done")
    dead = await run_job(client, queue="dead", max_attempts=1)
    cancelled = await submit(client, queue="cancelled")
    alive = await run_job(client, queue="alive")
    await tell_ok(client, "complete", done)
    await tell_ok(client, "fail", dead, error={"message": "m"})
    await client.post(f"/v1/jobs/{cancelled['id']}/cancel")
    ids = [done["id"], dead["id"], cancelled["id"]]
    assert len(await list_all(client)) == 4
    await elapse_since_finish(context, 3601)
    assert [job["id"] for job in await list_all(client)] == [alive["id"]]
    for job_id in ids:
        path = f"/v1/jobs/{job_id}"
        for response in (
            await client.get(path),
            await client.get(f"{path}/attempts"),
            await client.patch(path, json={"priority": 1}),
            await client.post(f"{path}/cancel"),
            await client.post(f"{path}/redrive"),
            await tell(client, "complete", done | {"id": job_id}),
            await tell(client, "heartbeat", done | {"id": job_id}),
            await tell(client, "verify", done | {"id": job_id}),
        ):
            refused(response, 404, "job_not_found")
    assert (await tell_ok(client, "complete", alive))["state"] == "succeeded"


@pytest.mark.parametrize("settings", [Settings(retention_seconds=3600)], ids=["retention"])
async def test_job_that_finished_before_its_creation_by_the_clock_is_not_listed_past_its_retention(
    client: httpx.AsyncClient, context: Context
) -> None:
    """After a failover the database's clock may be behind that of the old primary."""
    older = await submit(client, queue="older")
    finished = await run_job(client)
    newer = await submit(client, queue="newer")
    await tell_ok(client, "complete", finished)
    await elapse_since_finish(context, 3601)
    assert [job["id"] for job in await list_all(client, limit=1)] == [newer["id"], older["id"]]


@quick_reaper
async def test_lease_that_ran_out_is_an_attempt_too(client: httpx.AsyncClient) -> None:
    leased = await run_job(client, lease_seconds=1, max_attempts=1)
    dead = await state_becomes(client, leased["id"], "dead")
    assert dead["error"]["type"] == "lease_expired"
    assert [each["outcome"] for each in await read_attempts(client, leased["id"])] == ["lease_expired"]
