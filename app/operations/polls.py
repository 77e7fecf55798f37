"""Parked lease calls.

A poll is registered before the claim that finds nothing for it, so there is no gap between "empty" and
"waiting" in which a job could go unnoticed. Claims run one after the other in a task of their own: a
client that goes away cancels its request, never a claim. A parked poll is a future in memory; it holds
no connection and runs no task in the database.

    arrive ──▶ new ──claim──▶ granted                      (answered)
                 └─ nothing ──▶ parked ── wake ──claim──▶ granted
                                  ├─ wait over ──▶ empty answer
                                  ├─ client gone ──▶ dropped
                                  └─ drain (SIGTERM) ──▶ empty answer
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from app.domain.calls import LeaseRequest
from app.domain.errors import Unavailable
from app.domain.job import LeasedJob
from app.operations.context import Context
from app.operations.lease import Wish, give_back, lease_jobs, lease_jobs_once, request_id_reused

log = logging.getLogger(__name__)

# The safety net under LISTEN: every parked queue is looked at this often, less up to a fifth.
FALLBACK_SECONDS = 4.0
MAX_POLLS_A_CLAIM = 64
# A claim is one statement with a time limit; however many polls wait, it takes about so many jobs.
MAX_JOBS_A_CLAIM = 2000
# Of work whose amount is not known so much is offered first; where all of it is taken, there is more.
PROBE_JOBS = 8
# A poll of several queues that lost its jobs to rivals looks again at once, this many times.
_CROWDED_ROUNDS = 5


@dataclass(eq=False, slots=True)
class Poll:
    wish: Wish
    wait_seconds: float
    answer: asyncio.Future[list[LeasedJob]]
    is_new: bool = True
    is_over: bool = False
    is_gone: bool = False
    # A repeat of the call has come; whatever this one is granted is the repeat's.
    is_replaced: bool = False
    is_filled: bool = False
    crowded_count: int = 0
    timer: asyncio.TimerHandle | None = field(default=None)


class Polls:
    """All lease calls of this process.

    ``announce_parked`` is told of queues for which a poll has begun to wait, so that other replicas
    can be told. Not thread-safe; lives in one event loop.
    """

    def __init__(self, context: Context, *, announce_parked: Callable[[Iterable[str]], None]) -> None:
        self._context = context
        self._announce_parked = announce_parked
        self._new: dict[Poll, None] = {}
        self._parked: dict[str, dict[Poll, None]] = {}
        # Queues with work that has not been offered yet; None means that its amount is not known.
        self._fresh: dict[str, int | None] = {}
        # Queues of the claim under way whose amount of work is not known.
        self._probed: set[str] = set()
        self._by_request: dict[tuple[str, str], Poll] = {}
        self._claimer: asyncio.Task[None] | None = None
        self._givers: dict[asyncio.Task[None], Poll] = {}
        self.is_draining = False

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
        poll = Poll(wish, wait_seconds, asyncio.get_running_loop().create_future())
        self._admit(poll)
        # A call that does not wait is answered by the claim under way; nobody needs to watch for it.
        watcher = asyncio.ensure_future(disconnected()) if wait_seconds > 0 else None
        try:
            first = (poll.answer,) if watcher is None else (poll.answer, watcher)
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if watcher is not None and watcher.done():
                self._desert(poll)
            return await asyncio.shield(poll.answer)
        except asyncio.CancelledError:
            self._desert(poll)
            raise
        finally:
            if watcher is not None:
                watcher.cancel()

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
        return list(self._parked)

    def wake(self, queue: str, count: int | None) -> None:
        """Offer ``count`` new jobs of a queue to as many parked polls; None when it is not known."""
        if queue not in self._parked and self._claimer is None:
            return
        known = self._fresh.get(queue, 0)
        self._fresh[queue] = None if count is None or known is None else known + count
        self._kick()

    def wake_all(self) -> None:
        """Look for work for every parked poll: what may have been announced was not heard."""
        for queue in self._parked:
            self.wake(queue, None)

    async def fallback(self) -> float:
        """Look for work that no wake-up told of; return the seconds until it is due again."""
        self.wake_all()
        return FALLBACK_SECONDS * random.uniform(0.8, 1.0)

    def drain(self) -> None:
        """Answer every poll that waits, and refuse new ones an empty answer at once: shutdown."""
        self.is_draining = True
        for poll in [*self._new, *(poll for polls in self._parked.values() for poll in polls)]:
            self._end_wait(poll)

    async def settled(self, *, timeout_seconds: float) -> bool:
        """Wait until no claim and no give-back is under way; False when that takes too long.

        Then the database is silent, and whatever it grants after all runs out.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while tasks := [task for task in (self._claimer, *self._givers) if task is not None]:
                    await asyncio.wait(tasks)
        except TimeoutError:
            return False
        return True

    def _admit(self, poll: Poll) -> None:
        request = poll.wish.request
        if request is not None:
            identity = (request.worker_id, request.request_id)
            earlier = self._by_request.get(identity)
            if earlier is not None:
                if earlier.wish.request != request:
                    raise request_id_reused()
                # The caller repeats itself: its first connection is dead or about to be.
                earlier.is_replaced = True
                self._end_wait(earlier)
            self._by_request[identity] = poll
        self._new[poll] = None
        if poll.wait_seconds > 0:
            loop = asyncio.get_running_loop()
            poll.timer = loop.call_later(poll.wait_seconds, self._end_wait, poll)
        self._kick()

    def _end_wait(self, poll: Poll) -> None:
        """Answer a poll with nothing, unless a claim for it is under way; then that answers it."""
        poll.is_over = True
        if poll in self._new or any(poll in self._parked.get(queue, ()) for queue in poll.wish.queues):
            self._resolve(poll, [])

    def _resolve(self, poll: Poll, answer: list[LeasedJob] | Exception) -> None:
        self._leave(poll)
        request = poll.wish.request
        if request is not None and self._by_request.get((request.worker_id, request.request_id)) is poll:
            del self._by_request[request.worker_id, request.request_id]
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

    def _leave(self, poll: Poll) -> None:
        self._new.pop(poll, None)
        for queue in poll.wish.queues:
            polls = self._parked.get(queue)
            if polls is not None and polls.pop(poll, 0) is None and not polls:
                del self._parked[queue]

    def _kick(self) -> None:
        if self._claimer is None:
            self._claimer = asyncio.create_task(self._claim_all())

    async def _claim_all(self) -> None:
        try:
            # One turn, so that polls that arrive together share the first claim too.
            await asyncio.sleep(0)
            while polls := self._next_claim():
                await self._claim(polls)
        finally:
            self._claimer = None

    def _next_claim(self) -> list[Poll]:
        """Take the polls of the next claim out of line: new ones, and parked ones with fresh work."""
        chosen: dict[Poll, None] = {}
        job_count = 0
        for poll in list(self._new)[:MAX_POLLS_A_CLAIM]:
            job_count += poll.wish.max_jobs
            if chosen and job_count > MAX_JOBS_A_CLAIM:
                break
            chosen[poll] = None
        for queue in list(self._fresh):
            if len(chosen) >= MAX_POLLS_A_CLAIM:
                break
            count = self._fresh.pop(queue)
            offered = 0
            if count is None or any(len(poll.wish.queues) > 1 for poll in self._parked.get(queue, ())):
                # One poll may be chosen for two queues, or take from another one than it was offered.
                self._probed.add(queue)
            for poll in self._parked.get(queue, ()):
                if (count is not None and offered >= count) or (count is None and offered >= PROBE_JOBS):
                    break
                job_count += poll.wish.max_jobs
                if len(chosen) >= MAX_POLLS_A_CLAIM or (chosen and job_count > MAX_JOBS_A_CLAIM):
                    # The rest is offered with the next claim, if anybody is left to take it.
                    self._fresh[queue] = None if count is None else count - offered
                    break
                chosen[poll] = None
                offered += poll.wish.max_jobs
        for poll in chosen:
            self._leave(poll)
        return list(chosen)

    async def _claim(self, polls: list[Poll]) -> None:
        plain = [poll for poll in polls if poll.wish.request is None]
        if plain:
            await self._claim_together(plain)
        for poll in polls:
            if poll.wish.request is not None:
                try:
                    self._answer(poll, await lease_jobs_once(self._context, poll.wish))
                except Exception as error:  # noqa: BLE001 - a poll that is never answered would hang its client
                    self._refuse(poll, error)
        self._look_again(polls)

    async def _claim_together(self, polls: list[Poll]) -> None:
        try:
            grants = await lease_jobs(self._context, [poll.wish for poll in polls])
        except Exception as error:  # noqa: BLE001 - as in _claim
            for poll in polls:
                self._refuse(poll, error)
            return
        for number, poll in enumerate(polls):
            if number in grants.crowded and poll.crowded_count < _CROWDED_ROUNDS:
                # Rounds in which others of this claim were served are no sign of rivals.
                poll.crowded_count = 0 if grants.jobs else poll.crowded_count + 1
                self._new[poll] = None
            else:
                self._answer(poll, grants.jobs.get(number, []))

    def _look_again(self, polls: list[Poll]) -> None:
        """Where every poll of a probed queue was filled there may be more, and more may be waiting for it."""
        for queue in self._probed & self._parked.keys():
            if all(poll.is_filled for poll in polls if queue in poll.wish.queues):
                self._fresh[queue] = None
        self._probed.clear()

    def _answer(self, poll: Poll, jobs: list[LeasedJob]) -> None:
        poll.crowded_count = 0
        poll.is_filled = len(jobs) == poll.wish.max_jobs
        if jobs and poll.is_gone and not poll.is_replaced:
            self._give_back(poll, jobs)
            self._resolve(poll, [])
        elif jobs or poll.is_over or poll.wait_seconds <= 0 or self.is_draining:
            self._resolve(poll, jobs)
        else:
            self._park(poll)

    def _park(self, poll: Poll) -> None:
        new_queues = [queue for queue in poll.wish.queues if queue not in self._parked]
        for queue in poll.wish.queues:
            self._parked.setdefault(queue, {})[poll] = None
        if new_queues:
            self._announce_parked(new_queues)
        poll.is_new = False

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
