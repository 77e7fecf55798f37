"""A remembered head spares a claim the walk over what was leased, and hides no job."""

from datetime import UTC, datetime, timedelta

import pytest

from app.domain.errors import Unavailable
from app.domain.job import JobSpec
from app.operations import lease as lease_operation
from app.operations import manage
from app.operations.context import Context
from app.operations.heads import TOP_SECONDS, WORTH_JOBS, Beginning, Heads
from app.operations.lease import lease_jobs, lease_jobs_once
from app.store.leases import Place
from tests.support.factory import lease, release, submit, token_of, wish

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def place(number: int, *, priority: int = 0) -> Place:
    return Place(priority, NOW + timedelta(seconds=number), f"job{number:06}")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def filled(heads: Heads, last: int, *, jobs: int = WORTH_JOBS) -> None:
    """Note a claim that took so many jobs, the last of them at place ``last``."""
    taken = [place(number) for number in range(last - jobs + 1, last + 1)]
    heads.claimed(heads.begin(["q"]), "q", taken, is_filled=True)


def head(heads: Heads) -> Place | None:
    return heads.begin(["q"]).heads.get("q")


def test_a_queue_has_no_head_until_many_jobs_were_leased_of_it() -> None:
    heads = Heads()
    filled(heads, 10, jobs=10)
    assert head(heads) is None
    filled(heads, 1000)
    assert head(heads) == place(1000)


def test_a_claim_that_found_too_little_ends_the_head() -> None:
    heads = Heads()
    filled(heads, 1000)
    heads.claimed(heads.begin(["q"]), "q", [place(1001)], is_filled=False)
    assert head(heads) is None


def test_now_and_then_a_claim_begins_at_the_top() -> None:
    clock = Clock()
    heads = Heads(clock=clock)
    filled(heads, 1000)
    clock.now += TOP_SECONDS - 0.01
    filled(heads, 1500)
    clock.now += 0.02
    assert head(heads) is None
    filled(heads, 2000)
    assert head(heads) == place(2000)


def test_the_dearer_the_top_is_the_less_often_a_claim_begins_there() -> None:
    clock = Clock()
    heads = Heads(clock=clock)
    beginning = heads.begin(["q"])
    clock.now += 0.05
    heads.claimed(beginning, "q", [place(number) for number in range(WORTH_JOBS)], is_filled=True)
    clock.now += 2.0
    assert head(heads) == place(WORTH_JOBS - 1)
    clock.now += 1.0
    assert head(heads) is None


def test_a_job_put_before_the_head_ends_it_and_one_put_behind_does_not() -> None:
    heads = Heads()
    filled(heads, 1000)
    heads.placed("q", place(1001))
    assert head(heads) == place(1000)
    heads.placed("q", place(999))
    assert head(heads) is None


@pytest.mark.parametrize("placed", [None, place(1200)], ids=["somewhere", "between"])
def test_a_job_put_before_the_head_while_a_claim_runs_is_not_passed_over(
    placed: Place | None,
) -> None:
    heads = Heads()
    filled(heads, 1000)
    beginning = heads.begin(["q"])
    heads.placed("q", placed)
    heads.claimed(beginning, "q", [place(1100), place(1300)], is_filled=True)
    assert head(heads) is None


def test_a_job_that_the_claim_itself_took_does_not_end_the_head() -> None:
    heads = Heads()
    filled(heads, 1000)
    beginning = heads.begin(["q"])
    heads.placed("q", place(1100))
    heads.claimed(beginning, "q", [place(1100), place(1300)], is_filled=True)
    assert head(heads) == place(1300)


async def with_head(context: Context, *, left: int) -> None:
    """Lease so many jobs of the default queue that it has a head, and leave some."""
    await submit(context, *[JobSpec(kind="old")] * (WORTH_JOBS + left))
    await lease(context, max_jobs=WORTH_JOBS)
    assert beginning(context).heads


def beginning(context: Context) -> Beginning:
    return context.heads.begin(["default"])


def lasting(context: Context) -> Context:
    """Return a context whose heads only a claim or a job can end."""
    clock = Clock()
    return Context(context.database, context.retention, context.signals, Heads(clock=clock))


