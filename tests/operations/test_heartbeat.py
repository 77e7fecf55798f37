"""A heartbeat says that the process lives; only progress says that the work gets on."""

from datetime import datetime, timedelta

from sqlalchemy import text

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError, JobNotFound, LeaseLost
from app.domain.job import JobSpec, Progress, Token
from app.operations import manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.heartbeat import heartbeat_leases, verify_leases
from tests.support.factory import (
    UNKNOWN_ID,
    complete,
    elapse,
    heartbeat,
    lease,
    leased,
    read,
    release,
    submit,
    token_of,
)


def renewed(answer: RenewedLease | FencepostError) -> RenewedLease:
    assert isinstance(answer, RenewedLease), answer
    return answer


async def seconds_left(context: Context, at: datetime) -> float:
    async with context.database.one_statement() as conn:
        now: datetime = (await conn.execute(text("SELECT clock_timestamp()")))[0][0]
    return (at - now).total_seconds()


async def progress_of(context: Context, token: Token) -> Progress | None:
    held = (await read(context, token.job_id)).lease
    assert held is not None
    return held.progress


async def stalls_at(context: Context, token: Token) -> datetime:
    async with context.database.one_statement() as conn:
        at: datetime = (
            await conn.execute(
                text("SELECT stalls_at FROM fencepost.leases WHERE job_id = :id"), {"id": token.job_id}
            )
        )[0][0]
    return at


async def test_a_heartbeat_extends_by_the_leases_own_length_unless_told_otherwise(context: Context) -> None:
    token = token_of(await leased(context, lease_seconds=40.0))
    await elapse(context, 30)
    answer = renewed(await heartbeat(context, Heartbeat(token)))
    assert 20 < await seconds_left(context, answer.lease_expires_at) <= 40
    answer = renewed(await heartbeat(context, Heartbeat(token, extend_seconds=7.0)))
    assert 0 < await seconds_left(context, answer.lease_expires_at) <= 7


async def test_a_heartbeat_never_passes_the_deadline(context: Context) -> None:
    granted = await leased(context, JobSpec(kind="test", max_runtime_seconds=50.0), lease_seconds=10.0)
    answer = renewed(await heartbeat(context, Heartbeat(token_of(granted), extend_seconds=3600.0)))
    assert answer.lease_expires_at == answer.deadline_at == granted.deadline_at


async def test_a_heartbeat_does_not_change_the_version(context: Context) -> None:
    token = token_of(await leased(context))
    await heartbeat(context, Heartbeat(token, seq=1))
    assert (await read(context, token.job_id)).lease_version == token.lease_version


async def test_a_late_heartbeat_revives_a_lease_that_the_reaper_has_not_reclaimed(context: Context) -> None:
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 60)
    renewed(await heartbeat(context, Heartbeat(token)))
    assert await expire_leases(context) == 0


async def test_a_heartbeat_after_the_reclaim_is_refused(context: Context) -> None:
    token = token_of(await leased(context, lease_seconds=10.0))
    await elapse(context, 60)
    assert await expire_leases(context) == 1
    answer = await heartbeat(context, Heartbeat(token))
    assert isinstance(answer, LeaseLost)
    assert answer.reason == "expired"


async def test_a_holder_hears_of_a_cancel_in_its_heartbeat(context: Context) -> None:
    token = token_of(await leased(context))
    assert not renewed(await heartbeat(context, Heartbeat(token))).cancel_requested
    await manage.cancel_job(context, token.job_id, reason=None, force=False)
    assert renewed(await heartbeat(context, Heartbeat(token))).cancel_requested


async def test_a_higher_seq_replaces_the_progress_and_restarts_its_clock(context: Context) -> None:
    token = token_of(await leased(context, JobSpec(kind="test", progress_timeout_seconds=100.0)))
    await elapse(context, 50)
    await heartbeat(context, Heartbeat(token, seq=0, percent=1.5, message="begun"))
    assert await progress_of(context, token) == Progress(0, 1.5, "begun")
    assert await seconds_left(context, await stalls_at(context, token)) > 60
    await heartbeat(context, Heartbeat(token, seq=5))
    assert await progress_of(context, token) == Progress(5, None, None)


