"""The desk in the worker's process: wishes of handlers, carried into the worker's own loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from fencepost import wire
from fencepost.answers import Answer
from fencepost.calls import Calls
from fencepost.conversations import Request, submission, submitted
from fencepost.errors import JobNotFound, LeaseLost, Problem, Unavailable, problem_of
from fencepost.heartbeats import Heartbeats
from fencepost.inbox import Inbox
from fencepost.jobs import NewJob, Submitted
from fencepost.leases import Lease

_TIMEOUT_SECONDS = 10.0

Meaning = TypeVar("Meaning")
Note = tuple[Lease, float | None, str | None]


class LocalDesk:
    """A Desk for any thread. ``lose`` is called for a lease that an answer says is over."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        heartbeats: Heartbeats,
        lose: Callable[[Lease, Problem], None],
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._heartbeats = heartbeats
        self._lose = lose
        self._notes: Inbox[Note] = Inbox(loop, lambda note: heartbeats.progress(*note))

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:
        """Note how far the handler is."""
        self._notes.put((lease, percent, message))

    def checkpoint(self, lease: Lease, text: str) -> "Future[None]":
        """Have a value stored by a heartbeat."""
        return self._begin(lease, self._heartbeats.checkpoint(lease, text))

    def verify(self, lease: Lease) -> "Future[None]":
        """Ask the service whether the lease is held."""
        return self._begin(lease, self._verify(lease))

    def submit(self, lease: Lease, job: NewJob) -> "Future[Submitted]":
        """Make a child job."""
        return self._begin(lease, self._submit(lease, job))

    def _begin(self, lease: Lease, asking: "Coroutine[Any, Any, Meaning]") -> "Future[Meaning]":
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:
            # The worker has ended, and has given back what this handler still works on.
            asking.close()
            raise lease.lost() from None

    async def _verify(self, lease: Lease) -> None:
        body = wire.bytes_of({"lease_version": lease.version})
        await self._ask(lease, Request("POST", f"/v1/jobs/{lease.job_id}/verify", body, wire.HEADERS))

    async def _submit(self, lease: Lease, job: NewJob) -> Submitted:
        return submitted(await self._ask(lease, submission(job)))

    async def _ask(self, lease: Lease, request: Request) -> Answer:
        """Repeat a call until it is answered or the lease is over; ask nothing under one that is."""
        if lease.phase != "running":
            raise lease.lost()
        try:
            answer = await self._calls.post(
                request.path,
                request.content,
                headers=request.headers,
                timeout_seconds=_TIMEOUT_SECONDS,
                while_true=lambda: lease.phase == "running",
            )
        except Unavailable as error:
            raise lease.lost() from error
        if answer.is_success:
            return answer
        problem = problem_of(answer)
        if isinstance(problem, LeaseLost | JobNotFound):
            self._lose(lease, problem)
        raise problem
