"""A supervised loop: it survives what its pass raises, says so once, and reports when it last succeeded."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.errors import Unavailable

log = logging.getLogger(__name__)

MIN_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 3.0


class Loop:
    """Runs ``one_pass`` until stopped; the pass returns the seconds until its next turn.

    ``silence_seconds`` is how long it may go without a success and still count as alive; ``clock`` tells
    when it succeeded last, for a person.
    """

    def __init__(
        self,
        name: str,
        one_pass: Callable[[], Awaitable[float]],
        *,
        silence_seconds: float,
        clock: Callable[[], datetime],
    ) -> None:
        self.name = name
        self.silence_seconds = silence_seconds
        self.last_success_at: datetime | None = None
        self._one_pass = one_pass
        self._clock = clock
        self._succeeded_at = time.monotonic()
        self._wake = asyncio.Event()
        self._wake_by = float("inf")
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def is_alive(self) -> bool:
        return (
            self._task is not None
            and not self._task.done()
            # A loop whose silence says nothing has none to break.
            and (self.last_success_at is not None or self.silence_seconds == float("inf"))
            and time.monotonic() - self._succeeded_at < self.silence_seconds
        )

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"loop {self.name}")

    async def stop(self) -> None:
        """End the loop, a pass under way included; its transaction is rolled back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake_in(self, seconds: float) -> None:
        """Have the next turn in ``seconds`` at the latest."""
        self._wake_by = min(self._wake_by, time.monotonic() + max(seconds, 0.0))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            # Before the pass: what is asked for while it runs is another turn.
            self._wake_by = float("inf")
            await self._sleep(await self._turn())

    async def _turn(self) -> float:
        try:
            pause_seconds = await self._one_pass()
        except Exception as error:  # noqa: BLE001 - a loop that dies takes its work with it, unnoticed
            return self._failed(error)
        if self._failures:
            log.warning("loop %s works again; it failed %d times", self.name, self._failures)
        self._failures = 0
        self._succeeded_at = time.monotonic()
        self.last_success_at = self._clock()
        return pause_seconds

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        if isinstance(error, (Unavailable, ConnectionError)):
            if self._failures == 1:
                log.warning("loop %s goes on trying: %s", self.name, error)
        else:
            log.error("loop %s failed", self.name, exc_info=error)
        ceiling = min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(self._failures, 10))
        return ceiling * random.uniform(0.5, 1.0)

    async def _sleep(self, pause_seconds: float) -> None:
        deadline = time.monotonic() + pause_seconds
        while (left := min(deadline, self._wake_by) - time.monotonic()) > 0:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return
