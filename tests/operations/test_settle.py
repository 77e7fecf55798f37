"""Complete, fail and release: accepted once under the fence, repeatable for ever after."""

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from app.domain.errors import JobNotFound, LeaseLost
from app.domain.job import JobSpec, JobState, Outcome, Parent, Token
from app.domain.retention import Retention
from app.operations import manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.settle import Closing, complete_leases, end_leases
from tests.support.factory import (
    UNKNOWN_ID,
    assert_healthy,
    complete,
    completing,
    count_rows,
    elapse,
    end,
    fail,
    failing,
    lease,
    leased,
    read,
    records,
    release,
    releasing,
    settled,
    settled_job,
    submit,
    token_of,
)
from tests.support.signals import RecordedSignals


async def test_a_completed_job_has_succeeded_with_its_result(
    context: Context, signals: RecordedSignals
) -> None:
    granted = await leased(context)
    job = settled_job(await complete(context, token_of(granted), result='{"n": 1.0}'))
    assert (job.state, job.result, job.attempt) == (JobState.SUCCEEDED, '{"n": 1.0}', 1)
    assert job.finished_at is not None
    assert job.lease is None
    assert await read(context, job.id) == job
    assert [record.outcome for record in await records(context, job.id)] == [Outcome.SUCCEEDED]
    assert signals.finished == [job.id]
    await assert_healthy(context)


async def test_follow_up_jobs_are_created_with_the_completion_and_name_their_parent(
    context: Context, signals: RecordedSignals
) -> None:
    granted = await leased(context)
    signals.ready.clear()
    parent = Parent(granted.id, granted.lease_version)
    specs = [
        JobSpec(kind="first", queue="next", parent=parent),
        JobSpec(kind="second", queue="next", parent=parent, delay_seconds=60.0),
    ]
    settled(await complete(context, token_of(granted), enqueue=specs))
    [first] = await lease(context, "next", max_jobs=10)
    assert (first.kind, first.parent) == ("first", parent)
    assert await count_rows(context, "scheduled") == 1
    assert signals.ready == {"next": 1}


async def test_a_refused_completion_creates_no_follow_up_jobs(context: Context) -> None:
    granted = await leased(context)
    token = token_of(granted)
    await release(context, token)
    follow_up = JobSpec(kind="next", parent=Parent(token.job_id, token.lease_version))
    answer = await complete(context, token, enqueue=[follow_up])
    assert isinstance(answer, LeaseLost)
    assert await count_rows(context, "jobs") == 1


async def test_a_repeated_completion_creates_its_follow_up_jobs_once(context: Context) -> None:
    granted = await leased(context)
    follow_up = JobSpec(kind="next", parent=Parent(granted.id, granted.lease_version))
    for is_replay in (False, True):
        answer = await complete(context, token_of(granted), enqueue=[follow_up])
        assert settled(answer).is_replay is is_replay
    assert await count_rows(context, "ready") == 1


async def test_a_failed_job_waits_for_its_backoff_and_keeps_the_error(
    context: Context, signals: RecordedSignals
) -> None:
    granted = await leased(context)
    job = settled_job(await fail(context, token_of(granted), "no answer", retry_after_seconds=30.0))
    assert (job.state, job.attempt, job.lease_version) == (JobState.SCHEDULED, 1, 1)
    assert json.loads(job.error or "")["message"] == "no answer"
    [record] = await records(context, job.id)
    assert record.outcome is Outcome.FAILED
    assert record.ended_at is not None
    assert job.run_at == record.ended_at + timedelta(seconds=30)
    assert signals.scheduled == [30.0]
    await assert_healthy(context)


async def test_the_last_failure_leaves_the_job_dead(context: Context, signals: RecordedSignals) -> None:
    granted = await leased(context, JobSpec(kind="test", max_attempts=1))
    job = settled_job(await fail(context, token_of(granted)))
    assert job.state is JobState.DEAD
    assert job.finished_at is not None
    assert signals.finished == [job.id]


