"""Holder calls against each other, the reaper, people and children: the row lock decides, once."""

import asyncio

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError, LeaseLost
from app.domain.job import JobSpec, JobState, Outcome, Parent, Token
from app.domain.machine import Decision, Ending
from app.operations import manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.heartbeat import heartbeat_leases
from app.operations.lease import lease_jobs
from app.operations.settle import complete_leases, end_leases
from app.operations.submit import submit_jobs
from app.store import clocks, endings, jobs, leases, submissions
from app.store.endings import EndedLease
from tests.support.factory import (
    accepted,
    assert_healthy,
    complete,
    completing,
    elapse,
    failing,
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
from tests.support.rivals import rival


async def expired(context: Context) -> Token:
    """Return the token of a lease that has run out and is not reclaimed yet."""
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 11)
    return token


async def test_a_complete_that_waits_for_the_reaper_is_refused(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        [locked] = await clocks.lock_run_out_leases(conn, max_leases=10)
        completing_late = await rival(context.database, complete(context, token))
        ending = Ending(Outcome.LEASE_EXPIRED)
        await endings.end_leases(conn, [EndedLease(locked.token, ending, Decision(JobState.READY, 1))])
    answer = await completing_late
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "expired"
    assert (await read(context, token.job_id)).state is JobState.READY
    await assert_healthy(context)


async def test_a_complete_that_waits_for_a_reaper_that_gives_up_is_accepted(context: Context) -> None:
    token = await expired(context)
    async with context.database.begin() as conn:
        await clocks.lock_run_out_leases(conn, max_leases=10)
        completing_late = await rival(context.database, complete(context, token))
        await conn.run(b"ROLLBACK")
    assert settled(await completing_late).state is JobState.SUCCEEDED
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
        same = await rival(context.database, complete(context, token, result="1"))
    assert settled(await same).is_replay


async def test_of_two_different_endings_of_one_version_the_second_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        failing_too = await rival(context.database, end_leases(context, [failing(token)], with_jobs=False))
    [answer] = await failing_too
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"
    await assert_healthy(context)


async def test_a_heartbeat_that_waits_for_a_completion_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        beating = await rival(context.database, heartbeat(context, Heartbeat(token)))
    answer = await beating
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"


async def test_a_completion_that_waits_for_a_heartbeat_is_accepted_with_its_checkpoint(
    context: Context,
) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.heartbeat_leases(conn, [Heartbeat(token, with_checkpoint=True, checkpoint="7")])
        late = await rival(context.database, complete(context, token))
    assert settled(await late).state is JobState.SUCCEEDED
    assert (await read(context, token.job_id)).checkpoint == "7"


async def test_a_completion_that_waits_for_a_forced_cancel_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await jobs.request_cancel(conn, token, reason="now")
        late = await rival(context.database, complete(context, token))
        ending, decision = Ending(Outcome.CANCELLED), Decision(JobState.CANCELLED, 1)
        await endings.end_leases(conn, [EndedLease(token, ending, decision, version_step=1)])
    answer = await late
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "cancelled"
    await assert_healthy(context)


async def test_a_cancel_that_waits_for_a_completion_finds_the_job_finished(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        cancelling = await rival(
            context.database, manage.cancel_job(context, token.job_id, reason=None, force=True)
        )
    [outcome] = await asyncio.gather(cancelling, return_exceptions=True)
    assert isinstance(outcome, FencepostError)
    assert outcome.code == "already_finished"
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED


async def test_a_failure_that_waits_for_a_cancel_request_cancels_the_job(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await jobs.request_cancel(conn, token, reason="stop")
        late = await rival(context.database, end_leases(context, [failing(token)], with_jobs=False))
    [answer] = await late
    assert settled(answer).state is JobState.CANCELLED


async def test_a_cancel_that_waits_for_a_release_cancels_the_job_where_it_went(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await endings.lock_leases(conn, [token])
        cancelling = await rival(
            context.database, manage.cancel_job(context, token.job_id, reason=None, force=False)
        )
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
            *(heartbeat_leases(context, beats) for beats in (there, back, there, back))
        )
        assert all(isinstance(answer, RenewedLease) for batch in answers for answer in batch)
    # A deadlock would be raised as Unavailable.
    await asyncio.gather(
        complete_leases(context, [completing(token) for token in tokens], with_jobs=False),
        complete_leases(context, [completing(token) for token in tokens[::-1]], with_jobs=False),
        end_leases(context, [releasing(token) for token in tokens[::-1]], with_jobs=False),
    )
    await assert_healthy(context)


# A child needs its parent's lease to be held at its own commit.


def child_of(token: Token) -> JobSpec:
    return JobSpec(kind="child", queue="children", parent=Parent(token.job_id, token.lease_version))


async def test_a_parent_that_ends_waits_for_a_child_that_is_being_created(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        assert await submissions.lock_parents(conn, [token]) == {token}
        completing_parent = await rival(context.database, complete(context, token))
        await submissions.insert_jobs(conn, [(0, child_of(token), None)])
    assert settled(await completing_parent).state is JobState.SUCCEEDED
    [child] = await lease(context, "children")
    assert child.parent == Parent(token.job_id, token.lease_version)


async def test_a_child_that_waits_for_the_end_of_its_parents_lease_is_refused(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        creating = await rival(context.database, submit_jobs(context, [child_of(token)]))
    [answer] = await creating
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "finished"


async def test_a_child_that_waits_for_an_end_that_is_undone_is_created(context: Context) -> None:
    token = token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(token).completion])
        creating = await rival(context.database, submit_jobs(context, [child_of(token)]))
        await conn.run(b"ROLLBACK")
    assert accepted((await creating)[0]).created


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
