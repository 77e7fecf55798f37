"""Thousands of leases run out in the same second."""

import asyncio
import statistics
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

import psycopg

from tests.support.standing_rules import Caller, Json, Start

T = TypeVar("T")

LEASES = 5000
BATCH = 1000
LEASE = timedelta(seconds=5)
OFFERED_SECONDS = 60.0
CYCLES_A_SECOND = 10
FOREGROUND_SECONDS = 1.0


class _Foreground:
    """Submits, leases and completes jobs of its own, so many a second, however long one of them takes."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.call_seconds: list[float] = []

    async def run(self, *, is_over: asyncio.Event) -> None:
        cycles: list[asyncio.Task[None]] = []
        began_at = time.monotonic()
        while not is_over.is_set():
            cycles.append(asyncio.create_task(self._cycle(f"foreground-{len(cycles)}")))
            await asyncio.sleep(began_at + len(cycles) / CYCLES_A_SECOND - time.monotonic())
        await asyncio.gather(*cycles)

    async def _cycle(self, queue: str) -> None:
        await self._timed(self._caller.submit(queue=queue))
        leased = await self._timed(self._caller.lease_one(queues=[queue]))
        assert leased["attempt"] == 1
        await self._timed(self._caller.complete(leased))

    async def _timed(self, call: Awaitable[T]) -> T:
        began_at = time.monotonic()
        answer = await call
        self.call_seconds.append(time.monotonic() - began_at)
        return answer


async def test_thousands_of_leases_that_expire_at_once_hold_nobody_up(
    start: Start, database_url: str
) -> None:
    """BO-47; the statement timeout is the service's own, which is shorter than the case's."""
    caller = start()
    for _ in range(LEASES // BATCH):
        await caller.submit_many(BATCH, queue="abandoned", max_attempts=3)
    abandoned = await _lease_all(caller, max_jobs=BATCH, lease_seconds=300)
    assert {leased["attempt"] for leased in abandoned.values()} == {1}
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE fencepost.leases SET expires_at = now() + %s", [LEASE])
    abandoned_at = time.monotonic()

    is_over = asyncio.Event()
    foreground = _Foreground(caller)
    running = asyncio.create_task(foreground.run(is_over=is_over))
    # In small bites: it is the expiry that shall hold nobody up, not answers of a thousand jobs.
    again = await _lease_all(caller, max_jobs=100, lease_seconds=300)
    assert time.monotonic() - abandoned_at < LEASE.total_seconds() + OFFERED_SECONDS
    is_over.set()
    await running

    assert again.keys() == abandoned.keys()
    for leased in again.values():
        assert leased["attempt"] == 2
        assert (leased["previous"]["attempt"], leased["previous"]["outcome"]) == (1, "lease_expired")
        assert leased["lease_version"] == 2
    assert len(foreground.call_seconds) >= 3 * CYCLES_A_SECOND * (LEASE.total_seconds() - 1)
    # The expiry lasts for most of the time. A machine that stands still for a second or two slows fewer down.
    *_, third_quarter = statistics.quantiles(foreground.call_seconds)
    assert third_quarter < FOREGROUND_SECONDS


async def _lease_all(caller: Caller, *, max_jobs: int, lease_seconds: float) -> dict[str, Json]:
    """Lease until every job has been granted once; a second grant would be missing in the end."""
    granted: dict[str, Json] = {}
    while len(granted) < LEASES:
        leased = await caller.lease(
            queues=["abandoned"], max_jobs=max_jobs, wait_seconds=30, lease_seconds=lease_seconds
        )
        assert leased, "nothing was offered for half a minute"
        assert not [job["id"] for job in leased if job["id"] in granted]
        granted |= {job["id"]: job for job in leased}
    return granted
