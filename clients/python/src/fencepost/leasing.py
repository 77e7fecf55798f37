"""Leasing: one call at a time, for as many jobs as there are free slots."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from fencepost import wire
from fencepost.calls import Calls
from fencepost.clock import now
from fencepost.errors import Unavailable, problem_of
from fencepost.leases import Lease, Leases, granted
from fencepost.pauses import Pauses

log = logging.getLogger("fencepost")

# Beside the wait: connecting, a busy server, the answer's way back.
_SPARE_SECONDS = 10.0
# An empty answer that comes at once, although the call may wait, must not make a loop of calls.
_EMPTY_SECONDS = 0.1


class Leasing:
    """The loop that leases. ``start`` gets the leases of an answer."""

    def __init__(
        self,
        calls: Calls,
        leases: Leases,
        start: Callable[[list[Lease]], None],
        *,
        worker_id: str,
        queues: Sequence[str],
        lease_seconds: float,
        wait_seconds: float,
    ) -> None:
        self._calls = calls
        self._leases = leases
        self._start = start
        self._lease_seconds = lease_seconds
        # The lease counts from before the call: at most a third of it may pass while the call waits.
        self._wait_seconds = min(wait_seconds, lease_seconds / 3)
        self._wish: dict[str, Any] = {
            "worker_id": worker_id,
            "queues": list(queues),
            "wait_seconds": self._wait_seconds,
            "lease_seconds": lease_seconds,
        }

    async def run(self) -> None:
        """Lease until it is cancelled; raise Problem when the set-up is refused."""
        pauses = Pauses()
        while True:
            await self._lease(await self._leases.room(), pauses)

    async def _lease(self, free: int, pauses: Pauses) -> None:
        asked_at = now()
        body = wire.bytes_of(self._wish | {"max_jobs": free, "request_id": uuid.uuid4().hex})
        try:
            answer = await self._calls.post(
                "/v1/leases",
                body,
                timeout_seconds=self._wait_seconds + _SPARE_SECONDS,
                while_true=lambda: now() < asked_at + self._lease_seconds,
                pauses=pauses,
            )
        except Unavailable:
            return
        if answer.status != 200:
            raise problem_of(answer)
        given = answer.members
        if given["jobs"]:
            self._start(
                [granted(each, asked_at=asked_at, server_time=given["server_time"]) for each in given["jobs"]]
            )
        else:
            await asyncio.sleep(max(answer.retry_after_seconds, asked_at + _EMPTY_SECONDS - now()))
