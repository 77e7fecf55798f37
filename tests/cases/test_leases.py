"""Leases and their fence, seen from outside: who holds a job, who no longer does, and who wins a race."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

import pytest

from app.operations.context import Context
from tests.support.factory import elapse
from tests.support.standing_rules import Caller, Json, Start, until

A = TypeVar("A")
B = TypeVar("B")

SHORTEST_LEASE_SECONDS = 1


async def test_a_late_owner_is_refused_and_the_new_owner_finishes(start: Start) -> None:
    """BO-01."""
    caller = start(reaper_interval_seconds=0.1)
    job = await caller.submit(max_attempts=3)
    late = await caller.lease_one(worker_id="a", lease_seconds=2)
    owner = await caller.lease_one(worker_id="b", wait_seconds=10)
    assert owner["id"] == job["id"]
    assert owner["lease_version"] > late["lease_version"]
    assert owner["attempt"] == 2

    before = await caller.job(job["id"])
    for verb, members in (
        ("heartbeat", {}),
        ("fail", {"error": {"message": "late"}}),
        ("complete", {"result": "A"}),
    ):
        refused = await caller.say(verb, late, **members)
        assert (refused.status_code, refused.json()["code"]) == (409, "lease_lost"), verb
    assert await caller.job(job["id"]) == before

    await caller.complete(owner, result="B")
    after = await caller.job(job["id"])
    assert (after["state"], after["result"], after["attempt"]) == ("succeeded", "B", 2)
    outcomes = [attempt["outcome"] for attempt in await caller.attempts(job["id"])]
    assert outcomes == ["lease_expired", "succeeded"]


class _Racer:
    """A worker that completes about when its lease runs out, and writes down what it was told."""

    def __init__(self, caller: Caller, number: int, *, is_over: asyncio.Event) -> None:
        self._caller = caller
        self._worker_id = f"w{number}"
        self._is_over = is_over
        # On a busy machine answers take longer; aim earlier then, so that there is a race at all.
        self._earliest = 0.9
        self.grants: list[tuple[str, int, float]] = []
        self.accepted: list[tuple[str, int, float]] = []
        self.refused: list[tuple[str, int]] = []

    async def run(self) -> None:
        while not self._is_over.is_set():
            leased = await self._caller.lease(
                worker_id=self._worker_id, wait_seconds=1, lease_seconds=SHORTEST_LEASE_SECONDS
            )
            for job in leased:
                self.grants.append((job["id"], job["lease_version"], time.monotonic()))
                await asyncio.sleep(
                    SHORTEST_LEASE_SECONDS * random.uniform(self._earliest, self._earliest + 0.2)
                )
                answer = await self._caller.say("complete", job, result=self._worker_id)
                if answer.status_code == 200:
                    self.accepted.append((job["id"], job["lease_version"], time.monotonic()))
                    self._earliest = min(self._earliest + 0.02, 0.9)
                else:
                    assert answer.json()["code"] == "lease_lost"
                    self.refused.append((job["id"], job["lease_version"]))
                    self._earliest = max(self._earliest - 0.05, 0.0)


async def test_the_reaper_never_writes_over_a_finished_job(start: Start) -> None:
    """BO-02, with more workers in less time; the reaper looks every 50 ms, so that it meets the completes."""
    caller = start(reaper_interval_seconds=0.05)
    ids = {job["id"] for job in await caller.submit_many(300, max_attempts=50)}
    is_over = asyncio.Event()
    racers = [_Racer(caller, number, is_over=is_over) for number in range(50)]
    tasks = [asyncio.create_task(racer.run()) for racer in racers]

    async def are_all_accepted() -> bool:
        return sum(len(racer.accepted) for racer in racers) >= len(ids)

    await until(are_all_accepted, timeout_seconds=120)
    # Whatever had gone wrong would be granted again by now, and expire again.
    await asyncio.sleep(2 * SHORTEST_LEASE_SECONDS)
    is_over.set()
    await asyncio.gather(*tasks)

    grants = [grant for racer in racers for grant in racer.grants]
    accepted = {job_id: (version, at) for racer in racers for job_id, version, at in racer.accepted}
    refused = [refusal for racer in racers for refusal in racer.refused]
    assert accepted.keys() == ids
    assert sum(len(racer.accepted) for racer in racers) == len(ids)
    assert refused, "no complete met the reaper; the case shows nothing"
    assert not [grant for grant in grants if grant[2] > accepted[grant[0]][1]]
    versions = {(job_id, version) for job_id, version, _ in grants}
    assert all((job_id, version + 1) in versions for job_id, version in refused)
    granted = Counter(job_id for job_id, _, _ in grants)
    async for job in caller.pages(kind="case"):
        assert (job["state"], job["attempt"]) == ("succeeded", granted[job["id"]])
        assert job["lease_version"] == accepted[job["id"]][0] == granted[job["id"]]
    for job_id in {job_id for job_id, _ in refused}:
        attempts = await caller.attempts(job_id)
        outcomes = [attempt["outcome"] for attempt in attempts]
        assert outcomes == ["lease_expired"] * (granted[job_id] - 1) + ["succeeded"]
        ended_at = [attempt["ended_at"] for attempt in attempts]
        assert max(ended_at) == ended_at[-1], "a lease expired after the job had finished"


async def test_a_heartbeat_beside_or_after_the_complete_revives_nothing(start: Start) -> None:
    """BO-03; "already finished" is told by ``job_state`` and ``reason``, the code is lease_lost."""
    caller = start()
    await caller.submit_many(100)
    for leased in await caller.lease(max_jobs=100):
        completed, beaten = await asyncio.gather(
            caller.say("complete", leased), caller.say("heartbeat", leased)
        )
        assert completed.status_code == 200
        assert beaten.status_code in (200, 409)
        for _ in range(3):
            late = await caller.say("heartbeat", leased)
            assert late.status_code == 409
            assert (late.json()["job_state"], late.json()["reason"]) == ("succeeded", "finished")
    jobs = [job async for job in caller.pages(kind="case")]
    assert [(job["state"], job["lease"], job["attempt"]) for job in jobs] == [("succeeded", None, 1)] * 100
    assert await caller.lease() == []


async def test_a_repeated_complete_is_answered_like_the_first(start: Start) -> None:
    """BO-04."""
    caller = start()
    await caller.submit()
    leased = await caller.lease_one()
    first = await caller.complete(leased, result={"n": 1})
    third, fourth = await asyncio.gather(
        caller.say("complete", leased, result={"n": 1}), caller.say("complete", leased, result={"n": 1})
    )
    for repeat in (await caller.say("complete", leased, result={"n": 1}), third, fourth):
        assert repeat.status_code == 200
        assert repeat.headers["Idempotent-Replayed"] == "true"
        assert repeat.json() == first
    other = await caller.say("complete", leased, result={"n": 2})
    assert (other.status_code, other.json()["code"]) == (409, "lease_lost")
    assert await caller.job(leased["id"]) == first


async def test_a_job_that_kills_its_workers_is_dead_after_max_attempts(start: Start) -> None:
    """BO-07."""
    reaper_interval = 0.2
    caller = start(reaper_interval_seconds=reaper_interval)
    poison = await caller.submit(max_attempts=3)
    healthy = await caller.submit(queue="healthy")
    grants: list[Json] = []
    while len(grants) < 3:
        grants += await caller.lease(wait_seconds=20, lease_seconds=SHORTEST_LEASE_SECONDS)
    assert (await caller.complete(await caller.lease_one(queues=["healthy"])))["attempt"] == 1
    assert [leased["attempt"] for leased in grants] == [1, 2, 3]
    versions = [leased["lease_version"] for leased in grants]
    assert versions == sorted(set(versions))

    async def is_dead() -> bool:
        return bool((await caller.job(poison["id"]))["state"] == "dead")

    await until(is_dead)
    # How soon a lease is reclaimed: one of the three was at a time at which nothing held the machine up.
    held_seconds = [
        (
            datetime.fromisoformat(each["ended_at"]) - datetime.fromisoformat(each["granted_at"])
        ).total_seconds()
        for each in await caller.attempts(poison["id"])
    ]
    assert min(held_seconds) < SHORTEST_LEASE_SECONDS + reaper_interval + 1
    job = await caller.job(poison["id"])
    assert (job["attempt"], job["error"]["type"]) == (3, "lease_expired")
    assert await caller.lease(wait_seconds=2 * SHORTEST_LEASE_SECONDS) == []
    assert (await caller.job(healthy["id"]))["state"] == "succeeded"


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_max_attempts_counts_the_first_run(start: Start, max_attempts: int) -> None:
    """BO-08."""
    caller = start()
    job = await caller.submit(max_attempts=max_attempts, backoff={"type": "fixed", "base_seconds": 0})
    for attempt in range(1, max_attempts + 1):
        leased = await caller.lease_one()
        assert leased["attempt"] == attempt
        failed = await caller.say("fail", leased, error={"message": "no"})
        expected = "dead" if attempt == max_attempts else "ready"
        assert failed.json()["state"] in {expected, expected.replace("ready", "scheduled")}
    assert await caller.lease(wait_seconds=0.5) == []
    after = await caller.job(job["id"])
    assert (after["state"], after["attempt"]) == ("dead", max_attempts)
    for refused in (0, -1):
        answer = await caller.call("POST", "/v1/jobs", {"kind": "case", "max_attempts": refused})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/max_attempts")


async def test_jobs_of_one_lease_call_have_clocks_of_their_own(start: Start, context: Context) -> None:
    """BO-10."""
    caller = start(reaper_interval_seconds=0.1)
    await caller.submit_many(3)
    first, second, third = await caller.lease(max_jobs=3, lease_seconds=200)
    assert len({job["id"] for job in (first, second, third)}) == 3
    await elapse(context, 100)
    await caller.complete(first)
    before = await caller.job(third["id"])
    assert (await caller.say("heartbeat", second)).status_code == 200
    assert await caller.job(third["id"]) == before
    await elapse(context, 60)
    assert (await caller.say("heartbeat", second)).status_code == 200
    await elapse(context, 60)
    taken = await caller.lease(worker_id="other", max_jobs=3, wait_seconds=20, lease_seconds=200)
    assert [(job["id"], job["attempt"]) for job in taken] == [(third["id"], 2)]
    await elapse(context, 80)
    await caller.complete(second)
    refused = await caller.say("complete", third)
    assert (refused.status_code, refused.json()["code"]) == (409, "lease_lost")
    await caller.complete(taken[0])


async def test_cancel_and_complete_at_once_have_one_winner(start: Start) -> None:
    """BO-12, running jobs: plain and forced cancels."""
    caller = start()
    await caller.submit_many(200)
    leased = await caller.lease(max_jobs=200)
    for number, job in enumerate(leased):
        force = number % 2 == 1
        cancelled, completed = await _at_once(
            caller.call("POST", f"/v1/jobs/{job['id']}/cancel", {"force": force}),
            caller.say("complete", job, result=number),
            swapped=number % 4 < 2,
        )
        after = await caller.job(job["id"])
        if completed.status_code == 200:
            assert (after["state"], after["result"]) == ("succeeded", number)
            if cancelled.status_code == 409:
                assert cancelled.json()["code"] == "already_finished"
            else:
                assert (force, cancelled.status_code) == (False, 202)
        else:
            assert completed.json()["code"] == "lease_lost"
            assert (force, cancelled.status_code) == (True, 200)
            assert (after["state"], after["result"]) == ("cancelled", None)
    states = Counter([job["state"] async for job in caller.pages(kind="case")])
    assert set(states) <= {"succeeded", "cancelled"}
    assert states.total() == 200


async def test_cancel_and_lease_at_once_have_one_winner(start: Start) -> None:
    """BO-12, ready jobs."""
    caller = start()
    for number in range(200):
        job = await caller.submit()
        cancelled, taken = await _at_once(
            caller.call("POST", f"/v1/jobs/{job['id']}/cancel"), caller.lease(), swapped=number % 2 == 0
        )
        if not taken:
            assert cancelled.status_code == 200
            after = await caller.job(job["id"])
            assert (after["state"], after["attempt"], after["lease_version"]) == ("cancelled", 0, 0)
            continue
        assert (cancelled.status_code, cancelled.json()["state"]) == (202, "running")
        beat = await caller.say("heartbeat", taken[0])
        assert beat.json()["cancel_requested"] is True
        released = await caller.say("release", taken[0])
        assert released.json()["state"] == "cancelled"
    states = Counter([job["state"] async for job in caller.pages(kind="case")])
    assert states == {"cancelled": 200}


async def _at_once(first: Awaitable[A], second: Awaitable[B], *, swapped: bool) -> tuple[A, B]:
    """Send two calls at the same instant; ``swapped`` the second one is sent first."""
    if not swapped:
        return await asyncio.gather(first, second)
    late, early = await asyncio.gather(second, first)
    return early, late
