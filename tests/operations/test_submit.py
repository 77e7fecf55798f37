"""Submit: at most one job a key, no child without its parent's lease, ids in input order."""

import dataclasses
from datetime import timedelta

import msgspec
import pytest

from app.domain.errors import IdempotencyKeyReused, LeaseLost
from app.domain.job import JobSpec, JobState, Parent
from app.domain.retention import Retention
from app.operations.context import Context
from app.operations.submit import submit_batch, submit_jobs
from app.operations.upkeep import promote_jobs
from tests.support.factory import (
    UNKNOWN_ID,
    accepted,
    assert_healthy,
    complete,
    count_rows,
    elapse,
    job_in,
    keyed,
    lease,
    leased,
    read,
    release,
    submit,
    token_of,
)
from tests.support.signals import RecordedSignals

SPEC = JobSpec(kind="test")


async def test_a_job_that_was_just_created_is_answered_as_it_will_be_read(context: Context) -> None:
    specs = [
        JobSpec(kind="plain"),
        JobSpec(
            kind="full",
            queue="other",
            payload='{"n": 0.10,\n "a": [1e400]}',
            priority=-5,
            delay_seconds=60.0,
            max_attempts=3,
            max_runtime_seconds=5.0,
            progress_timeout_seconds=6.0,
            metadata={"é": "\u0001"},
        ),
    ]
    for job in await submit(context, *specs):
        assert await read(context, job.id) == job
    await assert_healthy(context)


async def test_a_job_is_ready_when_it_is_due_and_scheduled_when_its_time_is_ahead(context: Context) -> None:
    [now_job] = await submit(context)
    hour = timedelta(hours=1)
    ahead = JobSpec(kind="test", run_at=now_job.created_at + hour)
    behind = JobSpec(kind="test", run_at=now_job.created_at - hour)
    delayed = JobSpec(kind="test", delay_seconds=0.5)
    at_once = JobSpec(kind="test", delay_seconds=0.0)
    jobs = await submit(context, ahead, behind, delayed, at_once)
    states = [job.state for job in jobs]
    assert states == [JobState.SCHEDULED, JobState.READY, JobState.SCHEDULED, JobState.READY]
    assert jobs[0].run_at == ahead.run_at
    assert jobs[1].run_at == behind.run_at
    assert jobs[2].run_at - jobs[2].created_at == timedelta(seconds=0.5)


async def test_who_waits_is_told_of_new_work_and_of_the_next_due_time(
    context: Context, signals: RecordedSignals
) -> None:
    await submit(
        context,
        JobSpec(kind="test", queue="a"),
        JobSpec(kind="test", queue="a"),
        JobSpec(kind="test", queue="b"),
        JobSpec(kind="test", queue="c", delay_seconds=30.0),
        JobSpec(kind="test", queue="c", delay_seconds=20.0),
    )
    assert signals.ready == {"a": 2, "b": 1}
    assert signals.scheduled == [pytest.approx(20.0, abs=0.001)]


async def test_a_known_key_with_the_same_request_gives_its_job_as_it_is_now(
    context: Context,
) -> None:
    spec = keyed(SPEC, "k")
    [job] = await submit(context, spec)
    token = token_of((await lease(context))[0])
    [again] = await submit_jobs(context, [spec])
    assert not accepted(again).created
    assert accepted(again).job == await read(context, job.id)
    assert accepted(again).job.state is JobState.RUNNING
    await complete(context, token)
    [later] = await submit_jobs(context, [spec])
    assert accepted(later).job.state is JobState.SUCCEEDED
    assert accepted(later).job.id == job.id


async def test_a_known_key_with_another_request_is_refused_naming_its_job(
    context: Context,
) -> None:
    [job] = await submit(context, keyed(SPEC, "k"))
    [answer] = await submit_jobs(context, [keyed(JobSpec(kind="another"), "k")])
    assert isinstance(answer, IdempotencyKeyReused)
    assert answer.job_id == job.id
    assert await count_rows(context, "jobs") == 1


async def test_the_same_key_of_another_caller_is_another_key(context: Context) -> None:
    one = keyed(SPEC, "k", caller="one")
    other = keyed(SPEC, "k", caller="other")
    jobs = await submit(context, one, other)
    assert jobs[0].id != jobs[1].id


async def test_twins_in_one_call_are_one_job(context: Context) -> None:
    spec = keyed(SPEC, "k")
    answers = [accepted(answer) for answer in await submit_jobs(context, [SPEC, spec, spec, SPEC, spec])]
    assert [answer.created for answer in answers] == [True, True, False, True, False]
    assert answers[1].job == answers[2].job == answers[4].job
    assert await count_rows(context, "jobs") == 3


async def test_a_key_twice_in_one_call_with_other_requests_refuses_the_second(
    context: Context,
) -> None:
    first, second = await submit_jobs(context, [keyed(SPEC, "k"), keyed(JobSpec(kind="another"), "k")])
    assert accepted(first).created
    assert isinstance(second, IdempotencyKeyReused)
    assert second.job_id == accepted(first).job.id


async def test_one_refused_item_of_coalesced_calls_does_not_touch_the_others(context: Context) -> None:
    await submit(context, keyed(SPEC, "taken"))
    lost = msgspec.structs.replace(SPEC, parent=Parent(UNKNOWN_ID, 1))
    answers = await submit_jobs(context, [SPEC, keyed(JobSpec(kind="b"), "taken"), lost, keyed(SPEC, "new")])
    assert accepted(answers[0]).created
    assert isinstance(answers[1], IdempotencyKeyReused)
    assert isinstance(answers[2], LeaseLost)
    assert accepted(answers[3]).created
    await assert_healthy(context)


