"""Leases that an application holds in a transaction of its own: nothing passes them, and nothing waits."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import psycopg
import pytest

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import AlreadyFinished, LeaseLost
from app.domain.job import JobSpec, JobState, Outcome, Parent, Token
from app.domain.retention import Retention
from app.operations import manage, patience
from app.operations.coalescer import Coalescer
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.finishes import Finishes
from app.operations.heartbeat import heartbeat_leases, verify_leases
from app.operations.patience import LeaseBusy, answer_all
from app.operations.settle import complete_leases, end_leases
from app.operations.submit import submit_batch, submit_jobs
from app.store import leases
from app.store.engine import Database
from tests.support.application import (
    AppConnection,
    Application,
    complete_in_sql,
    enqueue,
    hold,
    notes,
    take_note,
)
from tests.support.factory import (
    UNKNOWN_ID,
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
    release,
    releasing,
    settled,
    submit,
    token_of,
)
from tests.support.factory import fail as fail_job
from tests.support.rivals import Pauses, until_waiting
from tests.support.signals import RecordedSignals
from tests.support.waiting import until

SNAPSHOT_LEVELS = ["repeatable read", "serializable"]


@pytest.fixture
async def app(application: Application) -> AsyncIterator[AppConnection]:
    async with application.connect() as connection:
        yield connection


def lost(error: psycopg.Error) -> dict[str, object]:
    """Return what the detail of a refusal says."""
    assert error.sqlstate == "FP001"
    detail: dict[str, object] = json.loads(error.diag.message_detail or "")
    return detail


async def write_under(app: AppConnection, token: Token) -> None:
    async with app.transaction():
        await hold(app, token)
        await take_note(app, "stale")


async def write_and_complete(app: AppConnection, token: Token) -> None:
    async with app.transaction():
        await take_note(app, "stale")
        await complete_in_sql(app, token)


async def refused(call: Awaitable[object]) -> dict[str, object]:
    with pytest.raises(psycopg.DatabaseError) as refusal:
        await call
    return lost(refusal.value)


# The pattern: hold, write, complete, commit.


async def test_what_the_holder_writes_and_its_completion_are_committed_together(
    context: Context, app: AppConnection
) -> None:
    token = token_of(await leased(context))
    async with app.transaction():
        await hold(app, token)
        await take_note(app, "done")
        await complete_in_sql(app, token, '"done"')
    assert await notes(app) == ["done"]
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED
    await assert_healthy(context)


async def test_a_stale_worker_writes_nothing(context: Context, app: AppConnection) -> None:
    stale = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 11)
    assert await expire_leases(context) == 1
    [again] = await lease(context)
    assert await refused(write_under(app, stale)) == {
        "job_id": stale.job_id,
        "presented_version": 1,
        "current_version": 2,
        "job_state": "running",
        "reason": "expired",
    }
    # One that asks only at the end of its transaction has written nothing either.
    assert (await refused(write_and_complete(app, stale)))["reason"] == "expired"
    async with app.transaction():
        await hold(app, token_of(again))
        await take_note(app, "new")
        await complete_in_sql(app, token_of(again))
    assert await notes(app) == ["new"]
    await assert_healthy(context)


async def test_what_is_rolled_back_leaves_the_lease_as_it_was(context: Context, app: AppConnection) -> None:
    token = token_of(await leased(context))
    before = await read(context, token.job_id)
    await app.execute("BEGIN")
    await hold(app, token)
    await take_note(app, "undone")
    await complete_in_sql(app, token)
    await app.execute("ROLLBACK")
    assert await notes(app) == []
    assert await read(context, token.job_id) == before
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED


# What a refusal says.


async def end_by_cancel(context: Context, token: Token) -> None:
    await manage.cancel_job(context, token.job_id, reason=None, force=True)


async def end_by_expiry(context: Context, token: Token) -> None:
    await elapse(context, 100)
    assert await expire_leases(context) == 1


ENDINGS: dict[str, tuple[JobSpec, Callable[[Context, Token], Awaitable[object]]]] = {
    "finished": (JobSpec(kind="test"), complete),
    "failed": (JobSpec(kind="test"), fail_job),
    "released": (JobSpec(kind="test"), release),
    "cancelled": (JobSpec(kind="test"), end_by_cancel),
    "expired": (JobSpec(kind="test"), end_by_expiry),
    "stalled": (JobSpec(kind="test", progress_timeout_seconds=10.0), end_by_expiry),
    "deadline_exceeded": (JobSpec(kind="test", max_runtime_seconds=20.0), end_by_expiry),
}


@pytest.mark.parametrize("reason", ENDINGS)
async def test_a_lost_lease_is_refused_as_over_http(
    context: Context, app: AppConnection, reason: str
) -> None:
    spec, end = ENDINGS[reason]
    token = token_of(await leased(context, spec))
    await end(context, token)
    refusal = await heartbeat(context, Heartbeat(token))
    assert isinstance(refusal, LeaseLost)
    assert refusal.reason == reason
    calls = (
        hold(app, token),
        complete_in_sql(app, token),
        enqueue(app, parent_job_id=token.job_id, parent_lease_version=token.lease_version),
    )
    for call in calls:
        assert await refused(call) == refusal.members


async def test_a_version_that_was_never_granted_and_a_job_that_never_was_are_refused(
    context: Context, app: AppConnection
) -> None:
    job = await leased(context)
    for token, current in ((Token(job.id, 7), 1), (Token(UNKNOWN_ID, 1), None)):
        assert await refused(hold(app, token)) == {
            "job_id": token.job_id,
            "presented_version": token.lease_version,
            "current_version": current,
            "job_state": current and "running",
            "reason": "unknown",
        }


async def test_the_holder_is_told_what_a_heartbeat_would_tell(context: Context, app: AppConnection) -> None:
    job = await leased(context, JobSpec(kind="test", max_runtime_seconds=600.0))
    held = await hold(app, token_of(job))
    assert (held.lease_expires_at, held.deadline_at, held.cancel_requested) == (
        job.lease_expires_at,
        job.deadline_at,
        False,
    )


# A completion in SQL, and those who repeat it or wait for it.


@pytest.mark.parametrize("result", [None, '{"b": 1, "a":  [0.10]}'])
async def test_a_completion_is_repeated_over_http_and_another_one_refused(
    context: Context, app: AppConnection, result: str | None
) -> None:
    token = token_of(await leased(context))
    await complete_in_sql(app, token, result)
    same = '{"a": [0.10], "b": 1}' if result else None
    for _ in range(2):
        assert settled(await complete(context, token, result=same)).is_replay
    [many] = await complete_leases(context, [completing(token, same)], with_jobs=False)
    assert settled(many).is_replay
    others = [
        await complete(context, token, result='"another"'),
        await complete(context, token, result=same, enqueue=[JobSpec(kind="more")]),
        await fail_job(context, token),
    ]
    for other in others:
        assert isinstance(other, LeaseLost)
        assert other.reason == "finished"


async def test_a_completion_is_not_repeated_in_sql(context: Context, app: AppConnection) -> None:
    token = token_of(await leased(context))
    await complete_in_sql(app, token)
    assert (await refused(complete_in_sql(app, token)))["reason"] == "finished"


async def test_who_waits_for_the_end_of_a_job_is_told_after_the_commit(
    context: Context, app: AppConnection
) -> None:
    token = token_of(await leased(context))
    finishes = Finishes()
    waiter = asyncio.create_task(
        finishes.wait(token.job_id, wait_seconds=30, disconnected=asyncio.Event().wait)
    )
    await until(lambda: finishes._waiting)
    async with app.transaction():
        await complete_in_sql(app, token)
        await finishes.look(context)
        assert finishes._waiting
    await finishes.look(context)
    assert await waiter


# What passes a lease that is held.


async def test_heartbeats_pass_and_the_lock_outlasts_them(context: Context, app: AppConnection) -> None:
    job = await leased(context)
    token = token_of(job)
    async with app.transaction():
        await hold(app, token)
        for seq in range(3):
            renewed = await heartbeat(context, Heartbeat(token, extend_seconds=3600.0, seq=seq))
            assert isinstance(renewed, RenewedLease)
            assert renewed.lease_expires_at > job.lease_expires_at
        assert isinstance(await complete(context, token), LeaseBusy)
        await complete_in_sql(app, token)
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED


async def test_a_cancel_is_asked_for_and_the_holder_sees_it(context: Context, app: AppConnection) -> None:
    token = token_of(await leased(context))
    async with app.transaction():
        await hold(app, token)
        cancelled = await manage.cancel_job(context, token.job_id, reason="stop", force=False)
        assert cancelled.is_requested
        assert (await hold(app, token)).cancel_requested
        # A complete still wins.
        await complete_in_sql(app, token)
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED


async def test_children_reads_and_leases_of_others_pass(context: Context, app: AppConnection) -> None:
    token = token_of(await leased(context))
    parent = Parent(token.job_id, token.lease_version)
    async with app.transaction():
        await hold(app, token)
        [child] = await submit(context, JobSpec(kind="child", parent=parent))
        assert await verify_leases(context, [token]) == [None]
        assert [job.id for job in await lease(context)] == [child.id]
        assert (await read(context, token.job_id)).state is JobState.RUNNING
        await assert_healthy(context)


# What does not.

CLOCKS = {
    "lease": JobSpec(kind="test"),
    "progress": JobSpec(kind="test", progress_timeout_seconds=10.0),
    "deadline": JobSpec(kind="test", max_runtime_seconds=10.0),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("isolation", ["read committed", *SNAPSHOT_LEVELS])
async def test_no_clock_ends_a_lease_that_is_held_and_each_does_afterwards(
    context: Context, application: Application, clock: str, isolation: str
) -> None:
    await submit(context, *[CLOCKS[clock]] * 2)
    seconds = 10.0 if clock == "lease" else 3600.0
    held, other = await lease(context, max_jobs=2, lease_seconds=seconds)
    await elapse(context, 11)
    async with application.connect(isolation=isolation) as app:
        await app.execute("BEGIN")
        await hold(app, token_of(held))
        assert await expire_leases(context) == 1
        assert (await read(context, other.id)).state is not JobState.RUNNING
        assert (await read(context, held.id)).state is JobState.RUNNING
        await app.execute("ROLLBACK")
        assert await expire_leases(context) == 1
    await assert_healthy(context)


@pytest.mark.parametrize("clock", CLOCKS)
async def test_a_late_holder_completes_before_the_reaper_comes_by(
    context: Context, app: AppConnection, clock: str
) -> None:
    job = await leased(context, CLOCKS[clock], lease_seconds=10.0)
    await elapse(context, 11)
    async with app.transaction():
        await complete_in_sql(app, token_of(job))
        assert await expire_leases(context) == 0
    assert await expire_leases(context) == 0
    assert (await read(context, job.id)).state is JobState.SUCCEEDED
    await assert_healthy(context)


async def test_no_other_ending_passes_and_each_is_accepted_afterwards(
    context: Context, app: AppConnection
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 4)
    jobs = await lease(context, max_jobs=4)
    tokens = [token_of(job) for job in jobs]
    async with app.transaction():
        for token in tokens:
            await hold(app, token)
        assert isinstance(await complete(context, tokens[0]), LeaseBusy)
        assert isinstance(await fail_job(context, tokens[1]), LeaseBusy)
        assert isinstance(await release(context, tokens[2]), LeaseBusy)
        for token in tokens:
            await hold(app, token)
    assert settled(await complete(context, tokens[0])).state is JobState.SUCCEEDED
    assert settled(await fail_job(context, tokens[1])).state is JobState.SCHEDULED
    assert settled(await release(context, tokens[2])).state is JobState.READY
    await assert_healthy(context)


@pytest.mark.parametrize("is_completed", [False, True])
async def test_a_forced_cancel_comes_after_the_holders_commit(
    context: Context, app: AppConnection, pauses: Pauses, *, is_completed: bool
) -> None:
    token = token_of(await leased(context))
    async with app.transaction():
        await hold(app, token)
        cancelling = await pauses.first_of(manage.cancel_job(context, token.job_id, reason="now", force=True))
        assert not (await hold(app, token)).cancel_requested
        if is_completed:
            await complete_in_sql(app, token)
    [outcome] = await asyncio.gather(cancelling, return_exceptions=True)
    if is_completed:
        assert isinstance(outcome, AlreadyFinished)
    else:
        assert isinstance(outcome, manage.Cancelled)
        assert outcome.job.state is JobState.CANCELLED
        assert (await refused(hold(app, token)))["reason"] == "cancelled"
    await assert_healthy(context)


async def test_nobody_is_granted_the_job_before_the_commit(context: Context, app: AppConnection) -> None:
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 11)
    async with app.transaction():
        await hold(app, token)
        await expire_leases(context)
        assert await lease(context) == []
        await take_note(app, "first")
    await expire_leases(context)
    [again] = await lease(context)
    assert again.lease_version == token.lease_version + 1


async def test_a_holder_waits_for_an_ending_that_was_first(
    context: Context, app: AppConnection, database: Database
) -> None:
    ended, kept = token_of(await leased(context)), token_of(await leased(context))
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(ended).completion])
        holding = asyncio.create_task(refused(hold(app, ended)))
        await until_waiting(database)
    assert (await holding)["reason"] == "finished"
    async with context.database.begin() as conn:
        await leases.complete_leases(conn, [completing(kept).completion])
        held = asyncio.create_task(hold(app, kept))
        await until_waiting(database)
        await conn.run(b"ROLLBACK")
    assert not (await held).cancel_requested


async def test_two_transactions_hold_one_lease_and_one_of_them_completes_it(
    context: Context, application: Application, app: AppConnection, database: Database
) -> None:
    token = token_of(await leased(context))
    async with application.connect() as other:
        await other.execute("BEGIN")
        await hold(other, token)
        await app.execute("BEGIN")
        await hold(app, token)
        completing_first = asyncio.create_task(complete_in_sql(app, token))
        await until_waiting(database)
        await other.execute("COMMIT")
        await completing_first
        await app.execute("COMMIT")
    assert len(await records(context, token.job_id)) == 1


# Nobody waits with those who meet a lock.


async def test_a_batch_of_heartbeats_is_answered_though_one_lease_is_being_completed(
    context: Context, app: AppConnection
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 5)
    jobs = await lease(context, max_jobs=5)
    beats = [Heartbeat(token_of(job), extend_seconds=3600.0) for job in jobs]
    async with app.transaction():
        await complete_in_sql(app, beats[2].token)
        busy = await heartbeat_leases(context, beats)
        assert [isinstance(each, RenewedLease) for each in busy] == [True, True, False, True, True]
        # It is alive for as long as it is locked: its expiry as it is, and the others once only.
        answers = await answer_all(partial(heartbeat_leases, context), beats)
        expiries = [each.lease_expires_at for each in answers if isinstance(each, RenewedLease)]
        assert expiries[2] == jobs[2].lease_expires_at
        assert min(expiries[:2] + expiries[3:]) > jobs[2].lease_expires_at
    [late] = await heartbeat_leases(context, [beats[2]])
    assert isinstance(late, LeaseLost)


async def test_a_batch_of_endings_ends_the_others_at_once(context: Context, app: AppConnection) -> None:
    await submit(context, *[JobSpec(kind="test")] * 9)
    tokens = [token_of(job) for job in await lease(context, max_jobs=9)]
    async with app.transaction():
        for held in (tokens[1], tokens[4], tokens[7]):
            await hold(app, held)
        answers = [
            *await complete_leases(context, [completing(token) for token in tokens[:3]], with_jobs=False),
            *await end_leases(context, [failing(token) for token in tokens[3:6]], with_jobs=False),
            *await end_leases(context, [releasing(token) for token in tokens[6:]], with_jobs=True),
        ]
        assert [isinstance(answer, LeaseBusy) for answer in answers] == [False, True, False] * 3
        states = [(await read(context, token.job_id)).state.value for token in tokens]
    assert states == [
        *("succeeded", "running", "succeeded"),
        *("scheduled", "running", "scheduled"),
        *("ready", "running", "ready"),
    ]
    await assert_healthy(context)


async def test_children_of_other_parents_are_created_at_once(context: Context, app: AppConnection) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    held, free = await lease(context, max_jobs=2)
    specs = [JobSpec(kind="child", parent=Parent(job.id, job.lease_version)) for job in (held, free)]
    async with app.transaction():
        await complete_in_sql(app, token_of(held))
        busy, created = await submit_jobs(context, specs)
        assert isinstance(busy, LeaseBusy)
        assert accepted(created).created
    [refusal] = await submit_jobs(context, specs[:1])
    assert isinstance(refusal, LeaseLost)
    with pytest.raises(LeaseLost):
        await submit_batch(context, specs)


async def test_a_call_that_waits_for_the_holder_has_no_connection_in_hand(
    database_url: str, application: Application, app: AppConnection, pauses: Pauses
) -> None:
    database = Database(database_url, pool_size=1)
    context = Context(database, Retention(), RecordedSignals())
    token = token_of(await leased(context))
    complete_one = Coalescer(partial(complete_leases, context, with_jobs=True))
    async with app.transaction():
        await hold(app, token)
        calls = [
            await pauses.first_of(complete_one.submit(completing(token))),
            await pauses.first_of(manage.cancel_job(context, token.job_id, reason=None, force=True)),
            await pauses.first_of(
                answer_all(partial(end_leases, context, with_jobs=False), [releasing(token)])
            ),
        ]
        # The only connection of the pool is free for all others.
        for _ in range(20):
            settled(await complete(context, token_of(await leased(context))))
        assert not any(call.done() for call in calls)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert not any(isinstance(outcome, LeaseBusy) for outcome in outcomes)
    assert len(await records(context, token.job_id)) == 1
    await assert_healthy(context)
    await database.close()


async def test_a_call_gives_up_when_its_time_is_over(
    context: Context, app: AppConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "MAX_SECONDS", 0.05)
    token = token_of(await leased(context))
    async with app.transaction():
        await hold(app, token)
        with pytest.raises(LeaseBusy) as refusal:
            await answer_all(partial(complete_leases, context, with_jobs=False), [completing(token)])
        assert refusal.value.code == "unavailable"
        with pytest.raises(LeaseBusy):
            await manage.cancel_job(context, token.job_id, reason=None, force=True)
    assert settled(await complete(context, token)).state is JobState.SUCCEEDED


# Transactions that keep their snapshot.


@pytest.mark.parametrize("isolation", SNAPSHOT_LEVELS)
async def test_a_holder_that_keeps_its_snapshot_completes_what_heartbeats_left_alone(
    context: Context, application: Application, isolation: str
) -> None:
    job = await leased(context)
    token = token_of(job)
    async with application.connect(isolation=isolation) as app, app.transaction():
        await hold(app, token)
        beat = await heartbeat(context, Heartbeat(token, extend_seconds=3600.0))
        assert isinstance(beat, LeaseBusy)
        assert beat.instead == RenewedLease(job.lease_expires_at, None, cancel_requested=False)
        await complete_in_sql(app, token)
    assert (await read(context, token.job_id)).state is JobState.SUCCEEDED
    await assert_healthy(context)


@pytest.mark.parametrize("isolation", SNAPSHOT_LEVELS)
async def test_a_heartbeat_after_the_snapshot_has_the_transaction_run_again(
    context: Context, application: Application, isolation: str
) -> None:
    token = token_of(await leased(context))
    async with application.connect(isolation=isolation) as app:
        await app.execute("BEGIN")
        await notes(app)
        await heartbeat(context, Heartbeat(token))
        with pytest.raises(psycopg.errors.SerializationFailure):
            await hold(app, token)
        await app.execute("ROLLBACK")
        async with app.transaction():
            await hold(app, token)


@pytest.mark.parametrize("isolation", SNAPSHOT_LEVELS)
async def test_an_end_after_the_snapshot_is_never_taken_for_a_lease_that_is_held(
    context: Context, application: Application, isolation: str
) -> None:
    token = token_of(await leased(context))
    async with application.connect(isolation=isolation) as app:
        await app.execute("BEGIN")
        await notes(app)
        await complete(context, token)
        with pytest.raises(psycopg.errors.SerializationFailure):
            await hold(app, token)
        await app.execute("ROLLBACK")
        assert (await refused(hold(app, token)))["reason"] == "finished"


async def test_an_outcome_is_known_of_every_ending_that_a_refusal_may_name() -> None:
    named = {"expired" if outcome is Outcome.LEASE_EXPIRED else outcome.value for outcome in Outcome}
    assert set(ENDINGS) == named - {"running", "succeeded"} | {"finished"}
