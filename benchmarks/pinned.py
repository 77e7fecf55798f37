"""The same churn of jobs with and without an old snapshot, with heads and from the top, in turns.

A snapshot that is held open (a report, a forgotten session) keeps every row that dies since then. It holds
back the vacuum of its own database only, so all lanes run on one server.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from app.domain.job import LeasedJob
from app.operations.heads import Heads
from benchmarks.ground import Ground, NoHeads, ground, wish
from benchmarks.peers.databases import old_snapshot

_JOBS_A_CALL = 1000


@dataclass(slots=True)
class Lane:
    """One database; each round adds a median of its claims and a rate of all that was done."""

    is_pinned: bool
    heads: Callable[[], Heads]
    jobs_a_claim: int
    claim_ms: list[float] = field(default_factory=list)
    jobs_a_second: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        beginning = "from the top" if self.heads is NoHeads else "with heads"
        return f"claims of {self.jobs_a_claim}, {beginning}, {'pinned' if self.is_pinned else 'free'}"


async def measure_pinned(server_url: str, *, jobs: int, rounds: int) -> list[Lane]:
    """Churn so many jobs through each lane; return the lanes, each free one before its pinned one."""
    lanes = [
        Lane(is_pinned, heads, jobs_a_claim)
        for jobs_a_claim in (100, 10)
        for heads in (Heads, NoHeads)
        for is_pinned in (False, True)
    ]
    jobs_a_round = max(jobs // rounds // _JOBS_A_CALL, 1) * _JOBS_A_CALL
    async with AsyncExitStack() as stack:
        places = []
        for lane in lanes:
            place = await stack.enter_async_context(ground(server_url, heads=lane.heads()))
            if lane.is_pinned:
                stack.enter_context(old_snapshot(place.url))
            places.append(place)
        pairs = list(zip(lanes, places, strict=True))
        for number in range(rounds):
            for lane, place in pairs if number % 2 else reversed(pairs):
                await _churn(lane, place, jobs=jobs_a_round)
    return lanes


async def _churn(lane: Lane, place: Ground, *, jobs: int) -> None:
    """Enqueue, claim and complete a thousand jobs at a time."""
    wishes = [wish("q0", max_jobs=lane.jobs_a_claim)]
    claim_seconds = []
    began_at = time.perf_counter()
    for _ in range(jobs // _JOBS_A_CALL):
        await place.enqueue(_JOBS_A_CALL)
        held: list[LeasedJob] = []
        while len(held) < _JOBS_A_CALL:
            claimed_at = time.perf_counter()
            held += await place.lease(wishes)
            claim_seconds.append(time.perf_counter() - claimed_at)
        await place.complete(held)
    lane.jobs_a_second.append(jobs / (time.perf_counter() - began_at))
    lane.claim_ms.append(statistics.median(claim_seconds) * 1000)