async def test_a_batch_with_a_reused_key_creates_nothing_and_names_the_item(context: Context) -> None:
    await submit(context, keyed(SPEC, "taken"))
    with pytest.raises(IdempotencyKeyReused) as refused:
        await submit_batch(context, [SPEC, keyed(SPEC, "new"), keyed(JobSpec(kind="b"), "taken")])
    assert refused.value.pointer == "/jobs/2/idempotency_key"
    assert await count_rows(context, "jobs") == 1
    # The refused batch has not consumed its other key either.
    assert await count_rows(context, "idempotency_keys") == 1


async def test_a_batch_with_a_lost_parent_creates_nothing_and_names_the_item(context: Context) -> None:
    lost = msgspec.structs.replace(SPEC, parent=Parent(UNKNOWN_ID, 1))
    with pytest.raises(LeaseLost) as refused:
        await submit_batch(context, [SPEC, lost])
    assert refused.value.pointer == "/jobs/1/parent"
    assert await count_rows(context, "jobs") == 0


async def test_a_refused_batch_tells_nobody_of_work(context: Context, signals: RecordedSignals) -> None:
    lost = msgspec.structs.replace(SPEC, parent=Parent(UNKNOWN_ID, 1))
    with pytest.raises(LeaseLost):
        await submit_batch(context, [SPEC, lost])
    assert signals.ready == {}


async def test_a_child_is_created_while_its_parents_lease_is_held(context: Context) -> None:
    parent = await leased(context)
    spec = msgspec.structs.replace(SPEC, queue="children", parent=Parent(parent.id, parent.lease_version))
    [child] = await submit(context, spec)
    assert child.parent == Parent(parent.id, parent.lease_version)
    assert await read(context, child.id) == child


async def test_a_child_of_a_lease_that_has_ended_is_refused_and_its_key_stays_free(context: Context) -> None:
    parent = await leased(context)
    await release(context, token_of(parent))
    stale = Parent(parent.id, parent.lease_version)
    [answer] = await submit_jobs(context, [keyed(msgspec.structs.replace(SPEC, parent=stale), "child")])
    assert isinstance(answer, LeaseLost)
    assert (answer.reason, answer.job_state) == ("released", "ready")
    assert await count_rows(context, "jobs") == 1
    assert await count_rows(context, "idempotency_keys") == 0


async def test_a_known_key_is_answered_before_the_parents_lease_is_looked_at(context: Context) -> None:
    parent = await leased(context)
    spec = msgspec.structs.replace(SPEC, queue="children", parent=Parent(parent.id, parent.lease_version))
    [child] = await submit(context, keyed(spec, "child"))
    await complete(context, token_of(parent))
    [answer] = await submit_jobs(context, [keyed(spec, "child")])
    assert not accepted(answer).created
    assert accepted(answer).job.id == child.id


async def test_a_second_run_asks_for_the_same_child_under_its_new_version(context: Context) -> None:
    first = await leased(context)
    spec = msgspec.structs.replace(SPEC, queue="children", parent=Parent(first.id, first.lease_version))
    [child] = await submit(context, keyed(spec, "child"))
    await release(context, token_of(first))
    [second] = await lease(context)
    assert second.id == first.id
    again = msgspec.structs.replace(spec, parent=Parent(second.id, second.lease_version))
    [answer] = await submit_jobs(context, [keyed(again, "child")])
    assert accepted(answer).job.id == child.id


async def test_of_twins_the_one_whose_parent_is_held_creates_the_job(context: Context) -> None:
    first = await leased(context)
    await release(context, token_of(first))
    [second] = await lease(context)
    specs = [
        keyed(
            msgspec.structs.replace(SPEC, queue="children", parent=Parent(job.id, job.lease_version)), "child"
        )
        for job in (first, second)
    ]
    answers = [accepted(answer) for answer in await submit_jobs(context, specs)]
    assert [answer.created for answer in answers] == [False, True]
    assert answers[0].job == answers[1].job
    assert answers[1].job.parent == Parent(second.id, second.lease_version)


async def test_a_key_is_kept_while_its_job_is_unfinished_however_short_its_time(context: Context) -> None:
    context = dataclasses.replace(context, retention=Retention(idempotency_seconds=0.0))
    spec = keyed(msgspec.structs.replace(SPEC, delay_seconds=60.0), "k")
    [job] = await submit(context, spec)
    await elapse(context, 61)
    await promote_jobs(context)
    [answer] = await submit_jobs(context, [spec])
    assert accepted(answer).job.id == job.id


async def test_a_key_whose_time_is_over_makes_a_new_job(context: Context) -> None:
    spec = keyed(SPEC, "k")
    job = await job_in(context, JobState.CANCELLED, spec)
    context = dataclasses.replace(context, retention=Retention(idempotency_seconds=0.0))
    [answer] = await submit_jobs(context, [spec])
    assert accepted(answer).created
    assert accepted(answer).job.id != job.id
    [again] = await submit_jobs(context, [spec])
    assert accepted(again).job.id == accepted(answer).job.id


async def test_a_key_never_outlives_its_jobs_retention(context: Context) -> None:
    spec = keyed(SPEC, "k")
    job = await job_in(context, JobState.DEAD, spec)
    context = dataclasses.replace(context, retention=Retention(dead_seconds=0.0))
    [answer] = await submit_jobs(context, [spec])
    assert accepted(answer).created
    assert accepted(answer).job.id != job.id


async def test_a_thousand_jobs_in_one_call_are_answered_in_input_order(context: Context) -> None:
    specs = [JobSpec(kind=f"kind{index}") for index in range(1000)]
    answers = await submit_batch(context, specs)
    assert [answer.job.kind for answer in answers] == [spec.kind for spec in specs]
    assert [answer.job.id for answer in answers] == sorted(answer.job.id for answer in answers)
