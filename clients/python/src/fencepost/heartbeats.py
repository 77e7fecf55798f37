"""Heartbeats: one call for all leases that are held, beside the handlers."""

import asyncio
import json
import logging
import random
import re
from collections.abc import Callable
from typing import Any

from fencepost import wire
from fencepost.answers import Answer
from fencepost.calls import Calls
from fencepost.clock import now
from fencepost.errors import Problem, lease_lost, problem_from, problem_of
from fencepost.leases import Checkpoint, Lease, Leases, Progress
from fencepost.pauses import Pauses, is_weather
from fencepost.stops import StopReason

log = logging.getLogger("fencepost")

# Progress is told within this time; a checkpoint at once.
_PROGRESS_SECONDS = 1.0
# Timers stand still while the machine sleeps, so none runs for longer; the clock of the leases does not.
_LOOK_SECONDS = 0.5
# Well below the service's limit for the body of a call for many.
_CHECKPOINT_CHARACTERS = 4 << 20
_ITEM = re.compile(r"/items/(\d+)(/|$)")

Item = tuple[Lease, Progress | None, Checkpoint | None]
Lose = Callable[[Lease, Problem], None]


class Heartbeats:
    """The loop that renews leases. ``lose`` is called for those that are over, ``tell`` for those to stop."""

    def __init__(
        self,
        calls: Calls,
        leases: Leases,
        *,
        lease_seconds: float,
        lose: Lose,
        tell: Callable[[Lease, StopReason], None],
    ) -> None:
        self._calls = calls
        self._leases = leases
        self._third = lease_seconds / 3
        self._lose = lose
        self._tell = tell
        self._news_at = float("inf")
        self._wake = asyncio.Event()

    def bring_forward(self, at: float) -> None:
        """Send a heartbeat at ``at`` for those leases that have something to tell or are in need."""
        if at < self._news_at:
            self._news_at = at
            self._wake.set()

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:
        """Let the next heartbeat carry how far a handler is."""
        lease.note(percent, message)
        self.bring_forward(now() + _PROGRESS_SECONDS)

    async def checkpoint(self, lease: Lease, text: str) -> None:
        """Have a value stored; raises LeaseLost, or the Problem that the service has with it."""
        if lease.phase != "running":
            raise lease.lost()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = lease.checkpoint.waiters if lease.checkpoint is not None else []
        lease.checkpoint = Checkpoint(text, [*waiters, stored])
        self.bring_forward(now())
        await stored

    async def watch(self) -> None:
        """Lose the leases whose time has run out, until it is cancelled."""
        while True:
            soonest = now() + _LOOK_SECONDS
            for lease in self._leases:
                if lease.phase != "running":
                    continue
                if lease.stop.reason == "lease_lost":
                    detail = "no heartbeat was answered in time"
                    self._lose(lease, lease_lost(lease.version, reason="expired", detail=detail))
                else:
                    soonest = min(soonest, lease.stop.expiry.value)
            await asyncio.sleep(max(0.0, soonest - now()))

    async def run(self) -> None:
        """Send heartbeats until it is cancelled."""
        pauses = Pauses()
        all_at = self._after_a_third()
        while True:
            await self._sleep_until(all_at)
            started_at = now()
            is_for_all = started_at >= all_at
            self._news_at = float("inf")
            leases = [lease for lease in self._leases if is_for_all or _has_news(lease, started_at)]
            if leases and not await self._beat(leases, started_at, pauses):
                # Built anew: what has ended meanwhile is no longer held, what has been said meanwhile is
                # newer.
                all_at = now()
                continue
            if is_for_all:
                all_at = self._after_a_third()
            for lease in self._leases:
                self.bring_forward(lease.renew_by)

    def _after_a_third(self) -> float:
        return now() + self._third * random.uniform(0.9, 1.0)

    async def _sleep_until(self, all_at: float) -> None:
        while True:
            left = min(all_at, self._news_at) - now()
            if left <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _beat(self, leases: list[Lease], sent_at: float, pauses: Pauses) -> bool:
        """Send one heartbeat; False: it is to be sent again, and the pause before that is over."""
        carried = self._load(leases)
        items = [_item(*each) for each in carried]
        answer = await self._calls.once(
            "POST", "/v1/leases/heartbeat", content=wire.many(items), timeout_seconds=self._third
        )
        if answer is not None and answer.status == 200:
            for each, result in zip(carried, answer.members["results"], strict=True):
                self._answered(*each, result, sent_at)
            pauses.reset()
            return True
        if answer is not None and not is_weather(answer):
            self._refused(answer, leases)
        await asyncio.sleep(pauses.next(answer))
        return False

    def _load(self, leases: list[Lease]) -> list[Item]:
        """Return what a heartbeat carries; checkpoints that do not fit wait for the next."""
        carried: list[Item] = []
        room = _CHECKPOINT_CHARACTERS
        for lease in leases:
            checkpoint = lease.checkpoint
            if checkpoint is not None:
                # The first one goes whatever its size: its refusal has to be its own.
                if len(checkpoint.text) > room and room < _CHECKPOINT_CHARACTERS:
                    checkpoint = None
                    self.bring_forward(now())
                else:
                    room -= len(checkpoint.text)
            carried.append((lease, lease.progress, checkpoint))
        return carried

    def _answered(
        self,
        lease: Lease,
        progress: Progress | None,
        checkpoint: Checkpoint | None,
        result: dict[str, Any],
        sent_at: float,
    ) -> None:
        if result["status"] != "ok":
            self._lose(lease, problem_from(409, {"code": "lease_lost", **result}))
            return
        lease.renew(sent_at)
        if lease.progress is progress:
            lease.progress = None
        if checkpoint is not None:
            lease.stored(checkpoint)
        if result["cancel_requested"]:
            self._tell(lease, "cancelled")

    def _refused(self, answer: Answer, leases: list[Lease]) -> None:
        """Take the progress or checkpoint that was refused away from who gave it."""
        problem = problem_of(answer)
        if answer.status not in (400, 413, 422):
            log.error("heartbeats are refused: %s", problem)
            return
        named = {
            int(found[1]) for error in problem.errors if (found := _ITEM.match(str(error.get("pointer"))))
        }
        to_blame = [leases[number] for number in sorted(named) if number < len(leases)] or leases
        if not any(_has_news(lease, 0.0) for lease in to_blame):
            log.error("heartbeats are refused: %s", problem)
        for lease in to_blame:
            if lease.progress is not None or lease.checkpoint is not None:
                log.warning("progress or checkpoint of job %s is refused: %s", lease.job_id, problem)
            lease.progress = None
            lease.reject(problem)


def _has_news(lease: Lease, at: float) -> bool:
    return lease.progress is not None or lease.checkpoint is not None or lease.renew_by <= at


def _item(lease: Lease, progress: Progress | None, checkpoint: Checkpoint | None) -> str:
    text = f'{{"job_id":"{lease.job_id}","lease_version":{lease.version}'
    if progress is not None:
        members = {"seq": progress.seq, "percent": progress.percent, "message": progress.message}
        said = {name: value for name, value in members.items() if value is not None}
        text += f',"progress":{json.dumps(said)}'
    if checkpoint is not None:
        text += f',"checkpoint":{checkpoint.text}'
    return text + "}"
