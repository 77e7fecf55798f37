"""What the service picks, in which order, and how long it keeps what is done."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from tests.support.standing_rules import Caller, Start, until
from tests.support.stopwatch import until_quick

RETENTION_SECONDS = 1.2


async def test_work_that_cannot_run_does_not_hide_work_that_can(start: Start) -> None:
    """BO-54."""
    caller = start()
    for _ in range(2):
        await caller.submit_many(1000, priority=-10, delay_seconds=3600)
    await caller.submit_many(500, priority=-10)
    failing = await caller.lease(max_jobs=500)
    items = [
        {
            "job_id": leased["id"],
            "lease_version": leased["lease_version"],
            "error": {"message": "later"},
            "retry_after_seconds": 3600,
        }
        for leased in failing
    ]
    answer = await caller.call("POST", "/v1/leases/fail", {"items": items})
    assert {result["state"] for result in answer.json()["results"]} == {"scheduled"}
    for watch in until_quick(seconds=1):
        can_run = await caller.submit(priority=100)
        with watch:
            leased = await caller.lease_one()
        assert leased["id"] == can_run["id"]
        await caller.complete(leased)
    for _ in range(3):
        await _expect_order(caller)


async def _expect_order(caller: Caller) -> None:
    now = datetime.now(UTC)

    async def submit(priority: int, *, ago_seconds: float) -> str:
        run_at = (now - timedelta(seconds=ago_seconds)).isoformat()
        job = await caller.submit(priority=priority, run_at=run_at)
        return str(job["id"])

    expected = [
        await submit(100, ago_seconds=3600),
        await submit(1, ago_seconds=0),
        await submit(1, ago_seconds=1),
        await submit(1, ago_seconds=0),
    ]
    long_due, now_due, earlier, now_due_too = expected
    leased = await caller.lease(max_jobs=2) + await caller.lease(max_jobs=2)
    assert [job["id"] for job in leased] == [earlier, now_due, now_due_too, long_due]
    for job in leased:
        await caller.complete(job)


async def test_retention_is_counted_from_the_finish(start: Start) -> None:
    """BO-55."""
    caller = start(
        retention_seconds=RETENTION_SECONDS,
        dead_retention_seconds=RETENTION_SECONDS,
        reaper_interval_seconds=0.1,
    )
    job = await caller.submit(max_attempts=1)
    dead = await caller.submit(max_attempts=1, queue="dead")
    leased = await caller.lease_one(lease_seconds=60)
    began = time.monotonic()
    while time.monotonic() - began < 3 * RETENTION_SECONDS:
        await asyncio.sleep(0.4)
        assert (await caller.say("heartbeat", leased)).status_code == 200
        assert (await caller.job(job["id"]))["state"] == "running"
    child = await caller.submit(parent={"job_id": job["id"], "lease_version": leased["lease_version"]})
    failed = await caller.say("fail", await caller.lease_one(queues=["dead"]), error={"message": "no"})
    assert failed.json()["state"] == "dead"
    assert (await caller.complete(leased, result="kept alive"))["result"] == "kept alive"
    finished_at = time.monotonic()
    caller.seen.purged_ids |= {job["id"], dead["id"]}

    async def are_purged() -> bool:
        answers = [await caller.call("GET", f"/v1/jobs/{job_id}") for job_id in (job["id"], dead["id"])]
        return [answer.status_code for answer in answers] == [404, 404]

    await until(are_purged)
    assert time.monotonic() - finished_at > RETENTION_SECONDS - 0.1
    listed = [listed["id"] async for listed in caller.pages()]
    assert listed == [child["id"]]
    assert (await caller.job(child["id"]))["parent"]["job_id"] == job["id"]
    repeated = await caller.say("complete", leased, result="kept alive")
    assert repeated.status_code == 404
