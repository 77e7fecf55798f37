"""Parked readers of one job's end: told by this process, found by a poll when another one ended it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from app.operations.context import Context
from app.store import reads

POLL_SECONDS = 0.5


class Finishes:
    """Not thread-safe; lives in one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self.is_draining = False

    async def wait(
        self, job_id: str, *, wait_seconds: float, disconnected: Callable[[], Awaitable[object]]
    ) -> bool:
        """Return when the job may be finished, time is over, or at shutdown; False: the client has gone."""
        if self.is_draining:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, set()).add(future)
        watcher = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait((future, watcher), timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
            return not watcher.done()
        finally:
            watcher.cancel()
            futures = self._waiting.get(job_id, set())
            futures.discard(future)
            if not futures:
                self._waiting.pop(job_id, None)

    def jobs_finished(self, job_ids: Iterable[str]) -> None:
        """Wake the readers of these jobs."""
        for job_id in job_ids:
            for future in self._waiting.pop(job_id, ()):
                if not future.done():
                    future.set_result(None)

    def drain(self) -> None:
        """Wake every reader: shutdown."""
        self.is_draining = True
        self.jobs_finished(list(self._waiting))

    async def look(self, context: Context) -> float:
        """Look once whether another process ended a job that is waited for; return when to look again."""
        if not self._waiting:
            return POLL_SECONDS
        async with context.database.one_statement() as conn:
            self.jobs_finished(await reads.read_finished_ids(conn, list(self._waiting)))
        return POLL_SECONDS
