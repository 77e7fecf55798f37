"""Grant ready jobs to polls: the one place where a fencing token is made.

One claim serves many polls. What a poll is granted is committed before it is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.calls import LeaseRequest
from app.domain.errors import InvalidRequest
from app.domain.job import LeasedJob, Outcome, Token
from app.domain.machine import Ending
from app.operations.context import Context
from app.operations.retries import retried
from app.operations.settle import Closing, end_leases
from app.store import lease_requests, leases
from app.store.engine import Connection
from app.store.leases import Demand


@dataclass(frozen=True, slots=True)
class Wish:
    """What one lease call asks for; ``request`` is None when it cannot be repeated."""

    worker_id: str
    queues: tuple[str, ...]
    max_jobs: int
    lease_seconds: float
    request: LeaseRequest | None


@dataclass(slots=True)
class Grants:
    """What a claim gave to each wish, by its number; ``crowded`` saw jobs, but a rival was faster."""

    jobs: dict[int, list[LeasedJob]]
    crowded: set[int]


@retried
async def lease_jobs(context: Context, wishes: Sequence[Wish]) -> Grants:
    """Grant what is ready to wishes without a request_id, in one transaction.

    Each wish gets at most its max_jobs, by priority, then due time, over all its queues. An empty
    grant means that nothing was ready, or that others held locks on all of it.
    """
    # Wishes for one queue each are served by one statement.
    is_plain = all(len(wish.queues) == 1 for wish in wishes)
    database = context.database
    async with database.one_write() if is_plain else database.begin() as conn:
        return await _grant(conn, wishes)


@retried
async def lease_jobs_once(context: Context, wish: Wish) -> list[LeasedJob]:
    """Grant to a wish with a request_id, or give again what was granted under it and is untouched.

    Raises InvalidRequest when the request_id was used with another body.
    """
    request = wish.request
    if request is None:
        raise ValueError("the wish has no request_id")
    try:
        async with context.database.begin() as conn:
            answered = await _repeat(conn, request)
            return await _grant_once(conn, wish, request) if answered is None else answered
    except _TwinWasFirst:
        async with context.database.begin() as conn:
            return await _repeat(conn, request) or []


class _TwinWasFirst(Exception):
    """Rolls the grants of the second twin back."""


async def _grant_once(conn: Connection, wish: Wish, request: LeaseRequest) -> list[LeasedJob]:
    jobs = (await _grant(conn, [wish])).jobs.get(0, [])
    if jobs and not await lease_requests.remember_lease_request(conn, request, jobs):
        raise _TwinWasFirst
    return jobs


async def _repeat(conn: Connection, request: LeaseRequest) -> list[LeasedJob] | None:
    answered = await lease_requests.read_lease_request(conn, request)
    if answered is None:
        return None
    if answered.fingerprint != request.fingerprint:
        raise request_id_reused()
    return await lease_requests.read_untouched_leases(conn, answered.tokens)


def request_id_reused() -> InvalidRequest:
    return InvalidRequest("it was used with another body", pointer="/request_id")


async def _grant(conn: Connection, wishes: Sequence[Wish]) -> Grants:
    shares = await _shares(conn, wishes)
    granted = await leases.lease_jobs(conn, _demands(wishes, shares)) if shares else []
    jobs: dict[int, list[LeasedJob]] = {}
    for number, job in granted:
        jobs.setdefault(number, []).append(job)
    counted = {number for number, _, _ in shares if len(wishes[number].queues) > 1}
    return Grants({number: sorted(jobs[number], key=_order) for number in jobs}, counted - jobs.keys())


def _order(job: LeasedJob) -> tuple[int, object, str]:
    return (job.priority, job.run_at, job.id)


async def _shares(conn: Connection, wishes: Sequence[Wish]) -> list[tuple[int, str, int]]:
    """Return (wish, queue, job count): how many jobs each wish takes from each of its queues."""
    single = [
        (number, wish.queues[0], wish.max_jobs) for number, wish in enumerate(wishes) if len(wish.queues) == 1
    ]
    several = [
        (number, wish.max_jobs, wish.queues) for number, wish in enumerate(wishes) if len(wish.queues) > 1
    ]
    return single + (await leases.share_queues(conn, several) if several else [])


def _demands(wishes: Sequence[Wish], shares: Sequence[tuple[int, str, int]]) -> list[Demand]:
    """Line the shares of each queue up, one after the other."""
    taken: dict[str, int] = {}
    demands = []
    for number, queue, count in shares:
        first = taken.get(queue, 0) + 1
        taken[queue] = first + count - 1
        wish = wishes[number]
        demands.append(Demand(number, queue, first, taken[queue], wish.worker_id, wish.lease_seconds))
    return demands


async def give_back(context: Context, wish: Wish, jobs: Sequence[LeasedJob]) -> None:
    """Release grants that cannot reach their worker: it has gone. The attempts are given back.

    What was remembered for a repeat is forgotten first, so that a repeat leases anew.
    """
    if wish.request is not None:
        async with context.database.begin() as conn:
            await lease_requests.forget_lease_request(conn, wish.request)
    ending = Ending(Outcome.RELEASED)
    closings = [Closing(Token(job.id, job.lease_version), ending, fingerprint=None) for job in jobs]
    await end_leases(context, closings, with_jobs=False)
