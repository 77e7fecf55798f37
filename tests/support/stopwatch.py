"""Bounds on time that hold on a machine which stands still now and then."""

import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

_MOST_TRIES = 5


class Stopwatch:
    """Measures its block."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._began_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._began_at


def until_quick(*, seconds: float) -> Iterator[Stopwatch]:
    """Yield stopwatches for one try after another, until a try has taken less than so long.

    Raises AssertionError when none of some tries has: what is slow is slow each time, and a machine that
    stands still is so for a moment.
    """
    taken: list[float] = []
    while len(taken) < _MOST_TRIES:
        watch = Stopwatch()
        yield watch
        if watch.seconds < seconds:
            return
        taken.append(watch.seconds)
    raise AssertionError(f"took {', '.join(f'{each:.2f}' for each in taken)} s, each time over {seconds} s")


async def quick_answer(ask: Callable[[], Awaitable[T]], *, seconds: float) -> T:
    """Ask until an answer has come within so long, and return that one; or raise as ``until_quick`` does."""
    answers: list[T] = []
    for watch in until_quick(seconds=seconds):
        with watch:
            answers.append(await ask())
    return answers[-1]