async def test_a_lower_seq_is_ignored_and_does_not_restart_the_clock(context: Context) -> None:
    token = token_of(await leased(context, JobSpec(kind="test", progress_timeout_seconds=100.0)))
    await heartbeat(context, Heartbeat(token, seq=5, percent=50.0, message="half"))
    before = await stalls_at(context, token)
    await heartbeat(context, Heartbeat(token, seq=4, percent=1.0, message="late"))
    assert await progress_of(context, token) == Progress(5, 50.0, "half")
    assert await stalls_at(context, token) == before


async def test_the_same_seq_may_change_its_words_but_does_not_restart_the_clock(context: Context) -> None:
    token = token_of(await leased(context, JobSpec(kind="test", progress_timeout_seconds=100.0)))
    await heartbeat(context, Heartbeat(token, seq=5, percent=50.0, message="half"))
    before = await stalls_at(context, token)
    await heartbeat(context, Heartbeat(token, seq=5, percent=51.0, message="half and a bit"))
    assert await progress_of(context, token) == Progress(5, 51.0, "half and a bit")
    assert await stalls_at(context, token) == before


async def test_a_heartbeat_without_progress_does_not_restart_the_progress_clock(context: Context) -> None:
    token = token_of(await leased(context, JobSpec(kind="test", progress_timeout_seconds=100.0)))
    before = await stalls_at(context, token)
    await heartbeat(context, Heartbeat(token))
    assert await stalls_at(context, token) == before


async def test_a_checkpoint_is_kept_until_another_one_replaces_it(context: Context) -> None:
    token = token_of(await leased(context))
    await heartbeat(context, Heartbeat(token, with_checkpoint=True, checkpoint='{"page": 0.10}'))
    await heartbeat(context, Heartbeat(token))
    assert (await read(context, token.job_id)).checkpoint == '{"page": 0.10}'
    await heartbeat(context, Heartbeat(token, with_checkpoint=True, checkpoint=None))
    assert (await read(context, token.job_id)).checkpoint is None


async def test_a_job_that_stands_twice_in_a_batch_is_beaten_twice(context: Context) -> None:
    token = token_of(await leased(context))
    beats = [Heartbeat(token, extend_seconds=10.0, seq=1), Heartbeat(token, extend_seconds=20.0, seq=2)]
    first, second = await heartbeat_leases(context, beats)
    assert renewed(second).lease_expires_at - renewed(first).lease_expires_at == timedelta(seconds=10)
    assert await progress_of(context, token) == Progress(2, None, None)


async def test_one_lost_heartbeat_of_a_batch_does_not_touch_the_others(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    one, two = [token_of(job) for job in await lease(context, max_jobs=2)]
    stale = Token(one.job_id, 9)
    answers = await heartbeat_leases(
        context, [Heartbeat(stale), Heartbeat(two), Heartbeat(Token(UNKNOWN_ID, 1)), Heartbeat(one)]
    )
    assert isinstance(answers[0], LeaseLost)
    assert isinstance(answers[1], RenewedLease)
    assert isinstance(answers[2], JobNotFound)
    assert isinstance(answers[3], RenewedLease)


async def test_verify_tells_what_is_held_until_the_reapers_write(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 3)
    late, released, done = [token_of(job) for job in await lease(context, max_jobs=3, lease_seconds=10.0)]
    await elapse(context, 60)
    await release(context, released)
    await complete(context, done)
    unknown = Token(UNKNOWN_ID, 1)
    answers = await verify_leases(context, [late, released, done, unknown, Token(late.job_id, 2)])
    assert answers[0] is None
    reasons = [answer.reason for answer in answers if isinstance(answer, LeaseLost)]
    assert reasons == ["released", "finished", "unknown"]
    assert isinstance(answers[3], JobNotFound)
