"""The leases that a worker holds, and the slots that they take."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from fencepost.errors import Problem, lease_lost
from fencepost.stops import LocalExpiry, Stop

Phase = Literal["running", "ending", "over"]


class Progress:
    """What a handler said last of how far it is."""

    __slots__ = ("message", "percent", "seq")

    def __init__(self, seq: int, percent: float | None, message: str | None) -> None:
        self.seq = seq
        self.percent = percent
        self.message = message


class Checkpoint:
    """A value that a handler wants stored, as JSON, and all who wait for it."""

    __slots__ = ("text", "waiters")

    def __init__(self, text: str, waiters: "list[asyncio.Future[None]]") -> None:
        self.text = text
        self.waiters = waiters


class Lease:
    """One grant of one job: the pair of id and version, its clock, and what is to be told of it.

    ``phase`` belongs to the worker's own loop: ``running`` while the handler may still send something,
    ``ending`` while its end is sent, ``over`` when there is nothing more to say, whether or not the handler
    still runs.
    """

    __slots__ = (
        "checkpoint",
        "deadline",
        "facts",
        "job_id",
        "loss",
        "phase",
        "progress",
        "renew_by",
        "seconds",
        "seq",
        "stop",
        "version",
    )

    def __init__(self, facts: Mapping[str, Any], *, stop: Stop, deadline: float, asked_at: float) -> None:
        self.facts = facts
        self.job_id: str = facts["id"]
        self.version: int = facts["lease_version"]
        self.seconds: float = facts["lease_seconds"]
        self.stop = stop
        self.deadline = deadline
        # Two thirds: one is left for repeating the heartbeat.
        self.renew_by = asked_at + self.seconds * 2 / 3
        self.phase: Phase = "running"
        self.loss: Problem | None = None
        self.seq = 0
        self.progress: Progress | None = None
        self.checkpoint: Checkpoint | None = None

    def lost(self) -> Problem:
        """Return how the lease was lost, for a handler that still asks something under it."""
        return self.loss or lease_lost(self.version, reason="expired", detail="the lease has run out")

    def renew(self, sent_at: float) -> None:
        """Count the lease from the moment when the call that renewed it was sent."""
        self.stop.expiry.value = min(sent_at + self.seconds, self.deadline)
        self.renew_by = sent_at + self.seconds * 2 / 3

    def note(self, percent: float | None, message: str | None) -> None:
        """Keep how far the handler is, for the next heartbeat."""
        self.seq += 1
        self.progress = Progress(self.seq, percent, message)

    def stored(self, checkpoint: Checkpoint) -> None:
        """Tell those who waited for this value. Who gave a newer one waits on."""
        for waiter in checkpoint.waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self.checkpoint is checkpoint:
            self.checkpoint = None

    def reject(self, problem: Exception) -> None:
        """Tell those who wait for a checkpoint that it will not be stored."""
        if self.checkpoint is None:
            return
        for waiter in self.checkpoint.waiters:
            if not waiter.done():
                waiter.set_exception(problem)
        self.checkpoint = None


def granted(facts: Mapping[str, Any], *, asked_at: float, server_time: str) -> Lease:
    """Return a lease as the lease call's answer has it; ``asked_at`` is when that call was first sent."""
    deadline = float("inf")
    if facts["deadline_at"] is not None:
        away = datetime.fromisoformat(facts["deadline_at"]) - datetime.fromisoformat(server_time)
        deadline = asked_at + away.total_seconds()
    expiry = LocalExpiry(min(asked_at + facts["lease_seconds"], deadline))
    return Lease(facts, stop=Stop(expiry), deadline=deadline, asked_at=asked_at)


class Leases:
    """The leases in hand. It belongs to the worker's own loop.

    A slot is taken from the grant until the end has been answered and the handler has returned.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._taken: set[Lease] = set()
        self._held: dict[str, Lease] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __iter__(self) -> Iterator[Lease]:
        """All leases that are held, by the newest version of each job."""
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        """How many slots are taken."""
        return len(self._taken)

    @property
    def taken(self) -> list[Lease]:
        """All leases whose slot is not free yet."""
        return list(self._taken)

    async def room(self) -> int:
        """Wait until a slot is free; return how many are."""
        await self._room.wait()
        return self._concurrency - len(self._taken)

    async def emptied(self) -> None:
        """Wait until all slots are free."""
        await self._empty.wait()

    def take(self, lease: Lease) -> Lease | None:
        """Hold a lease; return the one of the same job that is over by this grant."""
        before = self._held.get(lease.job_id)
        self._held[lease.job_id] = lease
        self._taken.add(lease)
        self._empty.clear()
        if len(self._taken) >= self._concurrency:
            self._room.clear()
        return before

    def drop(self, lease: Lease) -> None:
        """Hold a lease no longer; its slot is still taken."""
        if self._held.get(lease.job_id) is lease:
            del self._held[lease.job_id]

    def free(self, lease: Lease) -> None:
        """Give the slot back."""
        lease.phase = "over"
        self.drop(lease)
        self._taken.discard(lease)
        self._room.set()
        if not self._taken:
            self._empty.set()
