"""Join single calls that arrive while a statement is in flight into the next one.

No timer and no added wait: an idle service runs each call at once, a busy one runs them by the dozen,
because they queue up behind the statements in flight. An answer still means committed.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from app.domain.errors import FencepostError, Unavailable
from app.operations.patience import patiently

# A statement has a time limit; so much of opaque JSON is written well within it.
MAX_WEIGHT_BYTES = 8 * 1024 * 1024
# A flush that takes longer waits for something, such as a lock on one of its rows.
SLOW_SECONDS = 0.1

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Coalescer(Generic[Item, Answer]):
    """Runs ``flush`` over what has queued up; one caller's error is never another's.

    ``flush`` answers item by item, in order, refusals as values. When it raises, nothing of that flush
    was committed: an unavailable database is everybody's answer, anything else is found by running
    the items one by one. ``weigh`` tells the bytes of an item where they can be many. ``max_slow`` flushes
    that are slow are not counted among those in flight, so that others need not wait with them.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | FencepostError]]],
        *,
        weigh: Callable[[Item], int] = lambda _: 0,
        max_items: int = 500,
        max_in_flight: int = 2,
        max_slow: int = 0,
    ) -> None:
        self._weigh = weigh
        self._flush = flush
        self._max_items = max_items
        self._max_in_flight = max_in_flight
        self._queue: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._max_slow = max_slow
        self._in_flight: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._is_starting = False

    async def submit(self, item: Item) -> Answer:
        """Return the item's answer, or raise its refusal; one that is busy is asked for again."""
        return await patiently(functools.partial(self._submit, item))

    async def _submit(self, item: Item) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._queue.append((item, future))
        if not self._is_starting and len(self._in_flight) < self._max_in_flight:
            # On the next turn of the loop, so that calls of one turn share a statement.
            self._is_starting = True
            loop.call_soon(self._start)
        try:
            return await future
        finally:
            # A refusal holds this frame by its traceback; so it must not hold the refusal.
            del future

    def _start(self) -> None:
        self._is_starting = False
        while len(self._in_flight) < self._max_in_flight and (batch := self._next_batch()):
            task = asyncio.create_task(self._run(batch))
            self._in_flight.add(task)
            task.add_done_callback(self._finished)
            if self._max_slow:
                asyncio.get_running_loop().call_later(SLOW_SECONDS, self._make_room, task)

    def _make_room(self, task: asyncio.Task[None]) -> None:
        """Let another flush begin beside one that is slow."""
        if not task.done() and len(self._slow) < self._max_slow:
            self._in_flight.discard(task)
            self._slow.add(task)
            self._start()

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """Take what is next in line; a caller that has given up is not served behind its back."""
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        weight = 0
        while self._queue and len(batch) < self._max_items:
            item, future = self._queue[0]
            weight += 0 if future.done() else self._weigh(item)
            if batch and weight > MAX_WEIGHT_BYTES:
                break
            self._queue.popleft()
            if not future.done():
                batch.append((item, future))
        return batch

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._slow.discard(task)
        self._start()

    async def _run(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except (Unavailable, asyncio.CancelledError) as trouble:
            for _, future in batch:
                # One for each: an exception that is raised twice mixes its tracebacks.
                refusal = Unavailable("The database does not answer.")
                refusal.__cause__ = trouble.__cause__
                _refuse(future, refusal)
        except Exception as error:  # noqa: BLE001 - handed on to the one caller whose item it is
            if len(batch) == 1:
                _refuse(batch[0][1], error)
                return
            for entry in batch:
                await self._run([entry])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, FencepostError):
                    _refuse(future, answer)
                elif not future.done():
                    future.set_result(answer)


def _refuse(future: asyncio.Future[Answer], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
