"""Parked lease calls.

A poll is registered before the claim that finds nothing for it, so there is no gap between "empty" and
"waiting" in which a job could go unnoticed. Claims run in tasks of their own, a few side by side: a client
that goes away cancels its request, never a claim. A parked poll is a future in memory; it holds no
connection and runs no task in the database.

    arrive ──▶ new ──claim──▶ granted                      (answered)
                 └─ nothing ──▶ parked ── wake ──claim──▶ granted
                                  ├─ wait over ──▶ empty answer
                                  ├─ client gone ──▶ dropped
                                  └─ drain (SIGTERM) ──▶ empty answer
"""

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

from app.domain.calls import LeaseRequest
from app.domain.errors import Unavailable
from app.domain.job import LeasedJob
from app.operations.context import Context
from app.operations.lease import (
    Grants,
    Wish,
    check_lease_request,
    give_back,
    lease_jobs,
    lease_jobs_once,
    request_id_reused,
)
from app.operations.line import Claim, Line, Poll
from app.store import backlogs

log = logging.getLogger(__name__)

# The safety net under LISTEN: every parked queue is looked at this often, less up to a fifth.
FALLBACK_SECONDS = 4.0
# A poll of several queues that lost its jobs to rivals looks again at once, this many times.
_CROWDED_ROUNDS = 5

Verb = Callable[[Context, Sequence[Wish]], Awaitable[Grants]]


