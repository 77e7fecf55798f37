"""Promote: what is due becomes ready, and nothing else."""

from datetime import timedelta

import pytest

from app.domain.job import JobSpec, JobState
from app.operations.context import Context
from app.operations.upkeep import MAX_JOBS_A_STEP, promote_jobs
from tests.support.factory import (
    assert_healthy,
    count_rows,
    elapse,
    fail,
    lease,
    leased,
    read,
    submit,
    token_of,
)
from tests.support.signals import RecordedSignals


async def test_only_due_jobs_become_ready_and_who_waits_is_told(
    context: Context, signals: RecordedSignals
) -> None:
    due, late, ahead = await submit(
        context,
        JobSpec(kind="test", queue="a", delay_seconds=60.0),
        JobSpec(kind="test", queue="b", delay_seconds=30.0),
        JobSpec(kind="test", queue="a", delay_seconds=600.0),
    )
    await elapse(context, 61)
    next_due = await promote_jobs(context)
    states = [(await read(context, job.id)).state for job in (due, late, ahead)]
    assert states == [JobState.READY, JobState.READY, JobState.SCHEDULED]
    assert signals.ready == {"a": 1, "b": 1}
    assert next_due.due_in_seconds == pytest.approx(510, abs=30)
    await assert_healthy(context)


async def test_a_promoted_job_is_leased_by_the_time_at_which_it_was_due(context: Context) -> None:
    first, second = await submit(
        context, JobSpec(kind="test", delay_seconds=20.0), JobSpec(kind="test", delay_seconds=10.0)
    )
    await elapse(context, 30)
    [third] = await submit(context)
    await promote_jobs(context)
    granted = await lease(context, max_jobs=3)
    assert [job.id for job in granted] == [second.id, first.id, third.id]
    assert granted[1].run_at == first.run_at - timedelta(seconds=30)


async def test_a_retry_that_is_due_keeps_its_counters(context: Context) -> None:
    token = token_of(await leased(context))
    await fail(context, token, "broken", retry_after_seconds=5.0)
    await elapse(context, 6)
    await promote_jobs(context)
    [granted] = await lease(context)
    assert (granted.id, granted.attempt, granted.lease_version) == (token.job_id, 2, 2)


async def test_without_scheduled_jobs_nothing_is_due(context: Context, signals: RecordedSignals) -> None:
    await submit(context)
    signals.ready.clear()
    next_due = await promote_jobs(context)
    assert next_due.due_in_seconds is None
    assert next_due.now.utcoffset() == timedelta(0)
    assert signals.ready == {}


async def test_a_pass_moves_every_due_job_however_many(context: Context, signals: RecordedSignals) -> None:
    count = 2 * MAX_JOBS_A_STEP + 1
    await submit(context, *[JobSpec(kind="test", delay_seconds=5.0)] * count)
    await elapse(context, 5)
    next_due = await promote_jobs(context)
    assert next_due.due_in_seconds is None
    assert await count_rows(context, "ready") == count
    assert signals.ready == {"default": count}