async def test_a_released_job_keeps_its_due_time_and_its_last_error(
    context: Context, signals: RecordedSignals
) -> None:
    first = await leased(context)
    await fail(context, token_of(first), "the error", retry_after_seconds=0.0)
    [second] = await lease(context)
    signals.ready.clear()
    [answer] = await end(context, releasing(token_of(second), reason="going home"))
    job = settled_job(answer)
    assert (job.state, job.attempt, job.run_at) == (JobState.READY, 1, second.run_at)
    assert json.loads(job.error or "")["message"] == "the error"
    assert signals.ready == {"default": 1}
    [third] = await lease(context)
    assert json.loads(third.previous or "")["outcome"] == "released"
    assert json.loads(third.previous or "")["error"]["message"] == "going home"


async def test_a_release_with_a_delay_is_scheduled_and_gives_the_attempt_back(context: Context) -> None:
    granted = await leased(context)
    job = settled_job(await release(context, token_of(granted), delay_seconds=20.0))
    assert (job.state, job.attempt) == (JobState.SCHEDULED, 0)
    [record] = await records(context, job.id)
    assert record.ended_at is not None
    assert job.run_at == record.ended_at + timedelta(seconds=20)


CALLS: dict[str, Callable[[Token], Closing]] = {
    "failing": failing,
    "failing for good": lambda token: failing(token, retryable=False),
    "releasing": releasing,
    "releasing with a delay": lambda token: releasing(token, delay_seconds=5.0),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_repeat_is_answered_and_changes_nothing(
    context: Context, signals: RecordedSignals, name: str
) -> None:
    token = token_of(await leased(context))
    closing = CALLS[name](token)
    [first] = await end(context, closing)
    told = (dict(signals.ready), list(signals.scheduled), list(signals.finished))
    [second] = await end(context, closing)
    assert not settled(first).is_replay
    assert settled(second).is_replay
    assert settled_job(second) == settled_job(first)
    assert len(await records(context, token.job_id)) == 1
    assert (signals.ready, signals.scheduled, signals.finished) == told


async def test_a_repeated_completion_is_answered_and_changes_nothing(context: Context) -> None:
    token = token_of(await leased(context))
    first = await complete(context, token, result="1")
    second = await complete(context, token, result="1")
    assert settled(second).is_replay
    assert settled_job(second) == settled_job(first)


async def test_a_repeat_is_answered_with_the_job_as_it_is_now_after_later_grants(
    context: Context,
) -> None:
    token = token_of(await leased(context))
    await fail(context, token, retry_after_seconds=0.0)
    [second] = await lease(context)
    answer = await fail(context, token, retry_after_seconds=0.0)
    assert settled(answer).is_replay
    assert settled_job(answer).state is JobState.RUNNING
    assert settled_job(answer).lease_version == second.lease_version
    settled(await complete(context, token_of(second)))
    answer = await fail(context, token, retry_after_seconds=0.0)
    assert settled(answer).is_replay
    assert settled(answer).state is JobState.SUCCEEDED


async def test_another_body_for_an_ended_version_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    await fail(context, token, "one message")
    answer = await fail(context, token, "another message")
    assert isinstance(answer, LeaseLost)
    assert (answer.reason, answer.job_state) == ("failed", "scheduled")


async def test_another_result_for_a_completed_version_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    await complete(context, token, result="1")
    answer = await complete(context, token, result="1.0")
    assert isinstance(answer, LeaseLost)
    assert (answer.reason, answer.job_state) == ("finished", "succeeded")
    assert (await read(context, token.job_id)).result == "1"


async def test_another_verb_for_an_ended_version_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    await release(context, token)
    for answer in (await fail(context, token), await complete(context, token)):
        assert isinstance(answer, LeaseLost)
        assert answer.reason == "released"


async def test_nothing_repeats_an_attempt_that_a_clock_ended(context: Context) -> None:
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 11)
    await expire_leases(context)
    answer = await fail(context, token)
    assert isinstance(answer, LeaseLost)
    assert (answer.reason, answer.presented_version, answer.current_version) == ("expired", 1, 1)


async def test_a_late_holder_may_still_settle_until_the_reaper_has_come(context: Context) -> None:
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 1000)
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED
    assert await expire_leases(context) == 0


async def test_a_version_that_was_never_granted_is_refused_as_unknown(context: Context) -> None:
    token = token_of(await leased(context))
    for version in (0, 2, 99):
        answer = await complete(context, Token(token.job_id, version))
        assert isinstance(answer, LeaseLost)
        assert (answer.reason, answer.current_version, answer.job_state) == ("unknown", 1, "running")


