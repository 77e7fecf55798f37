"""Ends of attempts: gathered while a call is under way, and sent in one call for many."""

import asyncio
import logging
from collections import deque
from typing import Any, get_args

from fencepost import wire
from fencepost.calls import Calls
from fencepost.errors import Problem, problem_from, problem_of
from fencepost.leases import Lease, Leases
from fencepost.outcomes import End, Verb, reduced

log = logging.getLogger("fencepost")

_TIMEOUT_SECONDS = 30.0
_ITEMS = 250
# Jobs that were leased together and are short end together, one after the other in their threads. One job
# alone does not wait.
_GATHER_SECONDS = 0.001
# Well below the service's limit for the body of a call for many.
_CHARACTERS = 4 << 20
# Results, or a refusal of what was sent. A key that is wrong is for the lease call to tell.
_ANSWERS = (200, 400, 413, 422)

Batch = list[tuple[Lease, End]]


class Ends:
    """The ends that are to be sent. A lease's slot is freed when its end has been answered."""

    def __init__(self, calls: Calls, leases: Leases) -> None:
        self._calls = calls
        self._leases = leases
        self._queues: dict[Verb, deque[tuple[Lease, End]]] = {verb: deque() for verb in get_args(Verb)}
        self._wakes: dict[Verb, asyncio.Event] = {verb: asyncio.Event() for verb in self._queues}

    def add(self, lease: Lease, end: End) -> None:
        """Send an end as soon as the call before it is answered."""
        self._queues[end.verb].append((lease, end))
        self._wakes[end.verb].set()

    async def run(self, verb: Verb) -> None:
        """Send the ends of one verb until it is cancelled."""
        queue, wake = self._queues[verb], self._wakes[verb]
        while True:
            await wake.wait()
            wake.clear()
            if len(self._leases) > 1:
                await asyncio.sleep(_GATHER_SECONDS)
            while queue:
                await self._send(verb, _taken_from(queue))

    async def _send(self, verb: Verb, batch: Batch) -> None:
        body = wire.many([end.text for _, end in batch])
        answer = await self._calls.post(
            f"/v1/leases/{verb}", body, timeout_seconds=_TIMEOUT_SECONDS, accepted=_ANSWERS
        )
        if answer.status == 200:
            for (lease, _), result in zip(batch, answer.members["results"], strict=True):
                self._answered(lease, result)
        elif len(batch) > 1:
            # One of them is to blame.
            for item in batch:
                await self._send(verb, [item])
        else:
            self._refused(*batch[0], problem_of(answer))

    def _answered(self, lease: Lease, result: dict[str, Any]) -> None:
        if result["status"] not in ("ok", "replayed"):
            log_lost(lease, problem_from(409, {"code": "lease_lost", **result}))
        self._leases.free(lease)

    def _refused(self, lease: Lease, end: End, problem: Problem) -> None:
        log.error("the end of job %s is refused: %s", lease.job_id, problem)
        lesser = reduced(end, problem.detail)
        if lesser == end:
            log.error("nothing is left to send for job %s, its lease runs out", lease.job_id)
            self._leases.free(lease)
        else:
            self.add(lease, lesser)


def log_lost(lease: Lease, problem: Problem) -> None:
    """Say that a lease is over, and why."""
    reason = problem.members.get("reason", problem.members.get("status", "unknown"))
    log.warning("lease lost: job %s, version %d (%s)", lease.job_id, lease.version, reason)


def _taken_from(queue: deque[tuple[Lease, End]]) -> Batch:
    batch, room = [queue.popleft()], _CHARACTERS
    room -= len(batch[0][1].text)
    while queue and len(batch) < _ITEMS and len(queue[0][1].text) <= room:
        room -= len(queue[0][1].text)
        batch.append(queue.popleft())
    return batch
