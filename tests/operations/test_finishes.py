"""Parked readers of one job's end."""

import asyncio

import pytest

from app.domain.job import JobSpec
from app.operations.context import Context
from app.operations.finishes import Finishes
from tests.support.factory import complete, leased, submit, token_of
from tests.support.waiting import turns, until


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def finishes() -> Finishes:
    return Finishes()


def waiting(finishes: Finishes, job_id: str, *, wait_seconds: float = 30.0) -> asyncio.Task[bool]:
    return asyncio.create_task(finishes.wait(job_id, wait_seconds=wait_seconds, disconnected=never))


async def test_every_reader_of_a_job_wakes_when_it_finishes_and_no_other(finishes: Finishes) -> None:
    readers = [waiting(finishes, "job"), waiting(finishes, "job")]
    other = waiting(finishes, "other job")
    await turns()
    finishes.jobs_finished(["job", "a job that nobody waits for"])
    await asyncio.gather(*readers)
    assert not other.done()
    other.cancel()


async def test_a_reader_returns_when_its_time_is_over(finishes: Finishes) -> None:
    await waiting(finishes, "job", wait_seconds=0.01)
    assert finishes._waiting == {}


async def test_a_reader_whose_client_has_gone_is_dropped(finishes: Finishes) -> None:
    gone = asyncio.Event()
    task = asyncio.create_task(finishes.wait("job", wait_seconds=30, disconnected=gone.wait))
    await turns()
    gone.set()
    await task
    assert finishes._waiting == {}


async def test_a_cancelled_reader_leaves_nothing_behind(finishes: Finishes) -> None:
    task = waiting(finishes, "job")
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finishes._waiting == {}


async def test_shutdown_wakes_every_reader_and_lets_nobody_wait_any_more(finishes: Finishes) -> None:
    readers = [waiting(finishes, "one"), waiting(finishes, "other")]
    await turns()
    finishes.drain()
    await asyncio.gather(*readers, waiting(finishes, "late"))


async def test_a_job_that_another_process_ended_is_found_by_looking(
    context: Context, finishes: Finishes
) -> None:
    # The verbs of this context tell other signals, as another process would.
    token = token_of(await leased(context))
    [unfinished] = await submit(context, JobSpec(kind="test"))
    reader, patient = waiting(finishes, token.job_id), waiting(finishes, unfinished.id)
    await turns()
    await finishes.look(context)
    await turns()
    assert not reader.done()
    await complete(context, token)
    await finishes.look(context)
    await until(reader.done)
    assert not patient.done()
    patient.cancel()


async def test_without_readers_nothing_is_looked_up(context: Context, finishes: Finishes) -> None:
    await context.database.close()
    assert await finishes.look(context) > 0


async def test_a_reader_hears_that_its_client_has_gone(finishes: Finishes) -> None:
    async def at_once() -> None:
        return None

    assert await finishes.wait("job", wait_seconds=30.0, disconnected=at_once) is False
    assert finishes._waiting == {}