async def test_an_unknown_job_is_not_found(context: Context) -> None:
    assert isinstance(await complete(context, Token(UNKNOWN_ID, 1)), JobNotFound)
    assert isinstance(await fail(context, Token(UNKNOWN_ID, 1)), JobNotFound)


async def test_a_repeat_for_a_job_past_its_retention_is_not_found(context: Context) -> None:
    token = token_of(await leased(context))
    await complete(context, token)
    forgotten = dataclasses.replace(context, retention=Retention(finished_seconds=0.0))
    assert isinstance(await complete(forgotten, token), JobNotFound)


async def test_a_failure_after_a_cancel_was_asked_for_cancels_the_job(context: Context) -> None:
    token = token_of(await leased(context))
    await manage.cancel_job(context, token.job_id, reason="stop", force=False)
    job = settled_job(await fail(context, token, "interrupted"))
    assert job.state is JobState.CANCELLED
    assert json.loads(job.error or "")["message"] == "interrupted"
    # The attempt is recorded by how it ended.
    assert [record.outcome for record in await records(context, job.id)] == [Outcome.FAILED]


async def test_a_release_after_a_cancel_was_asked_for_leaves_the_cancels_reason(context: Context) -> None:
    token = token_of(await leased(context))
    await manage.cancel_job(context, token.job_id, reason="stop", force=False)
    job = settled_job(await release(context, token, delay_seconds=60.0))
    assert (job.state, job.attempt) == (JobState.CANCELLED, 0)
    assert json.loads(job.error or "") == {"type": "cancelled", "message": "stop", "details": None}


async def test_a_complete_wins_over_a_cancel_that_was_asked_for(context: Context) -> None:
    token = token_of(await leased(context))
    await manage.cancel_job(context, token.job_id, reason="stop", force=False)
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED


async def test_one_items_loss_does_not_touch_the_others(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 3)
    held = [token_of(job) for job in await lease(context, max_jobs=3)]
    stale = Token(held[1].job_id, 7)
    items = [completing(held[0]), completing(stale), completing(Token(UNKNOWN_ID, 1)), completing(held[2])]
    answers = await complete_leases(context, items, with_jobs=False)
    assert [type(answer).__name__ for answer in answers] == ["Settled", "LeaseLost", "JobNotFound", "Settled"]
    assert (await read(context, held[1].job_id)).state is JobState.RUNNING
    await assert_healthy(context)


# A call that names a job twice means it one after the other.


async def test_the_same_call_twice_in_a_batch_is_accepted_and_repeated(context: Context) -> None:
    token = token_of(await leased(context))
    answers = await complete_leases(context, [completing(token, "1")] * 3, with_jobs=True)
    assert [settled(answer).is_replay for answer in answers] == [False, True, True]


async def test_two_outcomes_for_one_version_in_a_batch_accept_the_first(context: Context) -> None:
    token = token_of(await leased(context))
    closings = [failing(token, "first", retry_after_seconds=0.0), releasing(token), failing(token, "other")]
    first, second, third = await end_leases(context, closings, with_jobs=True)
    assert settled(first).state is JobState.READY
    assert isinstance(second, LeaseLost)
    assert isinstance(third, LeaseLost)
    assert len(await records(context, token.job_id)) == 1


async def test_a_stale_and_a_held_version_of_one_job_in_a_batch_are_told_apart(context: Context) -> None:
    stale = token_of(await leased(context))
    await release(context, stale)
    [again] = await lease(context)
    answers = await complete_leases(
        context, [completing(stale), completing(token_of(again)), completing(stale)], with_jobs=True
    )
    assert isinstance(answers[0], LeaseLost)
    assert settled(answers[1]).state is JobState.SUCCEEDED
    assert isinstance(answers[2], LeaseLost)
    assert answers[2].job_state == "succeeded"


async def test_follow_up_jobs_of_several_rounds_keep_their_order(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    one, two = [token_of(job) for job in await lease(context, max_jobs=2)]
    items = [
        completing(one, enqueue=[JobSpec(kind="a"), JobSpec(kind="b")]),
        completing(one),
        completing(two, enqueue=[JobSpec(kind="c")]),
    ]
    await complete_leases(context, items, with_jobs=False)
    assert [job.kind for job in await lease(context, max_jobs=9)] == ["a", "b", "c"]
