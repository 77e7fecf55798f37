"""Three clocks, each with its own outcome."""

import json
from datetime import timedelta

import pytest

from app.domain.calls import Heartbeat
from app.domain.job import Backoff, BackoffType, JobSpec, JobState, Outcome
from app.operations import expire, manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from tests.support.factory import (
    assert_healthy,
    count_rows,
    elapse,
    heartbeat,
    lease,
    leased,
    read,
    records,
    submit,
    token_of,
)
from tests.support.signals import RecordedSignals

FIXED_20 = Backoff(BackoffType.FIXED, base_seconds=20.0, jitter=0.0)


async def test_a_lease_without_a_heartbeat_runs_out_and_the_job_is_ready_at_once(
    context: Context, signals: RecordedSignals
) -> None:
    granted = await leased(context, JobSpec(kind="test", backoff=FIXED_20), lease_seconds=30.0)
    signals.ready.clear()
    await elapse(context, 10)
    assert await expire_leases(context) == 0
    await elapse(context, 20)
    assert await expire_leases(context) == 1
    job = await read(context, granted.id)
    assert (job.state, job.attempt, job.lease_version) == (JobState.READY, 1, 1)
    assert job.run_at == granted.run_at - timedelta(seconds=30)
    assert json.loads(job.error or "")["type"] == "lease_expired"
    assert [record.outcome for record in await records(context, job.id)] == [Outcome.LEASE_EXPIRED]
    assert signals.ready == {"default": 1}
    await assert_healthy(context)


async def test_heartbeats_without_progress_do_not_keep_a_stalled_job(
    context: Context, signals: RecordedSignals
) -> None:
    spec = JobSpec(kind="test", progress_timeout_seconds=60.0, backoff=FIXED_20)
    token = token_of(await leased(context, spec, lease_seconds=50.0))
    for seconds in (30, 30):
        await elapse(context, seconds)
        await heartbeat(context, Heartbeat(token))
    assert await expire_leases(context) == 1
    job = await read(context, token.job_id)
    [record] = await records(context, job.id)
    assert record.outcome is Outcome.STALLED
    assert job.state is JobState.SCHEDULED
    assert record.ended_at is not None
    assert job.run_at == record.ended_at + timedelta(seconds=20)
    assert json.loads(job.error or "")["type"] == "stalled"
    assert signals.scheduled == [20.0]


async def test_progress_keeps_a_job_going(context: Context) -> None:
    spec = JobSpec(kind="test", progress_timeout_seconds=60.0)
    token = token_of(await leased(context, spec, lease_seconds=50.0))
    for seq in range(4):
        await elapse(context, 40)
        await heartbeat(context, Heartbeat(token, seq=seq))
        assert await expire_leases(context) == 0


async def test_no_heartbeat_and_no_progress_carries_a_job_over_its_deadline(context: Context) -> None:
    spec = JobSpec(kind="test", max_runtime_seconds=100.0, progress_timeout_seconds=60.0, backoff=FIXED_20)
    token = token_of(await leased(context, spec, lease_seconds=50.0))
    for seq in range(3):
        await elapse(context, 40)
        await heartbeat(context, Heartbeat(token, seq=seq, extend_seconds=3600.0))
    assert await expire_leases(context) == 1
    [record] = await records(context, token.job_id)
    assert record.outcome is Outcome.DEADLINE_EXCEEDED
    assert (await read(context, token.job_id)).state is JobState.SCHEDULED


async def test_the_clock_that_ran_out_first_is_the_outcome_however_late_the_reaper(context: Context) -> None:
    spec = JobSpec(kind="test", max_runtime_seconds=100.0, progress_timeout_seconds=20.0)
    token = token_of(await leased(context, spec, lease_seconds=30.0))
    await elapse(context, 1000)
    assert await expire_leases(context) == 1
    assert [record.outcome for record in await records(context, token.job_id)] == [Outcome.STALLED]


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        (JobSpec(kind="test", max_attempts=1), Outcome.LEASE_EXPIRED),
        (JobSpec(kind="test", max_attempts=1, progress_timeout_seconds=10.0), Outcome.STALLED),
        (JobSpec(kind="test", max_attempts=1, max_runtime_seconds=10.0), Outcome.DEADLINE_EXCEEDED),
    ],
)
async def test_a_job_whose_last_attempt_a_clock_ended_is_dead(
    context: Context, signals: RecordedSignals, spec: JobSpec, outcome: Outcome
) -> None:
    token = token_of(await leased(context, spec))
    await elapse(context, 61)
    assert await expire_leases(context) == 1
    job = await read(context, token.job_id)
    assert (job.state, job.attempt) == (JobState.DEAD, 1)
    assert json.loads(job.error or "")["type"] == outcome.value
    assert signals.finished == [job.id]


async def test_a_job_that_was_asked_to_stop_is_cancelled_when_its_lease_runs_out(
    context: Context, signals: RecordedSignals
) -> None:
    token = token_of(await leased(context))
    await manage.cancel_job(context, token.job_id, reason="stop", force=False)
    await elapse(context, 61)
    await expire_leases(context)
    assert (await read(context, token.job_id)).state is JobState.CANCELLED
    assert [record.outcome for record in await records(context, token.job_id)] == [Outcome.LEASE_EXPIRED]
    assert signals.finished == [token.job_id]


async def test_a_pass_ends_every_lease_that_ran_out_however_many(context: Context) -> None:
    count = 2 * expire.MAX_LEASES_A_STEP + 1
    await submit(context, *[JobSpec(kind="test")] * count, *[JobSpec(kind="test", queue="other")] * 3)
    await lease(context, max_jobs=count, lease_seconds=10.0)
    await lease(context, "other", max_jobs=3, lease_seconds=100.0)
    await elapse(context, 11)
    assert await expire_leases(context) == count
    assert await count_rows(context, "leases") == 3
    assert await count_rows(context, "ready") == count
    await assert_healthy(context)


async def test_a_pass_over_healthy_leases_changes_nothing(context: Context, signals: RecordedSignals) -> None:
    token = token_of(await leased(context))
    before = await read(context, token.job_id)
    signals.ready.clear()
    assert await expire_leases(context) == 0
    assert await read(context, token.job_id) == before
    assert signals.ready == {}
