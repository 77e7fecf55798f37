"""Tells parked polls that there is work: here at once, on other replicas through NOTIFY.

NOTIFY serialises commits, so it is sent after the commit, coalesced, and only for queues that some
replica is known to wait for. Three messages, each from a sender to all others:

    +a b      polls for queues a and b have begun to wait here (said again while they wait)
    !a =5 b   queue a has five new jobs, and b has work
    ?         who waits for what? (said after listening has begun)

A count behind the name of a queue says for how many polls there is something to do. No queue has such a
name, so a replica of a version that knew no counts passes it over.

No order of the two events loses a wake-up: either this replica knows of the waiter when its job
commits, or it learns of it afterwards, remembers that the queue had work lately, and says so then.
What a crash or a broken connection loses is found by the polls' fallback.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

from app.operations.context import Context
from app.operations.polls import Polls
from app.store import notifications

# While polls wait they are announced again; who has not been heard of for longer waits no more.
ANNOUNCE_SECONDS = 5.0
FORGET_SECONDS = 13.0
# How long a queue's work is remembered for a waiter that is announced late.
RECENT_SECONDS = 5.0


class Wakeups:
    """One per process; ``clock`` is monotonic seconds. Not thread-safe; lives in one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sender = secrets.token_hex(4)
        self._polls: Polls | None = None
        self._remote: dict[str, float] = {}
        self._recent: dict[str, float] = {}
        # What is to be said to the other replicas: queues that are waited for, queues with so many new
        # jobs (None: not known how many).
        self._waits: set[str] = set()
        self._work: dict[str, int | None] = {}
        self._asks = False
        self._has_mail = asyncio.Event()

    def attach(self, polls: Polls) -> None:
        """Name the polls that are woken; they and this object know each other."""
        self._polls = polls

    def jobs_ready(self, counts: Mapping[str, int]) -> None:
        """Wake polls for new work; after its commit."""
        now = self._clock()
        for queue, count in counts.items():
            if self._polls is not None:
                self._polls.wake(queue, count)
            if self._remote.get(queue, 0.0) > now:
                self._announce_work(queue, count)
            else:
                self._recent[queue] = now

    def announce_parked(self, queues: Iterable[str]) -> None:
        """Tell the other replicas that polls of this one wait for these queues."""
        self._waits.update(queues)
        if self._waits:
            self._has_mail.set()

    def announce_all(self) -> float:
        """Say again what is waited for; return the seconds until that is due again."""
        if self._polls is not None:
            self.announce_parked(self._polls.parked_queues())
        now = self._clock()
        self._remote = {queue: until for queue, until in self._remote.items() if until > now}
        self._recent = {queue: at for queue, at in self._recent.items() if at > now - RECENT_SECONDS}
        return ANNOUNCE_SECONDS

    def listening(self) -> None:
        """Catch up after the channel was opened: work may have been announced while nobody listened."""
        self._asks = True
        self.announce_all()
        self._has_mail.set()
        if self._polls is not None:
            self._polls.wake_all()

    def receive(self, message: str) -> None:
        """Take in one message; an unknown one is ignored (a newer replica may have said it)."""
        sender, _, text = message.partition(" ")
        if sender == self._sender:
            return
        mark, words = text[:1], text[1:].split()
        now = self._clock()
        if mark == "!" and self._polls is not None:
            for queue, count in _counted(words):
                self._polls.wake(queue, count)
        elif mark == "+":
            for queue in words:
                self._remote[queue] = now + FORGET_SECONDS
                if self._recent.pop(queue, 0.0) > now - RECENT_SECONDS:
                    self._announce_work(queue, None)
        elif mark == "?":
            self.announce_all()

    def _announce_work(self, queue: str, count: int | None) -> None:
        known = self._work.get(queue, 0)
        self._work[queue] = None if count is None or known is None else known + count
        self._has_mail.set()

    async def send(self, context: Context) -> None:
        """Wait for mail, then send all of it in one statement; what fails to be sent is dropped."""
        await self._has_mail.wait()
        self._has_mail.clear()
        messages = [f"{self._sender} ?"] if self._asks else []
        self._asks = False
        messages += notifications.split(f"{self._sender} +", sorted(self._waits))
        self._waits.clear()
        work = [
            queue if count is None else f"{queue} ={count}" for queue, count in sorted(self._work.items())
        ]
        messages += notifications.split(f"{self._sender} !", work)
        self._work.clear()
        if messages:
            async with context.database.one_statement() as conn:
                await notifications.notify(conn, messages)


def _counted(words: Iterable[str]) -> list[tuple[str, int | None]]:
    """Return the queues of a message with the counts that stand behind them."""
    counted: list[tuple[str, int | None]] = []
    for word in words:
        if not word.startswith("="):
            counted.append((word, None))
        elif counted and word[1:].isdecimal():
            counted[-1] = (counted[-1][0], int(word[1:]))
    return counted
