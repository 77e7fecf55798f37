"""Ask again for a lease that is locked, while nobody else waits for it.

An application may hold a lease in a transaction of its own (docs/sql.md), for as long as that lasts. No
statement of ours waits for the lock on a lease: it passes over it, and the verb answers LeaseBusy for that
item alone. Who asked for it asks again after a pause, in which no connection is held, until the call's time
is over.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from app.domain.errors import FencepostError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

# No further try begins when this has passed since the first: a request has to be answered within five.
MAX_SECONDS = 3.0
# How long an answer is put off for which there is another one.
SHORT_SECONDS = 0.5
FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.25


class LeaseBusy(Unavailable):
    """The lease is held, but a transaction under way has locked it: nothing was changed, ask again.

    ``instead`` is what the call may be answered with when it stays so; None: nothing but this refusal.
    """

    def __init__(self, instead: Any = None) -> None:
        super().__init__("A transaction of an application holds the lease.")
        self.instead = instead


class _Patience:
    """The time of one call."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()
        self._longest = FIRST_PAUSE_SECONDS

    async def pause(self) -> None:
        """Let some time pass; raises LeaseBusy when there is none left."""
        if time.monotonic() - self._begun_at > MAX_SECONDS:
            raise LeaseBusy
        await asyncio.sleep(random.uniform(0.5, 1.0) * self._longest)
        self._longest = min(2 * self._longest, LONGEST_PAUSE_SECONDS)

    def settle(self, answer: Any) -> Any:
        """Return the answer, or what may be said instead when it has been put off for long enough."""
        is_over = time.monotonic() - self._begun_at > SHORT_SECONDS
        return answer.instead if is_over and isinstance(answer, LeaseBusy) and answer.instead else answer


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what ``ask`` does as soon as it raises no LeaseBusy; raises that when its time is over."""
    try:
        # Nearly always the only try.
        return await ask()
    except LeaseBusy:
        patience = _Patience()
    while True:
        await patience.pause()
        try:
            return await ask()
        except LeaseBusy as busy:
            if (answer := patience.settle(busy)) is not busy:
                return answer  # type: ignore[no-any-return]  # what the verb says a call may be answered with


async def answer_all(
    ask: Callable[[Sequence[Item]], Awaitable[Sequence[T | FencepostError]]], items: Sequence[Item]
) -> list[T | FencepostError]:
    """Return an answer for each item; those that are busy are asked for again, all others only once.

    Raises LeaseBusy when one stays so; what was answered before is done, as with any call in doubt.
    """
    answers = list(await ask(items))
    patience = _Patience()
    while busy := [index for index, answer in enumerate(answers) if isinstance(answer, LeaseBusy)]:
        await patience.pause()
        for index, answer in zip(busy, await ask([items[index] for index in busy]), strict=True):
            answers[index] = patience.settle(answer)
    return answers


def patient(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a verb that does all or nothing tried again while a lease that it needs is busy."""

    @functools.wraps(verb)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await patiently(functools.partial(verb, *args, **kwargs))

    return run
