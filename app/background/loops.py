"""Which passes run, and how often. Every replica runs all of them; they take turns by row locks."""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from app.background.listener import Listener
from app.background.loop import Loop
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.finishes import Finishes
from app.operations.polls import Polls
from app.operations.server_clock import ServerClock
from app.operations.upkeep import KeyWalk, forget_keys, make_partitions, promote_jobs, prune, read_now
from app.operations.wakeups import Wakeups

# Another replica may schedule a job that is due sooner than all that this one knows of.
MAX_PROMOTER_PAUSE_SECONDS = 1.0
BUSY_PAUSE_SECONDS = 0.01
PRUNER_PAUSE_SECONDS = 60.0
# A pass that has just begun, and one after trouble, are still alive.
SILENCE_SECONDS = 15.0


class Loops:
    """The background of one process, and the ``Signals`` of its verbs."""

    def __init__(self, *, reaper_interval_seconds: float) -> None:
        self._reaper_interval_seconds = reaper_interval_seconds
        self.wakeups = Wakeups()
        self.finishes = Finishes()
        # Made by start, which asks the database first.
        self.clock: ServerClock
        self.loops: list[Loop] = []
        self._promoter: Loop | None = None
        self._key_walk = KeyWalk()

    def jobs_ready(self, counts: Mapping[str, int]) -> None:
        self.wakeups.jobs_ready(counts)

    def job_scheduled(self, due_in_seconds: float) -> None:
        if self._promoter is not None:
            self._promoter.wake_in(due_in_seconds)

    def jobs_finished(self, job_ids: Iterable[str]) -> None:
        self.finishes.jobs_finished(job_ids)

    async def start(self, context: Context, polls: Polls, listener: Listener) -> None:
        """Make the partitions that the first verb will need, read the clock, then start every loop."""
        self.wakeups.attach(polls)
        await make_partitions(context)
        self.clock = ServerClock(await read_now(context))
        silence = SILENCE_SECONDS + self._reaper_interval_seconds

        def loop(name: str, one_pass: Callable[[], Awaitable[float]], *, silence_seconds: float) -> Loop:
            return Loop(name, one_pass, silence_seconds=silence_seconds, clock=self.clock.now)

        self._promoter = loop("promoter", partial(self._promote, context), silence_seconds=SILENCE_SECONDS)
        self.loops = [
            loop("reaper", partial(self._reap, context), silence_seconds=silence),
            self._promoter,
            loop(
                "pruner",
                partial(self._prune, context),
                silence_seconds=PRUNER_PAUSE_SECONDS + SILENCE_SECONDS,
            ),
            loop("fallback", polls.fallback, silence_seconds=SILENCE_SECONDS),
            loop("finishes", partial(self.finishes.look, context), silence_seconds=SILENCE_SECONDS),
            loop("announcer", self._announce, silence_seconds=SILENCE_SECONDS),
            # These two wait for what may never come; their silence is no sign.
            loop("notifier", partial(self._notify, context), silence_seconds=float("inf")),
            loop("listener", listener.run, silence_seconds=float("inf")),
        ]
        for started in self.loops:
            started.start()

    async def stop(self) -> None:
        for loop in self.loops:
            await loop.stop()

    async def _reap(self, context: Context) -> float:
        await expire_leases(context)
        return self._reaper_interval_seconds * random.uniform(0.8, 1.0)

    async def _promote(self, context: Context) -> float:
        next_due = await promote_jobs(context)
        self.clock.observe(next_due.now)
        if next_due.due_in_seconds is None:
            return MAX_PROMOTER_PAUSE_SECONDS
        if next_due.due_in_seconds <= 0:
            # It is late, and another replica has it in hand.
            return BUSY_PAUSE_SECONDS
        return min(next_due.due_in_seconds, MAX_PROMOTER_PAUSE_SECONDS)

    async def _prune(self, context: Context) -> float:
        await make_partitions(context)
        if await forget_keys(context, self._key_walk):
            # The first walk of a process may be long; each step of it is a sign of life.
            return 0.0
        await prune(context)
        return PRUNER_PAUSE_SECONDS * random.uniform(0.8, 1.0)

    async def _announce(self) -> float:
        return self.wakeups.announce_all()

    async def _notify(self, context: Context) -> float:
        await self.wakeups.send(context)
        return 0.0