async def test_a_more_urgent_job_of_another_replica_is_leased_first(context: Context) -> None:
    context, other = lasting(context), context
    await with_head(context, left=10)
    await submit(other, JobSpec(kind="urgent", priority=-5))
    assert beginning(context).heads
    assert [job.kind for job in await lease(context, max_jobs=2)] == ["urgent", "old"]


async def test_a_job_of_another_replica_before_the_head_is_found_at_last(
    context: Context,
) -> None:
    context, other = lasting(context), context
    await with_head(context, left=1)
    early = datetime.now(UTC) - timedelta(days=1)
    await submit(other, *[JobSpec(kind="early", run_at=early)] * 2)
    assert [job.kind for job in await lease(context)] == ["old"]
    assert [job.kind for job in await lease(context)] == ["early"]


async def test_a_poll_is_filled_from_before_the_head_too(context: Context) -> None:
    context, other = lasting(context), context
    await with_head(context, left=1)
    early = datetime.now(UTC) - timedelta(days=1)
    await submit(other, *[JobSpec(kind="early", run_at=early)] * 2)
    assert [job.kind for job in await lease(context, max_jobs=9)] == ["early", "early", "old"]


async def test_a_poll_that_can_be_repeated_looks_before_the_head_too(context: Context) -> None:
    context, other = lasting(context), context
    await with_head(context, left=3)
    [one] = (await lease_jobs_once(context, [wish(request_id="first")])).jobs.values()
    assert [job.kind for job in one] == ["old"]
    assert beginning(context).heads
    early = datetime.now(UTC) - timedelta(days=1)
    await submit(other, JobSpec(kind="early", run_at=early))
    [rest] = (await lease_jobs_once(context, [wish(request_id="second", max_jobs=9)])).jobs.values()
    assert [job.kind for job in rest] == ["early", "old", "old"]


async def test_a_released_job_is_at_the_front_again(context: Context) -> None:
    context = lasting(context)
    await submit(context, *[JobSpec(kind="old")] * (WORTH_JOBS + 10))
    first = (await lease(context, max_jobs=WORTH_JOBS))[0]
    await release(context, token_of(first))
    [again] = await lease(context)
    assert again.id == first.id


async def test_an_edited_and_a_redriven_job_are_where_they_belong(context: Context) -> None:
    context = lasting(context)
    cancelled = (await submit(context, JobSpec(kind="cancelled")))[0]
    await manage.cancel_job(context, cancelled.id, reason=None, force=False)
    await with_head(context, left=10)
    await manage.redrive_job(context, cancelled.id, run_at=datetime.now(UTC) - timedelta(hours=1))
    assert [job.kind for job in await lease(context)] == ["cancelled"]


async def test_polls_of_several_queues_begin_at_the_heads_too(context: Context) -> None:
    context = lasting(context)
    await with_head(context, left=3)
    await submit(context, JobSpec(kind="other", queue="other"))
    grants = await lease_jobs(context, [wish("default", "other", max_jobs=10)])
    assert sorted(job.kind for job in grants.jobs[0]) == ["old", "old", "old", "other"]


async def test_what_was_granted_stays_granted_when_the_look_from_the_top_fails(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = lasting(context)
    await with_head(context, left=1)
    claim = lease_operation._claim

    async def fail_at_top(context: Context, wishes: list[object], begun: Beginning) -> object:
        if not begun.heads:
            raise Unavailable("The database does not answer.")
        return await claim(context, wishes, begun)  # type: ignore[arg-type]

    monkeypatch.setattr(lease_operation, "_claim", fail_at_top)
    grants = await lease_jobs(context, [wish(), wish()])
    assert [job.kind for jobs in grants.jobs.values() for job in jobs] == ["old"]
    assert len(grants.crowded) == 1


def test_queues_longest_unused_are_forgotten() -> None:
    heads = Heads()
    one = [place(number) for number in range(WORTH_JOBS)]
    for number in range(10_001):
        name = f"q{number}"
        heads.claimed(heads.begin([name]), name, one, is_filled=True)
    assert "q0" not in heads.begin(["q0"]).heads
    assert "q10000" in heads.begin(["q10000"]).heads
