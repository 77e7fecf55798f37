"""Grant ready jobs to polls: the one place where a fencing token is made.

One claim serves many polls. What a poll is granted is committed before it is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.domain.calls import LeaseRequest
from app.domain.errors import InvalidRequest, RolledBack, Unavailable
from app.domain.job import LeasedJob, Outcome, Token
from app.domain.machine import Ending
from app.operations.context import Context
from app.operations.heads import Beginning, Heads
from app.operations.retries import retried
from app.operations.settle import Closing, end_leases
from app.store import lease_requests, leases
from app.store.engine import Connection
from app.store.leases import Demand, Place


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
    """What a claim gave to each wish, by its number.

    ``crowded`` saw jobs, but a rival was faster; ``refused`` used a request_id again with another body;
    ``repeated`` were given what is left of an earlier grant, and nothing new.
    """

    jobs: dict[int, list[LeasedJob]]
    crowded: set[int]
    refused: dict[int, InvalidRequest] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)


# The places that a claim took in each queue, and whether there were as many as it was to take.
Taken = dict[str, tuple[list[Place], bool]]


@retried
async def lease_jobs(context: Context, wishes: Sequence[Wish]) -> Grants:
    """Grant what is ready to wishes without a request_id, in one transaction.

    Each wish gets at most its max_jobs, by priority, then due time, over all its queues. An empty
    grant means that nothing was ready, or that others held locks on all of it.
    """
    beginning = context.heads.begin(_queues_of(wishes))
    grants = await _claim(context, wishes, beginning)
    # Where a head hid what is there, or nothing is: one look from the top tells.
    if wanting := _wanting(wishes, grants, beginning):
        await _claim_from_top(context, wishes, wanting, grants)
    return grants


def _wanting(wishes: Sequence[Wish], grants: Grants, beginning: Beginning) -> dict[int, int]:
    """Return how many jobs more the wishes may take whose claim began at a head, by their numbers."""
    return {
        number: count
        for number, wish in enumerate(wishes)
        if (count := wish.max_jobs - len(grants.jobs.get(number, ()))) > 0
        and any(queue in beginning.heads for queue in wish.queues)
    }


async def _claim_from_top(
    context: Context, wishes: Sequence[Wish], wanting: Mapping[int, int], grants: Grants
) -> None:
    """Claim so many jobs more for some of the wishes; what was granted before stays granted."""
    again = [replace(wishes[number], max_jobs=count) for number, count in wanting.items()]
    beginning = context.heads.begin(_queues_of(again), at_top=True)
    try:
        more = await _claim(context, again, beginning)
    except (Unavailable, RolledBack):
        if not grants.jobs:
            raise
        grants.crowded.update(number for number in wanting if number not in grants.jobs)
        return
    _top_up(grants, list(wanting), more)


def _top_up(grants: Grants, numbers: Sequence[int], more: Grants) -> None:
    """Add what a second claim gave to the wishes with these numbers."""
    for index, number in enumerate(numbers):
        if index in more.jobs:
            grants.jobs[number] = sorted([*grants.jobs.get(number, ()), *more.jobs[index]], key=_order)
        grants.crowded.discard(number)
        if index in more.crowded and number not in grants.jobs:
            grants.crowded.add(number)


def _queues_of(wishes: Sequence[Wish]) -> set[str]:
    return {queue for wish in wishes for queue in wish.queues}


async def _claim(context: Context, wishes: Sequence[Wish], beginning: Beginning) -> Grants:
    # Wishes for one queue each are served by one statement.
    is_plain = all(len(wish.queues) == 1 for wish in wishes)
    database = context.database
    async with database.one_write() if is_plain else database.begin() as conn:
        grants, taken = await _grant(conn, wishes, beginning.heads)
    _remember(context.heads, beginning, taken)
    return grants


def _remember(heads: Heads, beginning: Beginning, taken: Taken) -> None:
    """Remember how far each queue has been emptied; after the commit."""
    for queue, (places, is_filled) in taken.items():
        heads.claimed(beginning, queue, places, is_filled=is_filled)


def _taken(demands: Sequence[Demand], grants: Grants) -> Taken:
    places: dict[str, list[Place]] = {demand.queue: [] for demand in demands}
    wanted = {demand.queue: 0 for demand in demands}
    for demand in demands:
        wanted[demand.queue] = max(wanted[demand.queue], demand.last)
    for jobs in grants.jobs.values():
        for job in jobs:
            places[job.queue].append(Place(job.priority, job.run_at, job.id))
    return {queue: (taken, len(taken) == wanted[queue]) for queue, taken in places.items()}


async def lease_jobs_once(context: Context, wishes: Sequence[Wish]) -> Grants:
    """Grant to wishes with a request_id, or give again what was granted under it and is untouched.

    One transaction for all of them; a request_id may stand only once.
    """
    try:
        return await _lease_once(context, wishes)
    except _TwinWasFirst:
        return await _lease_one_by_one(context, wishes)


class _TwinWasFirst(Exception):
    """Rolls the grants of second twins back."""


@retried
async def _lease_once(context: Context, wishes: Sequence[Wish]) -> Grants:
    heads = context.heads
    beginning = heads.begin(_queues_of(wishes))
    async with context.database.begin() as conn:
        grants = await _repeat(conn, wishes)
        new = [
            number for number in range(len(wishes)) if number not in grants.repeated | grants.refused.keys()
        ]
        granted, claims = await _grant_fully(conn, heads, [wishes[number] for number in new], beginning)
        jobs = {new[index]: jobs for index, jobs in granted.jobs.items()}
        answers = {_request_of(wishes[number]): jobs[number] for number in jobs}
        if answers and await lease_requests.remember_lease_requests(conn, answers) < len(answers):
            raise _TwinWasFirst
    for each, taken in claims:
        _remember(heads, each, taken)
    grants.jobs |= jobs
    grants.crowded = {new[index] for index in granted.crowded}
    return grants


async def _grant_fully(
    conn: Connection, heads: Heads, wishes: Sequence[Wish], beginning: Beginning
) -> tuple[Grants, list[tuple[Beginning, Taken]]]:
    """Grant from the heads and, where they gave too little, from the top, in one transaction."""
    grants, taken = await _grant(conn, wishes, beginning.heads)
    claims = [(beginning, taken)]
    if wanting := _wanting(wishes, grants, beginning):
        again = [replace(wishes[number], max_jobs=count) for number, count in wanting.items()]
        top = heads.begin(_queues_of(again), at_top=True)
        more, taken = await _grant(conn, again, top.heads)
        claims.append((top, taken))
        _top_up(grants, list(wanting), more)
    return grants, claims


async def _lease_one_by_one(context: Context, wishes: Sequence[Wish]) -> Grants:
    """Do as ``lease_jobs_once`` where twins on other replicas are about: each wish for itself."""
    each = []
    for wish in wishes:
        try:
            each.append(await _lease_once(context, [wish]))
        except _TwinWasFirst:
            async with context.database.begin() as conn:
                each.append(await _repeat(conn, [wish]))
    return Grants(
        {number: grants.jobs[0] for number, grants in enumerate(each) if grants.jobs},
        {number for number, grants in enumerate(each) if grants.crowded},
        {number: grants.refused[0] for number, grants in enumerate(each) if grants.refused},
        {number for number, grants in enumerate(each) if grants.repeated},
    )


@retried
async def check_lease_request(context: Context, request: LeaseRequest) -> None:
    """Raise InvalidRequest when leases were granted under the request_id to another body."""
    async with context.database.one_statement() as conn:
        answered = await lease_requests.read_lease_requests(conn, [request])
    if any(each.fingerprint != request.fingerprint for each in answered.values()):
        raise request_id_reused()


async def _repeat(conn: Connection, wishes: Sequence[Wish]) -> Grants:
    """Return what is known of wishes that were granted something before."""
    requests = [_request_of(wish) for wish in wishes]
    answered = await lease_requests.read_lease_requests(conn, requests)
    grants = Grants({}, set())
    holders: dict[Token, int] = {}
    for number, request in enumerate(requests):
        known = answered.get(request.identity)
        if known is None:
            continue
        if known.fingerprint != request.fingerprint:
            grants.refused[number] = request_id_reused()
            continue
        grants.repeated.add(number)
        holders |= dict.fromkeys(known.tokens, number)
    if holders:
        for job in await lease_requests.read_untouched_leases(conn, list(holders)):
            grants.jobs.setdefault(holders[Token(job.id, job.lease_version)], []).append(job)
    return grants


def _request_of(wish: Wish) -> LeaseRequest:
    if wish.request is None:
        raise ValueError("the wish has no request_id")
    return wish.request


def request_id_reused() -> InvalidRequest:
    return InvalidRequest("it was used with another body", pointer="/request_id")


async def _grant(
    conn: Connection, wishes: Sequence[Wish], heads: Mapping[str, Place]
) -> tuple[Grants, Taken]:
    shares = await _shares(conn, wishes, heads)
    demands = _demands(wishes, shares)
    granted = await leases.lease_jobs(conn, demands, heads=heads) if demands else []
    jobs: dict[int, list[LeasedJob]] = {}
    for number, job in granted:
        jobs.setdefault(number, []).append(job)
    counted = {number for number, _, _ in shares if len(wishes[number].queues) > 1}
    ordered = {number: sorted(jobs[number], key=_order) for number in jobs}
    grants = Grants(ordered, counted - jobs.keys())
    return grants, _taken(demands, grants)


def _order(job: LeasedJob) -> tuple[int, object, str]:
    return (job.priority, job.run_at, job.id)


async def _shares(
    conn: Connection, wishes: Sequence[Wish], heads: Mapping[str, Place]
) -> list[tuple[int, str, int]]:
    """Return (wish, queue, job count): how many jobs each wish takes from each of its queues."""
    single = [
        (number, wish.queues[0], wish.max_jobs) for number, wish in enumerate(wishes) if len(wish.queues) == 1
    ]
    several = [
        (number, wish.max_jobs, wish.queues) for number, wish in enumerate(wishes) if len(wish.queues) > 1
    ]
    return single + (await leases.share_queues(conn, several, heads=heads) if several else [])


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
