"""Holder calls against each other, the reaper, people and children: the row lock decides, once.

No verb waits for the lock on a lease: it answers LeaseBusy, and is asked again.
"""

import asyncio
from functools import partial

import pytest

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError, LeaseLost
from app.domain.job import JobSpec, JobState, Outcome, Parent, Token
from app.domain.machine import Decision, Ending
from app.operations import manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.heartbeat import heartbeat_leases
from app.operations.lease import lease_jobs
from app.operations.patience import LeaseBusy, answer_all
from app.operations.settle import complete_leases, end_leases
from app.operations.submit import submit_batch, submit_jobs
from app.store import clocks, endings, jobs, leases, submissions
from app.store.endings import EndedLease
from tests.support.factory import (
    accepted,
    assert_healthy,
    complete,
    completing,
    count_rows,
    elapse,
    fail,
    heartbeat,
    lease,
    leased,
    read,
    records,
    releasing,
    settled,
    submit,
    token_of,
    wish,
)
from tests.support.rivals import Pauses, rival


async def expired(context: Context) -> Token:
    """Return the token of a lease that has run out and is not reclaimed yet."""
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 11)
    return token


async def test_a_complete_that_meets_the_reaper_is_refused_after_it(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        [locked] = await clocks.lock_run_out_leases(conn, max_leases=10)
        assert isinstance(await complete(context, token), LeaseBusy)
        ending = Ending(Outcome.LEASE_EXPIRED)
        await endings.end_leases(conn, [EndedLease(locked.token, ending, Decision(JobState.READY, 1))])
        assert isinstance(await complete(context, token), LeaseBusy)
    answer = await complete(context, token)
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "expired"
    assert (await read(context, token.job_id)).state is JobState.READY
    await assert_healthy(context)


async def test_a_complete_that_meets_a_reaper_that_gives_up_is_accepted_after_it(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        await clocks.lock_run_out_leases(conn, max_leases=10)
        assert isinstance(await complete(context, token), LeaseBusy)
        await conn.run(b"ROLLBACK")
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED
    await assert_healthy(context)


async def test_the_reaper_leaves_a_lease_that_is_just_being_completed(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        reaping = await rival(context.database, expire_leases(context), waits=False)
        assert reaping.result() == 0
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED
    assert await records(context, token.job_id)
    await assert_healthy(context)


async def test_the_reaper_leaves_a_lease_that_is_just_being_extended(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        await leases.heartbeat_leases(conn, [Heartbeat(token)])
        reaping = await rival(context.database, expire_leases(context), waits=False)
        assert reaping.result() == 0
    assert await expire_leases(context) == 0
    assert isinstance(await heartbeat(context, Heartbeat(token)), RenewedLease)


async def test_two_reapers_share_what_has_run_out(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 10)
    await lease(context, max_jobs=10, lease_seconds=10.0)
    await elapse(context, 11)
    async with context.database.begin() as conn:
        first = await clocks.lock_run_out_leases(conn, max_leases=4)
        other = await rival(context.database, expire_leases(context), waits=False)
        assert other.result() == 6
    assert len(first) == 4
    assert await expire_leases(context) == 4
    await assert_healthy(context)


async def test_of_two_completions_of_one_version_one_is_accepted_and_the_other_repeats_it(
    context: Context,
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token, "1").completion])
        assert isinstance(await complete(context, token, result="1"), LeaseBusy)
    assert settled(await complete(context, token, result="1")).is_replay


async def test_of_two_different_endings_of_one_version_the_second_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        assert isinstance(await fail(context, token), LeaseBusy)
    answer = await fail(context, token)
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"
    await assert_healthy(context)


async def test_a_heartbeat_that_meets_a_completion_is_put_off_with_the_expiry_as_it_is(
    context: Context,
) -> None:
    job = await leased(context)
    token = token_of(job)
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        answer = await heartbeat(context, Heartbeat(token, extend_seconds=3600.0))
        assert isinstance(answer, LeaseBusy)
        assert answer.instead == RenewedLease(job.lease_expires_at, job.deadline_at, cancel_requested=False)
        # What it has to say would be lost, so nothing but a refusal may stand for its answer.
        for beat in (Heartbeat(token, seq=1), Heartbeat(token, with_checkpoint=True, checkpoint="7")):
            answer = await heartbeat(context, beat)
            assert isinstance(answer, LeaseBusy)
            assert answer.instead is None
    answer = await heartbeat(context, Heartbeat(token))
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"


async def test_a_completion_that_meets_a_heartbeat_is_accepted_after_it_with_its_checkpoint(
    context: Context,
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.heartbeat_leases(conn, [Heartbeat(token, with_checkpoint=True, checkpoint="7")])
        assert isinstance(await complete(context, token), LeaseBusy)
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED
    assert (await read(context, token.job_id)).checkpoint == "7"


async def test_a_completion_that_meets_a_forced_cancel_is_refused_after_it(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await jobs.request_cancel(conn, token, reason="now")
        assert isinstance(await complete(context, token), LeaseBusy)
        ending, decision = Ending(Outcome.CANCELLED), Decision(JobState.CANCELLED, 1)
        await endings.end_leases(conn, [EndedLease(token, ending, decision, version_step=1)])
    answer = await complete(context, token)
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "cancelled"
    await assert_healthy(context)


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_that_meets_a_completion_finds_the_job_finished(
    context: Context, pauses: Pauses, *, force: bool
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        cancelling = await pauses.first_of(manage.cancel_job(context, token.job_id, reason=None, force=force))
    [outcome] = await asyncio.gather(cancelling, return_exceptions=True)
    assert isinstance(outcome, FencepostError)
    assert outcome.code == "already_finished"
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED


async def test_a_failure_that_meets_a_cancel_request_cancels_the_job_after_it(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await jobs.request_cancel(conn, token, reason="stop")
        assert isinstance(await fail(context, token), LeaseBusy)
    assert settled(await fail(context, token)).state is JobState.CANCELLED


async def test_a_cancel_that_meets_a_release_cancels_the_job_where_it_went(
    context: Context, pauses: Pauses
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await endings.lock_leases(conn, [token])
        cancelling = await pauses.first_of(manage.cancel_job(context, token.job_id, reason=None, force=False))
        ended = EndedLease(token, Ending(Outcome.RELEASED), Decision(JobState.READY, 0))
        await endings.end_leases(conn, [ended])
    assert (await cancelling).job.state is JobState.CANCELLED
    await assert_healthy(context)


async def test_two_batches_that_name_leases_in_opposite_order_do_not_deadlock(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 40)
    tokens = [token_of(job) for job in await lease(context, max_jobs=40)]
    there, back = [Heartbeat(token) for token in tokens], [Heartbeat(token) for token in tokens[::-1]]
    for _ in range(10):
        answers = await asyncio.gather(
            *(answer_all(partial(heartbeat_leases, context), beats) for beats in (there, back, there, back))
        )
        assert all(isinstance(answer, RenewedLease) for batch in answers for answer in batch)
    complete_all = partial(complete_leases, context, with_jobs=False)
    # A deadlock would be raised as Unavailable.
    await asyncio.gather(
        answer_all(complete_all, [completing(token) for token in tokens]),
        answer_all(complete_all, [completing(token) for token in tokens[::-1]]),
        answer_all(
            partial(end_leases, context, with_jobs=False), [releasing(token) for token in tokens[::-1]]
        ),
    )
    assert await count_rows(context, "leases") == 0
    await assert_healthy(context)


# A child needs its parent's lease to be held at its own commit.


def child_of(token: Token) -> JobSpec:
    return JobSpec(kind="child", queue="children", parent=Parent(token.job_id, token.lease_version))


async def test_a_parent_ends_after_a_child_that_is_being_created(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        assert await submissions.lock_parents(conn, [token]) == {token}
        assert isinstance(await complete(context, token), LeaseBusy)
        await submissions.insert_jobs(conn, [(0, child_of(token), None)])
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED
    [child] = await lease(context, "children")
    assert child.parent == Parent(token.job_id, token.lease_version)


async def test_a_child_that_meets_the_end_of_its_parents_lease_is_refused_after_it(
    context: Context, pauses: Pauses
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        # Others that are submitted with it are not held up; a batch is asked for again as a whole.
        other, answer = await submit_jobs(context, [JobSpec(kind="other"), child_of(token)])
        assert accepted(other).created
        assert isinstance(answer, LeaseBusy)
        batch = await pauses.first_of(submit_batch(context, [JobSpec(kind="other"), child_of(token)]))
    [refusal] = await asyncio.gather(batch, return_exceptions=True)
    assert isinstance(refusal, LeaseLost)
    assert refusal.pointer == "/jobs/1/parent"
    assert await count_rows(context, "jobs") == 2
    [answer] = await submit_jobs(context, [child_of(token)])
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"


async def test_a_child_that_meets_an_end_that_is_undone_is_created_after_it(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        assert isinstance((await submit_jobs(context, [child_of(token)]))[0], LeaseBusy)
        await conn.run(b"ROLLBACK")
    assert accepted((await submit_jobs(context, [child_of(token)]))[0]).created


async def test_a_heartbeat_does_not_wait_for_a_child_that_is_being_created(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await submissions.lock_parents(conn, [token])
        beating = await rival(context.database, heartbeat(context, Heartbeat(token, seq=1)), waits=False)
        assert isinstance(beating.result(), RenewedLease)


async def test_a_child_does_not_wait_for_a_heartbeat_of_its_parent(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.heartbeat_leases(conn, [Heartbeat(token, seq=1)])
        creating = await rival(context.database, submit_jobs(context, [child_of(token)]), waits=False)
        assert accepted(creating.result()[0]).created


async def test_two_children_of_one_parent_do_not_wait_for_each_other(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await submissions.lock_parents(conn, [token])
        creating = await rival(context.database, submit_jobs(context, [child_of(token)]), waits=False)
        assert accepted(creating.result()[0]).created


async def test_the_reaper_leaves_a_parent_whose_child_is_being_created(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        await submissions.lock_parents(conn, [token])
        reaping = await rival(context.database, expire_leases(context), waits=False)
        assert reaping.result() == 0
    assert await expire_leases(context) == 1


async def test_two_claims_never_grant_the_same_job(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 100)
    claims = [lease_jobs(context, [wish(max_jobs=7, worker_id=f"w{n}")] * 2) for n in range(12)]
    grants = await asyncio.gather(*claims)
    ids = [job.id for each in grants for granted in each.jobs.values() for job in granted]
    assert len(ids) == len(set(ids)) == 100
    await assert_healthy(context)
