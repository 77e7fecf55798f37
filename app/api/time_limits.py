"""A time limit for a part of a call."""

import asyncio
from types import TracebackType

# How late a limit may end. A timer of its own for each would cost more than all the rest of a limit.
TICK_SECONDS = 0.05


class _Watch:
    """Ends the limits of one event loop whose time is over; looks at them as long as there are any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ends: dict[TimeLimit, float] = {}
        self._is_ticking = False

    def add(self, limit: "TimeLimit", seconds: float) -> None:
        self._ends[limit] = self.loop.time() + seconds
        if not self._is_ticking:
            self._is_ticking = True
            self.loop.call_later(TICK_SECONDS, self._look)

    def remove(self, limit: "TimeLimit") -> None:
        self._ends.pop(limit, None)

    def _look(self) -> None:
        now = self.loop.time()
        for limit in [limit for limit, end in self._ends.items() if end <= now]:
            self.remove(limit)
            limit.end()
        self._is_ticking = bool(self._ends)
        if self._is_ticking:
            self.loop.call_later(TICK_SECONDS, self._look)


_watch: _Watch | None = None


def _watch_of(loop: asyncio.AbstractEventLoop) -> _Watch:
    global _watch  # noqa: PLW0603 - one for the loop that runs; tests have many, one after the other
    if _watch is None or _watch.loop is not loop:
        _watch = _Watch(loop)
    return _watch


class TimeLimit:
    """Ends what is awaited inside its block, when the time is over, with TimeoutError.

    Means what ``asyncio.timeout`` means, up to TICK_SECONDS later and at a tenth of its price: every request
    is under two of them.
    """

    __slots__ = ("_cancelling", "_is_over", "_seconds", "_task", "_watch")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a time limit needs a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._watch = _watch_of(loop)
        self._watch.add(self, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._watch.remove(self)
        # Somebody else may have cancelled the task as well; then that is what counts.
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        """Cancel what is awaited: the time is over."""
        self._is_over = True
        self._task.cancel()
