"""Cancel, redrive and edit, in every state."""

import json
from datetime import timedelta

import pytest

from app.domain.calls import Edit, Heartbeat
from app.domain.errors import (
    AlreadyFinished,
    InvalidRequest,
    JobNotFound,
    LeaseLost,
    NotEditable,
    NotRedrivable,
)
from app.domain.job import JobSpec, JobState, Outcome, Token
from app.operations import manage
from app.operations.context import Context
from app.operations.upkeep import promote_jobs
from tests.support.factory import (
    UNKNOWN_ID,
    assert_healthy,
    complete,
    elapse,
    fail,
    heartbeat,
    job_in,
    lease,
    leased,
    read,
    records,
    release,
    submit,
    token_of,
)
from tests.support.signals import RecordedSignals

WAITING = [JobState.SCHEDULED, JobState.READY]


@pytest.mark.parametrize("state", WAITING)
@pytest.mark.parametrize("force", [False, True])
async def test_a_waiting_job_is_cancelled_at_once(
    context: Context, signals: RecordedSignals, state: JobState, force: bool
) -> None:
    job = await job_in(context, state)
    cancelled = await manage.cancel_job(context, job.id, reason="not wanted", force=force)
    assert not cancelled.is_requested
    after = cancelled.job
    assert after.state is JobState.CANCELLED
    assert after.finished_at is not None
    assert json.loads(after.error or "") == {"type": "cancelled", "message": "not wanted", "details": None}
    # By force the version grows, though no lease was there to be voided.
    assert after.lease_version == job.lease_version + force
    assert await read(context, job.id) == after
    assert signals.finished == [job.id]
    await assert_healthy(context)


async def test_a_running_job_is_asked_to_stop_and_goes_on(context: Context, signals: RecordedSignals) -> None:
    job = await job_in(context, JobState.RUNNING)
    for _ in range(2):
        cancelled = await manage.cancel_job(context, job.id, reason="stop", force=False)
        assert cancelled.is_requested
        assert cancelled.job.state is JobState.RUNNING
        assert cancelled.job.lease is not None
        assert cancelled.job.lease.cancel_requested
        assert cancelled.job.lease_version == job.lease_version
    assert signals.finished == []


async def test_the_first_reason_of_a_cancel_is_kept(context: Context) -> None:
    token = token_of(await leased(context))
    await manage.cancel_job(context, token.job_id, reason=None, force=False)
    await manage.cancel_job(context, token.job_id, reason="first", force=False)
    await manage.cancel_job(context, token.job_id, reason="second", force=False)
    await release(context, token)
    assert json.loads((await read(context, token.job_id)).error or "")["message"] == "first"


async def test_a_forced_cancel_voids_the_lease_at_once(context: Context, signals: RecordedSignals) -> None:
    token = token_of(await leased(context))
    cancelled = await manage.cancel_job(context, token.job_id, reason="now", force=True)
    assert not cancelled.is_requested
    assert cancelled.job.state is JobState.CANCELLED
    assert cancelled.job.lease_version == token.lease_version + 1
    assert signals.finished == [token.job_id]
    answer = await complete(context, token)
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "cancelled"
    assert [record.outcome for record in await records(context, token.job_id)] == [Outcome.CANCELLED]
    await assert_healthy(context)


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancelled_job_that_is_cancelled_again_stays_as_it_is(context: Context, force: bool) -> None:
    job = await job_in(context, JobState.CANCELLED)
    cancelled = await manage.cancel_job(context, job.id, reason="again", force=force)
    assert cancelled.job == job
    assert not cancelled.is_requested


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.DEAD])
@pytest.mark.parametrize("force", [False, True])
async def test_a_job_that_ended_otherwise_cannot_be_cancelled(
    context: Context, state: JobState, force: bool
) -> None:
    job = await job_in(context, state)
    with pytest.raises(AlreadyFinished) as refused:
        await manage.cancel_job(context, job.id, reason=None, force=force)
    assert refused.value.job_state == state.value
    assert await read(context, job.id) == job


async def test_a_cancelled_job_keeps_its_last_error_when_no_reason_is_given(context: Context) -> None:
    token = token_of(await leased(context))
    await fail(context, token, "the error")
    cancelled = await manage.cancel_job(context, token.job_id, reason=None, force=False)
    assert json.loads(cancelled.job.error or "")["message"] == "the error"


@pytest.mark.parametrize("state", [JobState.DEAD, JobState.CANCELLED])
async def test_a_redriven_job_is_ready_with_new_attempts_and_a_higher_version(
    context: Context, signals: RecordedSignals, state: JobState
) -> None:
    job = await job_in(context, state)
    signals.ready.clear()
    after = await manage.redrive_job(context, job.id, run_at=None)
    assert (after.state, after.attempt, after.lease_version) == (JobState.READY, 0, job.lease_version + 1)
    assert (after.error, after.payload, after.created_at) == (job.error, job.payload, job.created_at)
    assert after.finished_at is None
    assert signals.ready == {"default": 1}
    [granted] = await lease(context)
    assert granted.id == job.id
    await assert_healthy(context)


