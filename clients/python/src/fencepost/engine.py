"""One run of a worker: its loops put together, and the way down.

    Leasing ──leases──▶ Runs ──ends──▶ Ends
                         │  ▲
                 wishes  ▼  │ stop
                      Heartbeats

All of it runs in one event loop where no handler does.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import get_args

import httpx

from fencepost import wire
from fencepost.calls import Calls
from fencepost.desk import LocalDesk
from fencepost.ends import Ends, log_lost
from fencepost.errors import Problem, lease_lost
from fencepost.handlers import Handlers
from fencepost.heartbeats import Heartbeats
from fencepost.inbox import Inbox
from fencepost.leases import Lease, Leases
from fencepost.leasing import Leasing
from fencepost.outcomes import Release, Verb, end_of
from fencepost.runs import Ended, Runs
from fencepost.stops import StopReason

log = logging.getLogger("fencepost")

# For the calls that are made once, when the grace is over.
_LAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was made with."""

    queues: tuple[str, ...]
    concurrency: int
    lease_seconds: float
    wait_seconds: float
    drain_seconds: float
    grace_seconds: float


class Engine:
    """A worker that runs. Made in the loop that it is to run in."""

    def __init__(
        self,
        options: Options,
        handlers: Handlers,
        http: httpx.AsyncClient,
        *,
        worker_id: str,
        handlers_loop: asyncio.AbstractEventLoop,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._options = options
        self._worker_id = worker_id
        self._calls = Calls(http)
        self._leases = Leases(options.concurrency)
        self._ends = Ends(self._calls, self._leases)
        self._heartbeats = Heartbeats(
            self._calls, self._leases, lease_seconds=options.lease_seconds, lose=self._lose, tell=self._tell
        )
        desk = LocalDesk(loop, self._calls, self._heartbeats, self._lose)
        ended = Inbox(loop, self._ended)
        self._runs = Runs(
            handlers, desk, ended.put_all, loop=handlers_loop, grace_seconds=options.grace_seconds
        )
        self._leasing = Leasing(
            self._calls,
            self._leases,
            self._start,
            worker_id=worker_id,
            queues=options.queues,
            lease_seconds=options.lease_seconds,
            wait_seconds=options.wait_seconds,
        )
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self, count: int) -> None:
        """Shut down when it has been told to; told twice, do not wait for the handlers."""
        if count > 0:
            self._stopping.set()
        if count > 1:
            self._hurry.set()

    async def run(self) -> None:
        """Work until ``stop``, then shut down in order; raise Problem when the set-up is refused."""
        refusal: Problem | None = None
        async with asyncio.TaskGroup() as group:
            loops = [self._heartbeats.run(), self._heartbeats.watch(), *map(self._ends.run, get_args(Verb))]
            tasks = [group.create_task(each) for each in loops]
            try:
                refusal = await self._work()
            finally:
                await self._drain()
                for task in tasks:
                    task.cancel()
                self._runs.close()
        if refusal is not None:
            raise refusal

    async def _work(self) -> Problem | None:
        """Lease until ``stop``, or until the set-up is refused: return the refusal."""
        leasing = asyncio.create_task(self._leasing.run())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([leasing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if leasing.done():
                leasing.result()
        except Problem as problem:
            # The sentence says it; where in the client it was found helps nobody.
            log.error("the set-up of this worker is refused: %s", problem)  # noqa: TRY400
            return problem
        finally:
            stopping.cancel()
            leasing.cancel()
            await asyncio.wait([leasing, stopping])
        return None

    async def _drain(self) -> None:
        """Go down as the protocol says: let handlers end, then tell them to, then give back what is left."""
        options = self._options
        log.info("shutting down; %d jobs are in hand", len(self._leases.taken))
        hurry = asyncio.create_task(self._hurry.wait())
        emptied = asyncio.create_task(self._leases.emptied())
        await asyncio.wait(
            [hurry, emptied], timeout=options.drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        if not emptied.done():
            for lease in self._leases.taken:
                self._tell(lease, "shutdown")
            await asyncio.wait([emptied], timeout=options.grace_seconds)
        emptied.cancel()
        await self._give_back()
        log.info("shut down; %d handlers have not stopped", len(self._leases.taken))

    async def _give_back(self) -> None:
        """Release what no handler has ended, and what came with an answer that was never read."""
        left = [lease for lease in self._leases.taken if lease.phase == "running"]
        known = {(lease.job_id, lease.version) for lease in self._leases.taken}
        for lease in left:
            lease.phase = "over"
        release = Release(reason="shutdown")
        ends = [end_of(lease.job_id, lease.version, release) for lease in left]
        answer = await self._calls.once(
            "GET", "/v1/leases", timeout_seconds=_LAST_SECONDS, params={"worker_id": self._worker_id}
        )
        if answer is not None and answer.status == 200:
            held = [(each["job_id"], each["lease_version"]) for each in answer.members["leases"]]
            ends += [end_of(*pair, release) for pair in held if pair not in known]
        if ends:
            body = wire.many([end.text for end in ends])
            await self._calls.once("POST", "/v1/leases/release", content=body, timeout_seconds=_LAST_SECONDS)

    def _start(self, granted: list[Lease]) -> None:
        for lease in granted:
            before = self._leases.take(lease)
            if before is not None:
                detail = "the job was granted again"
                self._lose(before, lease_lost(before.version, reason="expired", detail=detail))
            self._heartbeats.bring_forward(lease.renew_by)
        self._runs.start(granted)

    def _ended(self, ended: Ended) -> None:
        lease, end = ended
        if lease.phase == "running" and end is not None:
            lease.phase = "ending"
            self._ends.add(lease, end)
        else:
            if lease.stop.reason == "lease_lost":
                # The handler saw it before the watch did.
                self._lose(lease, lease.lost())
            self._leases.free(lease)

    def _lose(self, lease: Lease, problem: Problem) -> None:
        """Stop the handler of a lease that is over. An end under way is still sent: the service decides."""
        self._leases.drop(lease)
        if lease.phase != "running":
            return
        lease.phase = "over"
        lease.loss = problem
        log_lost(lease, problem)
        lease.reject(problem)
        self._runs.stop(lease, "lease_lost")

    def _tell(self, lease: Lease, reason: StopReason) -> None:
        if lease.phase == "running" and lease.stop.reason is None:
            self._runs.stop(lease, reason)
