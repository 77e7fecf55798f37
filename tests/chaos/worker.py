"""A worker: leases with request_id, heartbeats, every kind of end, single and in batches, and lapses.

A lapse is a job that it stops working on and comes back to later, under the version it had: by then the job
has mostly been passed on. What is stale and what is merely late, the checker sees from the whole history.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.chaos.caller import Answer, Mind
from tests.chaos.history import Json, now
from tests.chaos.producer import JobMaker

# After a lease has run out, the reaper needs a moment, and the next worker too.
_LAPSE_SECONDS = 1.5

_LAPSED_CALLS: list[tuple[str, Json]] = [
    ("complete", {"result": "stale"}),
    ("fail", {"error": {"message": "stale"}}),
    ("release", {}),
    ("heartbeat", {}),
    ("verify", {}),
]


class Worker:
    def __init__(self, mind: Mind) -> None:
        self._caller = mind.caller
        self._queues = mind.queues
        self._lease_seconds = mind.lease_seconds
        self._chance = mind.chance
        self._jobs = JobMaker(mind, name=f"{mind.caller.name}-made")
        self._lapsed: list[tuple[float, str, int]] = []
        self._lease_count = 0

    async def run(self, *, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            leased = await self._lease()
            await self._come_back(due_by=now())
            await self._work(leased)
        await self._come_back(due_by=float("inf"))

    async def _lease(self) -> list[Json]:
        self._lease_count += 1
        body = {
            "worker_id": self._caller.name,
            "queues": self._chance.sample(self._queues, self._chance.randint(1, len(self._queues))),
            "max_jobs": self._chance.choice([1, 3, 10]),
            "lease_seconds": self._chance.choice(self._lease_seconds),
            "wait_seconds": self._chance.choice([0.5, 1, 2]),
            "request_id": f"{self._lease_count}",
        }
        answer = await self._caller.call("/v1/leases", body)
        return list(answer.body["jobs"]) if answer.is_success else []

    async def _come_back(self, *, due_by: float) -> None:
        due = [lapse for lapse in self._lapsed if lapse[0] <= due_by]
        self._lapsed = [lapse for lapse in self._lapsed if lapse[0] > due_by]
        for _, job_id, version in due:
            verb, members = self._chance.choice(_LAPSED_CALLS)
            if self._chance.random() < 0.2:
                _, child = self._jobs.make()
                parent = {"job_id": job_id, "lease_version": version}
                await self._caller.once("/v1/jobs", child | {"parent": parent})
            else:
                body = {"lease_version": version, **members}
                await self._caller.call(f"/v1/jobs/{job_id}/{verb}", body)

    async def _work(self, leased: Sequence[Json]) -> None:
        if len(leased) > 1 and self._chance.random() < 0.7:
            await self._work_on_many(leased)
            return
        for job in leased:
            await self._work_on_one(job)

    async def _work_on_many(self, leased: Sequence[Json]) -> None:
        if self._chance.random() < 0.3:
            await self._say_many("heartbeat", [_item(job, {}) for job in leased])
        ends: dict[str, list[Json]] = {}
        for job in leased:
            verb, members = self._choose_end(job)
            if verb == "lapse":
                self._lapse(job)
            else:
                ends.setdefault(verb, []).append(_item(job, members))
        for verb, items in ends.items():
            await self._say_many(verb, items)

    async def _work_on_one(self, job: Json) -> None:
        verb, members = self._choose_end(job)
        if verb == "lapse":
            self._lapse(job)
            return
        if self._chance.random() < 0.3 and not await self._go_through_the_middle(job):
            return
        await self._say(verb, job, members)
        if self._chance.random() < 0.05:
            # A worker that has forgotten that it was answered.
            await self._say(verb, job, members)

    async def _go_through_the_middle(self, job: Json) -> bool:
        """Do what a long handler does; False as soon as the lease is lost."""
        beat = {"progress": {"seq": 1, "percent": 50}, "checkpoint": {"by": self._caller.name}}
        if not (await self._say("heartbeat", job, beat)).is_success:
            return False
        if self._chance.random() < 0.1:
            await asyncio.sleep(self._chance.uniform(0.5, 2.5))
        if self._chance.random() < 0.3:
            mark, child = self._jobs.make()
            parent = {"job_id": job["id"], "lease_version": job["lease_version"]}
            await self._caller.call("/v1/jobs", child | {"parent": parent}, key=mark)
        return (await self._say("verify", job, {})).is_success

    def _choose_end(self, job: Json) -> tuple[str, Json]:
        roll = self._chance.random()
        if roll < 0.08:
            return "lapse", {}
        if roll < 0.14:
            retry_after_seconds = round(self._chance.uniform(0, 0.5), 3)
            return "fail", {"error": {"message": "by chance"}, "retry_after_seconds": retry_after_seconds}
        if roll < 0.16:
            return "fail", {"error": {"type": "hopeless", "message": "by chance"}, "retryable": False}
        if roll < 0.20:
            return "release", {"delay_seconds": self._chance.choice([0, 0.2])}
        members: Json = {"result": f"{self._caller.name} {job['lease_version']}"}
        if self._chance.random() < 0.08:
            members["enqueue"] = [self._jobs.make()[1] for _ in range(self._chance.randint(1, 2))]
        return "complete", members

    def _lapse(self, job: Json) -> None:
        due_at = now() + job["lease_seconds"] + _LAPSE_SECONDS
        self._lapsed.append((due_at, job["id"], job["lease_version"]))

    async def _say(self, verb: str, job: Json, members: Json) -> Answer:
        body: dict[str, Any] = {"lease_version": job["lease_version"], **members}
        return await self._caller.call(f"/v1/jobs/{job['id']}/{verb}", body)

    async def _say_many(self, verb: str, items: Sequence[Json]) -> None:
        await self._caller.call(f"/v1/leases/{verb}", {"items": list(items)})


def _item(job: Json, members: Json) -> Json:
    return {"job_id": job["id"], "lease_version": job["lease_version"], **members}
