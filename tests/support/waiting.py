"""Await a condition with a deadline, instead of sleeping for luck."""

import asyncio
import time
from collections.abc import Callable

# For what has to come about: longer than a busy machine stands still. It is no bound on what has to be quick.
DEADLINE_SECONDS = 30.0


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; raise when it does not in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not so after {DEADLINE_SECONDS} s"
        await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let everything that is ready to run, run: some turns of the loop, no time."""
    for _ in range(count):
        await asyncio.sleep(0)
