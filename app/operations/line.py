"""The line of lease calls: which claim serves whom, and which work nobody has been offered yet.

Bookkeeping only, no I/O. A claim is one transaction for many polls; some of them are under way at once.

    arrive ──▶ new ──next_claim──▶ claimed ──▶ answered
                                   │     ▲
                                 park    next_claim, when work was heard of
                                   ▼     │
                                   parked

Work is offered to polls that are parked for its queue. What they do not take stays on offer while a claim
is under way that began before: it may not have seen the work, and its polls may be parked next.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from app.domain.job import LeasedJob
from app.operations.lease import Wish

# A claim compares each poll with each job that it takes (store.leases.LEASE_JOBS); so many are no trouble.
MAX_POLLS_A_CLAIM = 512
# A claim is one statement with a time limit; however many polls wait, it takes about so many jobs.
MAX_JOBS_A_CLAIM = 1000
# A poll for more jobs is large. One claim for large polls and one for small ones are under way side by side,
# so that nobody waits for a thousand jobs to get one. More at once were slower: polls that arrive during a
# claim share the next one.
MANY_JOBS = 100
# Of work whose amount is not known so much is offered first, and twice as much each time that all is taken.
PROBE_JOBS = 8


@dataclass(eq=False, slots=True)
class Poll:
    """One lease call that is not answered yet."""

    wish: Wish
    wait_seconds: float
    answer: asyncio.Future[list[LeasedJob]]
    is_new: bool = True
    is_over: bool = False
    is_gone: bool = False
    # A repeat of the call has come; whatever this one is granted is the repeat's.
    is_replaced: bool = False
    crowded_count: int = 0
    # By the loop's clock; the timer runs from the moment at which the poll parks.
    ends_at: float = 0.0
    timer: asyncio.TimerHandle | None = field(default=None)

    @property
    def is_large(self) -> bool:
        return self.wish.max_jobs > MANY_JOBS


@dataclass(slots=True)
class Offer:
    """So many jobs of a queue were heard of, and nobody was offered them yet.

    ``is_exact`` False: their number is not known, and the count is a guess. ``claim_number`` is the last
    claim that had begun by then; later ones see the jobs.
    """

    count: int
    is_exact: bool
    claim_number: int


@dataclass(eq=False, slots=True)
class Claim:
    """The polls of one transaction, all of them small or all large.

    ``guesses`` tells how much was offered of queues that may have more. ``filled`` are the polls that were
    granted all they asked for, ``unfilled`` those for which there was not enough.
    """

    number: int
    polls: dict[Poll, None] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    identities: set[tuple[str, str]] = field(default_factory=set)
    guesses: dict[str, int] = field(default_factory=dict)
    filled: set[Poll] = field(default_factory=set)
    unfilled: set[Poll] = field(default_factory=set)
    is_large: bool = False
    job_count: int = 0

    def has_room_for(self, poll: Poll) -> bool:
        return not self.polls or (
            poll.is_large is self.is_large
            and len(self.polls) < MAX_POLLS_A_CLAIM
            and self.job_count + poll.wish.max_jobs <= MAX_JOBS_A_CLAIM
        )

    def add(self, poll: Poll) -> None:
        if poll not in self.polls:
            self.is_large = poll.is_large
            self.polls[poll] = None
            self.queues.update(poll.wish.queues)
            if poll.wish.request is not None:
                self.identities.add(poll.wish.request.identity)
            self.job_count += poll.wish.max_jobs

    def note(self, poll: Poll, granted_count: int) -> None:
        """Take note of how many jobs a poll was granted."""
        (self.filled if granted_count >= poll.wish.max_jobs else self.unfilled).add(poll)


class Line:
    """All polls of this process that are not answered. Not thread-safe."""

    def __init__(self) -> None:
        self._new: dict[Poll, None] = {}
        self._parked: dict[str, dict[Poll, None]] = {}
        self._offers: dict[str, Offer] = {}
        # Claims under way.
        self._claims: dict[Claim, None] = {}
        self._claim_count = 0

    def __contains__(self, poll: Poll) -> bool:
        """Tell whether a poll is new or parked; one that a claim is under way for is not."""
        return poll in self._new or any(poll in self._parked.get(queue, ()) for queue in poll.wish.queues)

    def polls(self) -> list[Poll]:
        """Return the polls that are new or parked."""
        return list(dict.fromkeys([*self._new, *(poll for polls in self._parked.values() for poll in polls)]))

    def parked_queues(self) -> list[str]:
        return list(self._parked)

    def arrive(self, poll: Poll) -> None:
        """Put a poll in line for the next claim."""
        self._new[poll] = None

    def park(self, poll: Poll) -> list[str]:
        """Let a poll wait for work; return the queues that no other poll waits for."""
        new_queues = [queue for queue in poll.wish.queues if queue not in self._parked]
        for queue in poll.wish.queues:
            self._parked.setdefault(queue, {})[poll] = None
        poll.is_new = False
        return new_queues

    def leave(self, poll: Poll) -> None:
        """Take a poll out of line, if it is in it."""
        self._new.pop(poll, None)
        for queue in poll.wish.queues:
            polls = self._parked.get(queue)
            if polls is not None and polls.pop(poll, 0) is None and not polls:
                del self._parked[queue]

    def hear(self, queue: str, count: int | None) -> None:
        """Note that a queue has new jobs; None when their number is not known."""
        if count is None:
            self._guess(queue, PROBE_JOBS)
        elif offer := self._heard(queue):
            offer.count += count

    def next_claim(self) -> Claim | None:
        """Take the polls of the next claim out of line: new ones, and parked ones that jobs are offered to.

        None when there are none, or when enough claims are under way.
        """
        free_sizes = {False, True} - {claim.is_large for claim in self._claims}
        if not free_sizes:
            return None
        claim = Claim(self._claim_count + 1)
        for poll in self._new:
            if poll.is_large in free_sizes and claim.has_room_for(poll) and not self._is_twin_claimed(poll):
                claim.add(poll)
        for queue in list(self._offers):
            self._offer(queue, claim, free_sizes)
        if not claim.polls:
            return None
        for poll in claim.polls:
            self.leave(poll)
        self._claim_count += 1
        self._claims[claim] = None
        return claim

    def _offer(self, queue: str, claim: Claim, free_sizes: Collection[bool]) -> None:
        """Add as many parked polls to a claim as there are jobs for them."""
        offer = self._offers[queue]
        offered = 0
        is_anybody_left = False
        for poll in self._parked.get(queue, ()):
            if offered >= offer.count:
                break
            if poll.is_large not in free_sizes or not claim.has_room_for(poll):
                is_anybody_left = True
                continue
            claim.add(poll)
            offered += poll.wish.max_jobs
            # One that waits for several queues may take its jobs from another.
            if not offer.is_exact or len(poll.wish.queues) > 1:
                claim.guesses[queue] = offered
        offer.count -= offered
        is_anybody_left = is_anybody_left or self._is_claimed_for(queue, offer.claim_number)
        if offer.count <= 0 or not is_anybody_left:
            del self._offers[queue]

    def end(self, claim: Claim) -> None:
        """Draw the conclusions from a claim whose polls are all answered, parked or in line again."""
        del self._claims[claim]
        emptied = {queue for poll in claim.unfilled for queue in poll.wish.queues}
        for queue in claim.guesses.keys() & {queue for poll in claim.filled for queue in poll.wish.queues}:
            if queue not in emptied:
                self._guess(queue, 2 * claim.guesses[queue])
        for poll in claim.unfilled:
            # What was heard of before this claim began is gone.
            offer = self._offers.get(poll.wish.queues[0])
            if len(poll.wish.queues) == 1 and offer is not None and offer.claim_number < claim.number:
                del self._offers[poll.wish.queues[0]]

    def _guess(self, queue: str, count: int) -> None:
        if offer := self._heard(queue):
            offer.count = max(offer.count, count)
            offer.is_exact = False

    def _heard(self, queue: str) -> Offer | None:
        """Return the offer of a queue that something is heard of; None when no poll may want it."""
        if queue not in self._parked and not self._is_claimed_for(queue, self._claim_count):
            return None
        offer = self._offers.setdefault(queue, Offer(0, is_exact=True, claim_number=0))
        offer.claim_number = self._claim_count
        return offer

    def _is_claimed_for(self, queue: str, claim_number: int) -> bool:
        """Tell whether a claim for a queue is under way that had begun with this number or before."""
        return any(claim.number <= claim_number and queue in claim.queues for claim in self._claims)

    def _is_twin_claimed(self, poll: Poll) -> bool:
        """Tell whether a claim is under way for the call that this one repeats: it waits for its grants."""
        request = poll.wish.request
        return request is not None and any(request.identity in claim.identities for claim in self._claims)
