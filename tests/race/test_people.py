"""Cancel, redrive and edit against leases, the promoter and each other."""

import asyncio

from app.domain.calls import Edit
from app.domain.errors import FencepostError, NotRedrivable
from app.domain.job import JobSpec, JobState
from app.operations import manage
from app.operations.context import Context
from app.operations.upkeep import promote_jobs
from app.store import jobs, leases, schedule
from app.store.leases import Demand
from tests.support.factory import assert_healthy, elapse, job_in, lease, read, submit
from tests.support.rivals import rival

DEMAND = Demand(0, "default", 1, 1, "worker", 60.0)


async def test_a_cancel_that_waits_for_a_grant_asks_the_holder_to_stop(context: Context) -> None:
    [job] = await submit(context)
    async with context.database.begin() as conn:
        await leases.lease_jobs(conn, [DEMAND])
        call = manage.cancel_job(context, job.id, reason=None, force=False)
        cancelling = await rival(context.database, call)
    cancelled = await cancelling
    assert cancelled.is_requested
    assert cancelled.job.lease is not None
    assert cancelled.job.lease.cancel_requested
    await assert_healthy(context)


async def test_a_cancel_that_waits_for_a_grant_that_is_undone_cancels_at_once(context: Context) -> None:
    [job] = await submit(context)
    async with context.database.begin() as conn:
        await leases.lease_jobs(conn, [DEMAND])
        call = manage.cancel_job(context, job.id, reason=None, force=False)
        cancelling = await rival(context.database, call)
        await conn.run(b"ROLLBACK")
    assert (await cancelling).job.state is JobState.CANCELLED


async def test_a_grant_passes_over_a_job_that_is_being_cancelled(context: Context) -> None:
    [cancelled, other] = await submit(context, *[JobSpec(kind="test")] * 2)
    async with context.database.begin() as conn:
        locked = await jobs.lock_job(conn, cancelled.id, retention=context.retention)
        assert locked is not None
        leasing = await rival(context.database, lease(context, max_jobs=5), waits=False)
        assert [job.id for job in leasing.result()] == [other.id]
        await jobs.cancel_waiting(conn, locked.token, error=None, version_step=0)
    assert await lease(context, max_jobs=5) == []
    await assert_healthy(context)


async def test_a_grant_passes_over_a_job_that_is_being_edited_and_then_finds_it(context: Context) -> None:
    [job] = await submit(context)
    async with context.database.begin() as conn:
        locked = await jobs.lock_job(conn, job.id, retention=context.retention)
        assert locked is not None
        await jobs.edit_job(conn, locked.token, Edit(priority=5))
        leasing = await rival(context.database, lease(context), waits=False)
        assert leasing.result() == []
    assert [(granted.id, granted.priority) for granted in await lease(context)] == [(job.id, 5)]


async def test_of_two_redrives_one_brings_the_job_back_and_the_other_is_refused(context: Context) -> None:
    job = await job_in(context, JobState.DEAD)
    async with context.database.begin() as conn:
        locked = await jobs.lock_job(conn, job.id, retention=context.retention)
        assert locked is not None
        late = await rival(context.database, manage.redrive_job(context, job.id, run_at=None))
        await jobs.redrive_job(conn, locked.token, run_at=None)
    [outcome] = await asyncio.gather(late, return_exceptions=True)
    assert isinstance(outcome, NotRedrivable)
    assert outcome.job_state == "ready"
    assert (await read(context, job.id)).lease_version == job.lease_version + 1
    await assert_healthy(context)


async def test_many_redrives_at_once_bring_a_job_back_once(context: Context) -> None:
    job = await job_in(context, JobState.DEAD)
    calls = [manage.redrive_job(context, job.id, run_at=None) for _ in range(4)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    codes = [result.code if isinstance(result, FencepostError) else "ok" for result in results]
    assert sorted(codes) == ["not_redrivable"] * 3 + ["ok"]
    assert (await read(context, job.id)).lease_version == job.lease_version + 1


async def test_a_cancel_that_waits_for_a_cancel_is_answered_with_the_cancelled_job(context: Context) -> None:
    [job] = await submit(context)
    async with context.database.begin() as conn:
        locked = await jobs.lock_job(conn, job.id, retention=context.retention)
        assert locked is not None
        late = await rival(context.database, manage.cancel_job(context, job.id, reason=None, force=True))
        await jobs.cancel_waiting(conn, locked.token, error=None, version_step=0)
    cancelled = await late
    assert cancelled.job.state is JobState.CANCELLED
    # The second cancelled nothing, so the version did not grow.
    assert cancelled.job.lease_version == 0


async def test_an_edit_that_waits_for_the_promoter_finds_the_job_ready(context: Context) -> None:
    [job] = await submit(context, JobSpec(kind="test", delay_seconds=60.0))
    await elapse(context, 61)
    async with context.database.begin() as conn:
        await schedule.promote_jobs(conn, max_jobs=10)
        editing = await rival(context.database, manage.edit_job(context, job.id, Edit(priority=1)))
    edited = await editing
    assert (edited.state, edited.priority) == (JobState.READY, 1)
    await assert_healthy(context)


async def test_the_promoter_passes_over_a_job_that_is_being_edited(context: Context) -> None:
    [job] = await submit(context, JobSpec(kind="test", delay_seconds=60.0))
    await elapse(context, 61)
    async with context.database.begin() as conn:
        locked = await jobs.lock_job(conn, job.id, retention=context.retention)
        assert locked is not None
        await jobs.edit_job(conn, locked.token, Edit(run_at=job.run_at))
        await (await rival(context.database, promote_jobs(context), waits=False))
    assert (await read(context, job.id)).state is JobState.SCHEDULED
    await assert_healthy(context)


async def test_two_promoters_share_what_is_due(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test", delay_seconds=60.0)] * 10)
    await elapse(context, 61)
    async with context.database.begin() as conn:
        first = await schedule.promote_jobs(conn, max_jobs=4)
        await (await rival(context.database, promote_jobs(context), waits=False))
    assert first == {"default": 4}
    assert len(await lease(context, max_jobs=20)) == 10
    await assert_healthy(context)