async def test_a_redrive_keeps_checkpoint_error_previous_and_the_attempts(context: Context) -> None:
    token = token_of(await leased(context, JobSpec(kind="test", max_attempts=1)))
    await heartbeat(context, Heartbeat(token, with_checkpoint=True, checkpoint='{"page": 3}'))
    await fail(context, token, "fatal")
    job = await manage.redrive_job(context, token.job_id, run_at=None)
    assert job.checkpoint == '{"page": 3}'
    assert json.loads(job.error or "")["message"] == "fatal"
    [granted] = await lease(context)
    assert granted.lease_version > token.lease_version + 1
    assert granted.attempt == 1
    assert granted.checkpoint == '{"page": 3}'
    assert json.loads(granted.previous or "")["outcome"] == "failed"
    history = [(record.lease_version, record.outcome) for record in await records(context, token.job_id)]
    assert history == [(1, Outcome.FAILED), (granted.lease_version, Outcome.RUNNING)]


async def test_a_redrive_with_a_time_ahead_is_scheduled(context: Context, signals: RecordedSignals) -> None:
    job = await job_in(context, JobState.DEAD)
    later = job.created_at + timedelta(hours=1)
    after = await manage.redrive_job(context, job.id, run_at=later)
    assert (after.state, after.run_at) == (JobState.SCHEDULED, later)
    assert signals.scheduled == [pytest.approx(3600, abs=60)]


async def test_a_version_from_before_a_redrive_is_still_refused_after_it(context: Context) -> None:
    token = token_of(await leased(context))
    await fail(context, token, retryable=False)
    await manage.redrive_job(context, token.job_id, run_at=None)
    for version in (1, 2):
        answer = await complete(context, Token(token.job_id, version))
        assert isinstance(answer, LeaseLost)


@pytest.mark.parametrize("state", [state for state in JobState if state not in ("dead", "cancelled")])
async def test_only_a_dead_or_cancelled_job_can_be_redriven(context: Context, state: JobState) -> None:
    job = await job_in(context, state)
    with pytest.raises(NotRedrivable) as refused:
        await manage.redrive_job(context, job.id, run_at=None)
    assert refused.value.job_state == state.value
    assert await read(context, job.id) == job


@pytest.mark.parametrize("state", WAITING)
async def test_a_waiting_job_can_be_edited(context: Context, state: JobState) -> None:
    job = await job_in(context, state)
    after = await manage.edit_job(context, job.id, Edit(priority=-7, max_attempts=1))
    assert (after.state, after.priority, after.max_attempts) == (state, -7, 1)
    assert (after.run_at, after.lease_version, after.attempt) == (job.run_at, 0, 0)
    assert await read(context, job.id) == after
    await assert_healthy(context)


async def test_an_edited_priority_decides_the_order_of_leases(context: Context) -> None:
    first, second = await submit(context, *[JobSpec(kind="test")] * 2)
    await manage.edit_job(context, second.id, Edit(priority=-1))
    assert [job.id for job in await lease(context, max_jobs=2)] == [second.id, first.id]


async def test_an_edited_time_moves_a_job_between_ready_and_scheduled(
    context: Context, signals: RecordedSignals
) -> None:
    [job] = await submit(context)
    later = job.run_at + timedelta(hours=1)
    assert (await manage.edit_job(context, job.id, Edit(run_at=later))).state is JobState.SCHEDULED
    assert signals.scheduled == [pytest.approx(3600, abs=60)]
    signals.ready.clear()
    after = await manage.edit_job(context, job.id, Edit(run_at=job.run_at))
    assert after.state is JobState.READY
    assert after == job
    assert signals.ready == {"default": 1}


async def test_an_edit_keeps_what_earlier_attempts_left(context: Context) -> None:
    token = token_of(await leased(context))
    await heartbeat(context, Heartbeat(token, with_checkpoint=True, checkpoint="[1]"))
    await fail(context, token, "broken")
    before = await read(context, token.job_id)
    after = await manage.edit_job(context, token.job_id, Edit(priority=1))
    assert (after.error, after.checkpoint, after.attempt) == (before.error, "[1]", 1)
    await elapse(context, 3600)
    await promote_jobs(context)
    [granted] = await lease(context)
    assert json.loads(granted.previous or "")["outcome"] == "failed"


async def test_an_edit_must_leave_an_attempt(context: Context) -> None:
    token = token_of(await leased(context))
    await fail(context, token)
    with pytest.raises(InvalidRequest) as refused:
        await manage.edit_job(context, token.job_id, Edit(max_attempts=1))
    assert refused.value.pointer == "/max_attempts"
    assert (await manage.edit_job(context, token.job_id, Edit(max_attempts=2))).max_attempts == 2


@pytest.mark.parametrize("state", [state for state in JobState if state not in WAITING])
async def test_only_a_waiting_job_can_be_edited(context: Context, state: JobState) -> None:
    job = await job_in(context, state)
    with pytest.raises(NotEditable) as refused:
        await manage.edit_job(context, job.id, Edit(priority=1))
    assert refused.value.job_state == state.value
    assert await read(context, job.id) == job


async def test_a_job_that_was_scheduled_by_a_release_can_be_cancelled(context: Context) -> None:
    token = token_of(await leased(context))
    await release(context, token, delay_seconds=60.0)
    cancelled = await manage.cancel_job(context, token.job_id, reason=None, force=False)
    assert cancelled.job.state is JobState.CANCELLED


async def test_an_unknown_job_is_not_found(context: Context) -> None:
    with pytest.raises(JobNotFound):
        await manage.cancel_job(context, UNKNOWN_ID, reason=None, force=True)
    with pytest.raises(JobNotFound):
        await manage.redrive_job(context, UNKNOWN_ID, run_at=None)
    with pytest.raises(JobNotFound):
        await manage.edit_job(context, UNKNOWN_ID, Edit(priority=1))
