"""A producer: single jobs and batches, with keys and without, twins, delays, cancels."""

import asyncio

from tests.chaos.caller import Caller, Mind
from tests.chaos.history import Json
from tests.chaos.scripts import KIND, MOST_ATTEMPTS, steps_by

_LONGEST_PAUSE_SECONDS = 0.15
_MOST_OF_A_BATCH = 10


class JobMaker:
    """Makes bodies of jobs; each has a mark of its own, by which the final list is compared."""

    def __init__(self, mind: Mind, *, name: str) -> None:
        self._name = name
        self._queues = mind.queues
        self._chance = mind.chance
        self._is_scripted = mind.is_scripted
        self._count = 0

    def make(self) -> tuple[str, Json]:
        """Return a mark and the body of a job."""
        mark, job = self._make_plain()
        if self._is_scripted:
            job["payload"] = {"steps": steps_by(self._chance, make_child=lambda: self._make_plain()[1])}
        return mark, job

    def _make_plain(self) -> tuple[str, Json]:
        self._count += 1
        mark = f"{self._name}-{self._count}"
        job: Json = {
            "kind": "chaos",
            "queue": self._chance.choice(self._queues),
            "priority": self._chance.randint(-1, 1),
            "max_attempts": self._chance.choice([1, 3, 1000, 1000, 1000]),
            "backoff": {"type": "fixed", "base_seconds": 0.2},
            "metadata": {"mark": mark},
        }
        if self._is_scripted:
            attempts = self._chance.randint(1, MOST_ATTEMPTS)
            job |= {"kind": KIND, "max_attempts": attempts, "payload": {"steps": []}}
        roll = self._chance.random()
        if roll < 0.2:
            job["delay_seconds"] = round(self._chance.uniform(0.1, 2.0), 3)
        elif roll < 0.23:
            job["max_runtime_seconds"] = 1
        elif roll < 0.26:
            job["progress_timeout_seconds"] = 1
        return mark, job


class Producer:
    """Asks for jobs; ``twin`` is a second client of the same mind, for calls at the same moment."""

    def __init__(self, mind: Mind, twin: Caller) -> None:
        self._caller = mind.caller
        self._twin = twin
        self._chance = mind.chance
        self._jobs = JobMaker(mind, name=mind.caller.name)

    async def run(self, *, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            roll = self._chance.random()
            if roll < 0.15:
                await self._submit_batch()
            elif roll < 0.22:
                await self._submit_twins()
            elif roll < 0.30:
                # Without a key nobody repeats it: in doubt, it stays in doubt.
                _, job = self._jobs.make()
                await self._caller.once("/v1/jobs", job)
            else:
                await self._submit_and_maybe_cancel()
            await asyncio.sleep(self._chance.uniform(0, _LONGEST_PAUSE_SECONDS))

    async def _submit_and_maybe_cancel(self) -> None:
        mark, job = self._jobs.make()
        answer = await self._caller.call("/v1/jobs", job, key=mark)
        if answer.is_success and self._chance.random() < 0.06:
            force = self._chance.random() < 0.5
            await self._caller.call(f"/v1/jobs/{answer.body['id']}/cancel", {"force": force})

    async def _submit_batch(self) -> None:
        made = [self._jobs.make() for _ in range(self._chance.randint(2, _MOST_OF_A_BATCH))]
        jobs = [job | {"idempotency_key": mark} for mark, job in made]
        await self._caller.call("/v1/jobs/batch", {"jobs": jobs})

    async def _submit_twins(self) -> None:
        mark, job = self._jobs.make()
        batch = {"jobs": [job | {"idempotency_key": mark}]}
        second = (
            self._twin.call("/v1/jobs", job, key=mark)
            if self._chance.random() < 0.5
            else self._twin.call("/v1/jobs/batch", batch)
        )
        await asyncio.gather(self._caller.call("/v1/jobs", job, key=mark), second)