class Polls:
    """All lease calls of this process.

    ``announce_parked`` is told of queues for which a poll has begun to wait, so that other replicas
    can be told. Not thread-safe; lives in one event loop.
    """

    def __init__(self, context: Context, *, announce_parked: Callable[[Iterable[str]], None]) -> None:
        self._context = context
        self._announce_parked = announce_parked
        self._line = Line()
        self._is_starting = False
        self._claims: set[asyncio.Task[None]] = set()
        self._by_request: dict[tuple[str, str], Poll] = {}
        self._givers: dict[asyncio.Task[None], Poll] = {}
        self.is_draining = False

    async def check(self, wish: Wish) -> None:
        """Raise InvalidRequest when a call with this request_id and another body waits or had jobs."""
        if wish.request is not None:
            self._earlier(wish.request)
            await check_lease_request(self._context, wish.request)

    async def lease(
        self, wish: Wish, *, wait_seconds: float, disconnected: Callable[[], Awaitable[object]]
    ) -> list[LeasedJob]:
        """Return what is granted, at the latest after ``wait_seconds`` (and a claim under way).

        ``disconnected`` returns when the client has gone; nothing is granted to it from then on, and
        what a claim under way has granted is given back.
        """
        await self._returned(wish.request)
        if self.is_draining:
            return []
        loop = asyncio.get_running_loop()
        poll = Poll(wish, wait_seconds, loop.create_future(), ends_at=loop.time() + wait_seconds)
        self._admit(poll)
        # A call that does not wait is answered by the claim under way; nobody needs to watch for it.
        watcher = asyncio.ensure_future(disconnected()) if wait_seconds > 0 else None
        if watcher is not None:
            watcher.add_done_callback(functools.partial(self._note_gone, poll))
        try:
            return await asyncio.shield(poll.answer)
        except asyncio.CancelledError:
            self._desert(poll)
            raise
        finally:
            if watcher is not None:
                watcher.cancel()

    def _note_gone(self, poll: Poll, watcher: asyncio.Future[object]) -> None:
        if not watcher.cancelled():
            self._desert(poll)

    def _desert(self, poll: Poll) -> None:
        """Note that the client has gone; what it was granted already is given back."""
        poll.is_gone = True
        self._end_wait(poll)
        if poll.is_replaced or not poll.answer.done() or poll.answer.exception():
            return
        if jobs := poll.answer.result():
            poll.answer = asyncio.get_running_loop().create_future()
            poll.answer.set_result([])
            self._give_back(poll, jobs)

    def parked_queues(self) -> list[str]:
        """Return the queues for which a poll of this process waits."""
        return self._line.parked_queues()

    def wake(self, queue: str, count: int | None) -> None:
        """Offer ``count`` new jobs of a queue to as many parked polls; None when it is not known."""
        self._line.hear(queue, count)
        self._kick()

    def wake_all(self) -> None:
        """Look for work for every parked poll: what may have been announced was not heard."""
        for queue in self.parked_queues():
            self.wake(queue, None)

    async def fallback(self) -> float:
        """Look for work that no wake-up told of; return the seconds until it is due again.

        One read for all parked polls: only queues that have work are claimed from.
        """
        if queues := self.parked_queues():
            async with self._context.database.one_statement() as conn:
                ready_queues = await backlogs.read_ready_queues(conn, queues)
            for queue in ready_queues:
                self.wake(queue, None)
        return FALLBACK_SECONDS * random.uniform(0.8, 1.0)

    def drain(self) -> None:
        """Answer every poll that waits, and refuse new ones an empty answer at once: shutdown."""
        self.is_draining = True
        for poll in self._line.polls():
            self._end_wait(poll)

    async def settled(self, *, timeout_seconds: float) -> bool:
        """Wait until no claim and no give-back is under way; False when that takes too long.

        Then the database is silent, and whatever it grants after all runs out.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while tasks := [*self._claims, *self._givers]:
                    await asyncio.wait(tasks)
        except TimeoutError:
            return False
        return True

    def _admit(self, poll: Poll) -> None:
        request = poll.wish.request
        if request is not None:
            earlier = self._earlier(request)
            if earlier is not None:
                # The caller repeats itself: its first connection is dead or about to be.
                earlier.is_replaced = True
                self._end_wait(earlier)
            self._by_request[request.identity] = poll
        self._line.arrive(poll)
        self._kick()

    def _earlier(self, request: LeaseRequest) -> Poll | None:
        """Return the poll that a request repeats; raise InvalidRequest when its body is another one."""
        earlier = self._by_request.get(request.identity)
        if earlier is not None and earlier.wish.request != request:
            raise request_id_reused()
        return earlier

    def _end_wait(self, poll: Poll) -> None:
        """Answer a poll with nothing, unless a claim for it is under way; then that answers it."""
        poll.is_over = True
        if poll in self._line:
            self._resolve(poll, [])

    def _resolve(self, poll: Poll, answer: list[LeasedJob] | Exception) -> None:
        self._line.leave(poll)
        request = poll.wish.request
        if request is not None and self._by_request.get(request.identity) is poll:
            del self._by_request[request.identity]
        if poll.timer is not None:
            poll.timer.cancel()
        if poll.answer.done():
            return
        if isinstance(answer, Exception):
            poll.answer.set_exception(answer)
            # The request may be gone; asyncio would report the refusal as never retrieved.
            poll.answer.exception()
        else:
            poll.answer.set_result(answer)

    def _kick(self) -> None:
        if not self._is_starting:
            # On the next turn of the loop, so that polls that arrive together share a claim.
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._is_starting = False
        while (claim := self._line.next_claim()) is not None:
            task = asyncio.create_task(self._serve(claim))
            self._claims.add(task)
            task.add_done_callback(self._claims.discard)

    async def _serve(self, claim: Claim) -> None:
        try:
            await self._serve_all(claim)
        finally:
            self._line.end(claim)
            self._kick()

    async def _serve_all(self, claim: Claim) -> None:
        for verb, polls in (
            (lease_jobs, [poll for poll in claim.polls if poll.wish.request is None]),
            (lease_jobs_once, [poll for poll in claim.polls if poll.wish.request is not None]),
        ):
            if polls:
                await self._serve_by(verb, claim, polls)

    async def _serve_by(self, verb: Verb, claim: Claim, polls: Sequence[Poll]) -> None:
        try:
            grants = await verb(self._context, [poll.wish for poll in polls])
        except Exception as error:  # noqa: BLE001 - a poll that is never answered would hang its client
            for poll in polls:
                self._refuse(poll, error)
            return
        for number, poll in enumerate(polls):
            if number in grants.refused:
                self._refuse(poll, grants.refused[number])
            elif number in grants.crowded and poll.crowded_count < _CROWDED_ROUNDS:
                # Rounds in which others of this claim were served are no sign of rivals.
                poll.crowded_count = 0 if grants.jobs else poll.crowded_count + 1
                self._line.arrive(poll)
            else:
                if number not in grants.repeated:
                    claim.note(poll, len(grants.jobs.get(number, [])))
                self._answer(poll, grants.jobs.get(number, []), is_repeat=number in grants.repeated)

    def _answer(self, poll: Poll, jobs: list[LeasedJob], *, is_repeat: bool) -> None:
        poll.crowded_count = 0
        if jobs and poll.is_gone and not poll.is_replaced:
            self._give_back(poll, jobs)
            self._resolve(poll, [])
        elif jobs or is_repeat or poll.is_over or poll.wait_seconds <= 0 or self.is_draining:
            self._resolve(poll, jobs)
        else:
            self._park(poll)

    def _park(self, poll: Poll) -> None:
        if new_queues := self._line.park(poll):
            self._announce_parked(new_queues)
        if poll.timer is None:
            poll.timer = asyncio.get_running_loop().call_at(poll.ends_at, self._end_wait, poll)

    def _refuse(self, poll: Poll, error: Exception) -> None:
        """Pass an error on; a poll that waits already outlasts a database in trouble."""
        if isinstance(error, Unavailable) and not (poll.is_new or poll.is_over or self.is_draining):
            self._park(poll)
        else:
            self._resolve(poll, error)

    async def _returned(self, request: LeaseRequest | None) -> None:
        """Wait until nothing that was granted under this request_id is on its way back.

        Else the repeat of a call could be handed leases that are about to be released.
        """
        if request is not None:
            returning = [task for task, poll in self._givers.items() if poll.wish.request == request]
            if returning:
                await asyncio.wait(returning)

    def _give_back(self, poll: Poll, jobs: list[LeasedJob]) -> None:
        task = asyncio.create_task(self._give_back_now(poll, jobs))
        self._givers[task] = poll
        task.add_done_callback(self._givers.pop)

    async def _give_back_now(self, poll: Poll, jobs: list[LeasedJob]) -> None:
        try:
            await give_back(self._context, poll.wish, jobs)
        except Unavailable:
            log.warning("could not give back %d leases of %s; they run out", len(jobs), poll.wish.worker_id)
