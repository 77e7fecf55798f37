"""Two connections that meet: one holds a lock, the other is seen to wait for it, or to pass it over."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from app.operations import patience
from app.store.engine import Database
from tests.support.waiting import DEADLINE_SECONDS

T = TypeVar("T")

_COUNT_LOCK_WAITS = text("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'
""")


async def until_waiting(database: Database, *, count: int = 1) -> None:
    """Return when ``count`` connections of this database wait for a lock; raise when they do not in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    async with database.one_statement() as conn:
        while (await conn.execute(_COUNT_LOCK_WAITS))[0][0] < count:
            assert time.monotonic() < deadline, f"nobody waits for a lock after {DEADLINE_SECONDS} s"
            await asyncio.sleep(0.002)


async def rival(database: Database, call: Coroutine[Any, Any, T], *, waits: bool = True) -> asyncio.Task[T]:
    """Start a call on another connection; return once it waits for a lock, or else is done."""
    task = asyncio.create_task(call)
    if waits:
        await until_waiting(database)
    else:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.wait([task])
    return task


class Pauses:
    """Tells when a verb has met a lease that is locked, and pauses until it asks again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = asyncio.Event()
        # None gives up because this process was held up.
        monkeypatch.setattr(patience, "MAX_SECONDS", 2 * DEADLINE_SECONDS)
        pause = patience._Patience.pause

        async def told(waiting: patience._Patience) -> None:
            self._begun.set()
            await pause(waiting)

        monkeypatch.setattr(patience._Patience, "pause", told)

    async def first_of(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call; return once it has met the lock."""
        self._begun.clear()
        task = asyncio.create_task(call)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._begun.wait()
        return task
