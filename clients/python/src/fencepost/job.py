"""The job in a handler's hands: ``Job`` for plain functions, ``AsyncJob`` for coroutines."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Protocol, TypeVar, Unpack

from fencepost import fence, wire
from fencepost.jobs import JobOptions, NewJob, Parent, Submitted
from fencepost.leases import Lease
from fencepost.outcomes import SETTLED, Settled
from fencepost.stops import Stop, Stopped

Answer = TypeVar("Answer")

# The contract's limit for a progress message.
_MESSAGE_CHARACTERS = 1_024


class Desk(Protocol):
    """Where a job's wishes go: to the worker's loop, from a thread of its process or from another process."""

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:
        """Note how far the handler is; the next heartbeat tells."""

    def checkpoint(self, lease: Lease, text: str) -> "Future[None]":
        """Have a value stored, given as JSON."""

    def verify(self, lease: Lease) -> "Future[None]":
        """Ask the service whether the lease is held."""

    def submit(self, lease: Lease, job: NewJob) -> "Future[Submitted]":
        """Make a job."""


class LeasedJob:
    """What both kinds of job have: the facts of the lease, and all that needs no waiting."""

    __slots__ = ("_desk", "_lease", "stop")

    def __init__(self, lease: Lease, desk: Desk) -> None:
        self._lease = lease
        self._desk = desk
        self.stop: Stop = lease.stop

    @property
    def id(self) -> str:
        """The job's id."""
        return self._lease.job_id

    @property
    def lease_version(self) -> int:
        """The fencing token. It belongs beside everything that the handler writes."""
        return self._lease.version

    @property
    def kind(self) -> str:
        """What is to be done."""
        kind: str = self._lease.facts["kind"]
        return kind

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        queue: str = self._lease.facts["queue"]
        return queue

    @property
    def payload(self) -> Any:
        """What the producer sent."""
        return self._lease.facts["payload"]

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        attempt: int = self._lease.facts["attempt"]
        return attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has."""
        max_attempts: int = self._lease.facts["max_attempts"]
        return max_attempts

    @property
    def checkpoint(self) -> Any:
        """The value that an earlier attempt stored last; None without one."""
        return self._lease.facts["checkpoint"]

    @property
    def previous(self) -> dict[str, Any] | None:
        """How the attempt before ended: ``attempt``, ``outcome``, ``error``; None on the first."""
        previous: dict[str, Any] | None = self._lease.facts["previous"]
        return previous

    @property
    def deadline_at(self) -> datetime | None:
        """When the attempt is taken away whatever the handler does; None without ``max_runtime_seconds``."""
        text: str | None = self._lease.facts["deadline_at"]
        return None if text is None else datetime.fromisoformat(text)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The producer's labels."""
        metadata: Mapping[str, str] = self._lease.facts["metadata"]
        return metadata

    @property
    def parent(self) -> Parent | None:
        """The lease that this job was made under."""
        parent: Parent | None = self._lease.facts["parent"]
        return parent

    @property
    def traceparent(self) -> str | None:
        """The trace that the producer was in."""
        traceparent: str | None = self._lease.facts["traceparent"]
        return traceparent

    @property
    def facts(self) -> Mapping[str, Any]:
        """All members of the leased job, as the contract has them."""
        return self._lease.facts

    def raise_if_stopped(self) -> None:
        """Raise Stopped when the handler has to stop."""
        reason = self.stop.reason
        if reason is not None:
            raise Stopped(reason)

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Tell that the handler gets on. Returns at once; a heartbeat carries the last word in a second."""
        if percent is not None:
            if not 0 <= percent <= 100:
                raise ValueError(f"percent is {percent}, not within 0 and 100")
            # A number of another library, or a Decimal, is no JSON.
            percent = float(percent)
        if message is not None:
            if not isinstance(message, str):
                raise TypeError(f"the message is {type(message).__name__}, not text")
            if len(message) > _MESSAGE_CHARACTERS:
                raise ValueError(f"the message has more than {_MESSAGE_CHARACTERS} characters")
        self._desk.progress(self._lease, percent, message)

    def idempotency_key(self, step: str) -> str:
        """Return a key for a call to somebody else, the same in every attempt of this job."""
        return f"{self.id}:{step}"

    def _child(self, name: str, kind: str, payload: object, options: JobOptions) -> NewJob:
        fenced: JobOptions = {
            "idempotency_key": self.idempotency_key(name),
            "parent": {"job_id": self.id, "lease_version": self.lease_version},
        }
        return NewJob(kind, payload, **(options | fenced))


class Job(LeasedJob):
    """A leased job, for handlers that are plain functions, in threads or processes."""

    __slots__ = ()

    def save_checkpoint(self, value: object) -> None:
        """Store a value for the next attempt; return when it is stored. Raises LeaseLost, Problem."""
        self._desk.checkpoint(self._lease, wire.text_of(value)).result()

    def verify(self) -> None:
        """Raise LeaseLost when the service says that the lease is over. It may be over a moment later."""
        self._desk.verify(self._lease).result()

    def submit(
        self, name: str, kind: str, payload: object = None, **options: Unpack[JobOptions]
    ) -> Submitted:
        """Make a child job, once for each name, and only while the lease is held. Raises LeaseLost."""
        return self._desk.submit(self._lease, self._child(name, kind, payload, options)).result()

    def hold_lease(self, connection: Any) -> None:
        """Lock the lease in the transaction of a DB-API connection or cursor on the service's PostgreSQL.

        Until it ends nobody else is granted the job. Raises LeaseLost.
        """
        fence.hold_lease(connection, self.id, self.lease_version)

    def complete(self, connection: Any, result: object = None) -> Settled:
        """Complete the job in the transaction of ``connection``; return SETTLED, for the handler to return.

        Raises LeaseLost.
        """
        fence.complete(connection, self.id, self.lease_version, result)
        return SETTLED


class AsyncJob(LeasedJob):
    """A leased job, for handlers that are coroutines. To stop one, its task is cancelled."""

    __slots__ = ()

    async def save_checkpoint(self, value: object) -> None:
        """Store a value for the next attempt; return when it is stored. Raises LeaseLost, Problem."""
        await self._answer(self._desk.checkpoint(self._lease, wire.text_of(value)))

    async def verify(self) -> None:
        """Raise LeaseLost when the service says that the lease is over. It may be over a moment later."""
        await self._answer(self._desk.verify(self._lease))

    async def submit(
        self, name: str, kind: str, payload: object = None, **options: Unpack[JobOptions]
    ) -> Submitted:
        """Make a child job, once for each name, and only while the lease is held. Raises LeaseLost."""
        child = self._child(name, kind, payload, options)
        return await self._answer(self._desk.submit(self._lease, child))

    async def hold_lease(self, connection: Any) -> None:
        """Lock the lease in the transaction of an asynchronous connection (psycopg, asyncpg).

        Until it ends nobody else is granted the job. Raises LeaseLost.
        """
        await fence.hold_lease_async(connection, self.id, self.lease_version)

    async def complete(self, connection: Any, result: object = None) -> Settled:
        """Complete the job in the transaction of ``connection``; return SETTLED, for the handler to return.

        Raises LeaseLost.
        """
        await fence.complete_async(connection, self.id, self.lease_version, result)
        return SETTLED

    async def _answer(self, future: "Future[Answer]") -> Answer:
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self.stop.reason != "lease_lost":
                raise
            # The loss has cancelled the task while it asked: the question says what has happened, and it is
            # enough.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise self._lease.lost() from None
