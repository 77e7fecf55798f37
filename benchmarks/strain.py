"""Claims under what makes claims slow elsewhere: jobs ahead of their time, many queues, many priorities."""

import itertools
from collections.abc import Awaitable, Callable, Sequence

from app.operations.lease import Wish
from benchmarks.ground import Ground, ground, wish
from benchmarks.meter import Spent
from benchmarks.stocks import READY, SCHEDULED, Stock

BACKLOG = 10_000
QUEUES_A_CALL = 32
POLLS_A_CLAIM = 64
PRIORITIES = 100
_JOBS_A_CLAIM = 100


async def measure_strain(server_url: str, *, claims: int, scheduled: int, queues: int) -> dict[str, Spent]:
    """Return what claims took, by the situation they were made in."""
    found = {}
    hundred = [wish("q0", max_jobs=_JOBS_A_CLAIM)]
    backlog = Stock(READY, max(BACKLOG, claims * _JOBS_A_CLAIM))
    async with ground(server_url, backlog) as place:
        found["100 jobs of one queue"] = await _claim(place, [hundred] * claims)
    async with ground(server_url, Stock(SCHEDULED, scheduled)) as place:
        backlog.fill(place.connection)
        found[f"the same, {scheduled:,} jobs scheduled"] = await _claim(place, [hundred] * claims)
    async with ground(server_url, Stock(READY, queues, queue_count=queues)) as place:
        names = [f"q{number}" for number in range(queues)]
        half = queues // 2
        found[f"one poll of {QUEUES_A_CALL} queues, of {queues:,} with a job each"] = await _claim(
            place,
            [[wish(*some, max_jobs=QUEUES_A_CALL)] for some in _groups(names[:half], QUEUES_A_CALL)][:claims],
        )
        found[f"{POLLS_A_CLAIM} polls of a queue each, of {queues:,} with a job each"] = await _claim(
            place,
            [[wish(name, max_jobs=1) for name in some] for some in _groups(names[half:], POLLS_A_CLAIM)][
                :claims
            ],
        )
    async with ground(server_url, Stock(READY, backlog.job_count, priority_count=PRIORITIES)) as place:
        found[f"100 jobs of one queue of {PRIORITIES} priorities"] = await _claim(place, [hundred] * claims)
    async with ground(server_url, Stock(READY, backlog.job_count, priority_count=PRIORITIES)) as place:
        found["the same, with a more urgent job before each claim"] = await _claim_after_urgent(
            place, hundred, claims
        )
    return found


async def _claim(place: Ground, claims: Sequence[Sequence[Wish]]) -> Spent:
    spent = Spent()
    await place.meter.spend(spent, [_claim_of(place, wishes) for wishes in claims])
    return spent


def _claim_of(place: Ground, wishes: Sequence[Wish]) -> Callable[[], Awaitable[int]]:
    async def claim() -> int:
        jobs = await place.lease(wishes)
        assert len(jobs) == sum(wish.max_jobs for wish in wishes), "the stock is too small"
        return len(jobs)

    return claim


async def _claim_after_urgent(place: Ground, wishes: Sequence[Wish], claims: int) -> Spent:
    """Each claim has to find a job that is more urgent than all that were there when it was enqueued."""
    spent = Spent()
    priorities = itertools.count(-1, -1)
    for priority in itertools.islice(priorities, claims):
        await place.enqueue(1, priority=priority)

        async def claim(urgent: int = priority) -> int:
            jobs = await place.lease(wishes)
            assert jobs[0].priority == urgent, "the most urgent job was passed over"
            return len(jobs)

        await place.meter.spend(spent, [claim])
    return spent


def _groups(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[start : start + size] for start in range(0, len(names) - size + 1, size)]
