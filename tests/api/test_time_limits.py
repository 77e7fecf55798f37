"""A time limit ends what is awaited inside it, and nothing else."""

import asyncio

import pytest

from app.api.time_limits import TimeLimit
from tests.support.waiting import turns, until


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_what_takes_longer_is_cancelled_and_raises_timeout_error() -> None:
    awaited = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError), TimeLimit(0.01):
        await awaited
    assert awaited.cancelled()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_is_done_in_time_is_left_alone_afterwards() -> None:
    with TimeLimit(0.01):
        await turns()
    # Later than the limit would have ended.
    with pytest.raises(TimeoutError), TimeLimit(0.05):
        await wait_for_ever()


async def test_error_inside_passes_through() -> None:
    with pytest.raises(LookupError), TimeLimit(60):
        raise LookupError


async def test_cancelled_from_outside_is_cancelled() -> None:
    entered = asyncio.Event()

    async def work() -> None:
        with TimeLimit(60):
            entered.set()
            await wait_for_ever()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_from_outside_while_the_time_ends_is_cancelled() -> None:
    async def work() -> None:
        with TimeLimit(0.01):
            try:
                await wait_for_ever()
            finally:
                # The limit has cancelled; so does somebody else, before that has been passed on.
                task.cancel()

    task = asyncio.create_task(work())
    await until(task.done)
    assert task.cancelled()


async def test_of_two_limits_the_shorter_one_ends_its_own_block() -> None:
    with TimeLimit(60):
        with pytest.raises(TimeoutError), TimeLimit(0.01):
            await wait_for_ever()
        await turns()
    with pytest.raises(TimeoutError), TimeLimit(0.01), TimeLimit(60):
        await wait_for_ever()
