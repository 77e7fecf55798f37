"""Parked lease calls: one wake a job, nothing for who has gone, no wake-up lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

import pytest
from sqlalchemy import ClauseElement

import app.operations.polls
from app.domain.errors import InvalidRequest, Unavailable
from app.domain.job import JobSpec, JobState, LeasedJob
from app.domain.retention import Retention
from app.operations.context import Context
from app.operations.lease import Grants, Wish, lease_jobs
from app.operations.line import MAX_JOBS_A_CLAIM, MAX_POLLS_A_CLAIM
from app.operations.polls import Polls
from app.store.backlogs import READ_READY_QUEUES
from app.store.engine import Connection, Database, Rows
from app.store.lease_requests import READ_LEASE_REQUESTS, REMEMBER_LEASE_REQUESTS
from app.store.leases import LEASE_JOBS
from tests.support.factory import assert_healthy, complete, read, records, submit, token_of, wish
from tests.support.signals import RecordedSignals
from tests.support.waiting import DEADLINE_SECONDS, turns, until

# Far beyond any test, so that nothing is answered because its time is over.
LONG = 10 * DEADLINE_SECONDS


class WakingSignals(RecordedSignals):
    """Tells the polls of this process of new work, as the service does."""

    polls: Polls

    def jobs_ready(self, counts: Mapping[str, int]) -> None:
        super().jobs_ready(counts)
        for queue, count in counts.items():
            self.polls.wake(queue, count)


class Claims:
    """Every claim that is made, and hooks around them."""

    def __init__(self) -> None:
        self.wishes: list[list[Wish]] = []
        self.errors: list[Exception] = []
        self.before: list[Callable[[], Awaitable[object]]] = []
        self.after: list[Callable[[], Awaitable[object]]] = []

    async def lease_jobs(self, context: Context, wishes: Sequence[Wish]) -> Grants:
        self.wishes.append(list(wishes))
        if self.errors:
            raise self.errors.pop(0)
        if self.before:
            await self.before.pop(0)()
        grants = await lease_jobs(context, wishes)
        if self.after:
            await self.after.pop(0)()
        return grants


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    recorded = Claims()
    monkeypatch.setattr(app.operations.polls, "lease_jobs", recorded.lease_jobs)
    return recorded


@pytest.fixture
def announced() -> list[str]:
    return []


@pytest.fixture
def context(database: Database) -> Context:
    return Context(database, Retention(), WakingSignals())


@pytest.fixture
async def polls(context: Context, announced: list[str], claims: Claims) -> AsyncIterator[Polls]:
    def announce(queues: Iterable[str]) -> None:
        announced.extend(queues)

    opened = Polls(context, announce_parked=announce)
    assert isinstance(context.signals, WakingSignals)
    context.signals.polls = opened
    yield opened
    opened.drain()
    assert await opened.settled(timeout_seconds=DEADLINE_SECONDS)


class Call:
    """One lease call and its client, who may hang up."""

    def __init__(self, polls: Polls, asked: Wish, *, wait_seconds: float = LONG) -> None:
        self.hung_up = asyncio.Event()
        self.task = asyncio.create_task(
            polls.lease(asked, wait_seconds=wait_seconds, disconnected=self.hung_up.wait)
        )

    async def answer(self) -> list[LeasedJob]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.task

    @property
    def is_done(self) -> bool:
        return self.task.done()


async def parked(polls: Polls, *asked: Wish, claim_count: int = 0) -> list[Call]:
    """Start calls, and return when all of them are parked and only so many claims are under way."""
    before = len(parked_polls(polls))
    calls = [Call(polls, each) for each in asked]
    await until(lambda: len(parked_polls(polls)) == before + len(calls) and len(polls._claims) == claim_count)
    return calls


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every statement that is run."""
    run: list[object] = []
    execute = Connection.execute

    async def note(
        conn: Connection, statement: ClauseElement, parameters: Mapping[str, object] | None = None
    ) -> Rows:
        run.append(statement)
        return await execute(conn, statement, parameters)

    monkeypatch.setattr(Connection, "execute", note)
    return run


def parked_polls(polls: Polls) -> set[object]:
    return {poll for of_queue in polls._line._parked.values() for poll in of_queue}


async def settled(polls: Polls) -> None:
    await turns()
    assert await polls.settled(timeout_seconds=DEADLINE_SECONDS)


async def test_a_call_for_one_job_is_answered_while_a_claim_for_many_is_under_way(
    polls: Polls, context: Context, claims: Claims
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    go_on = asyncio.Event()
    claims.before.append(go_on.wait)
    many = Call(polls, wish(max_jobs=MAX_JOBS_A_CLAIM))
    await until(lambda: claims.wishes)
    assert len(await Call(polls, wish()).answer()) == 1
    go_on.set()
    assert len(await many.answer()) == 1


async def test_a_job_that_commits_between_two_claims_under_way_is_granted(
    polls: Polls, context: Context, claims: Claims
) -> None:
    go_on = asyncio.Event()
    claims.after.append(go_on.wait)
    many = Call(polls, wish(max_jobs=MAX_JOBS_A_CLAIM))
    await until(lambda: not claims.after)
    # The first claim has looked and found nothing; the second one takes one job of two.
    [small] = await parked(polls, wish(), claim_count=1)
    await submit(context, *[JobSpec(kind="test")] * 2)
    assert len(await small.answer()) == 1
    go_on.set()
    assert len(await many.answer()) == 1


async def test_a_call_that_does_not_wait_is_answered_at_once_with_nothing(polls: Polls) -> None:
    assert await Call(polls, wish(), wait_seconds=0).answer() == []
    assert polls.parked_queues() == []


async def test_a_ready_job_is_granted_without_waiting(polls: Polls, context: Context) -> None:
    [job] = await submit(context)
    [granted] = await Call(polls, wish(), wait_seconds=LONG).answer()
    assert granted.id == job.id


async def test_calls_that_arrive_together_share_a_claim(
    polls: Polls, context: Context, claims: Claims
) -> None:
    jobs = await submit(context, *[JobSpec(kind="test")] * 3)
    calls = [Call(polls, wish(worker_id=f"w{number}"), wait_seconds=0) for number in range(3)]
    granted = [await call.answer() for call in calls]
    assert [each[0].id for each in granted] == [job.id for job in jobs]
    assert len(claims.wishes) == 1


async def test_a_parked_call_is_woken_by_new_work(
    polls: Polls, context: Context, announced: list[str]
) -> None:
    [call] = await parked(polls, wish("a", "b"))
    assert announced == ["a", "b"]
    [job] = await submit(context, JobSpec(kind="test", queue="b"))
    assert [granted.id for granted in await call.answer()] == [job.id]
    assert polls.parked_queues() == []


async def test_one_job_wakes_one_poll(polls: Polls, context: Context, claims: Claims) -> None:
    calls = await parked(polls, *[wish(worker_id=f"w{number}") for number in range(5)])
    claims.wishes.clear()
    await submit(context)
    # First come, first served.
    assert len(await calls[0].answer()) == 1
    await settled(polls)
    assert [len(each) for each in claims.wishes] == [1]
    assert not any(call.is_done for call in calls[1:])


async def test_a_burst_spreads_over_the_polls_in_one_claim(
    polls: Polls, context: Context, claims: Claims
) -> None:
    calls = await parked(polls, *[wish(worker_id=f"w{number}", max_jobs=2) for number in range(5)])
    claims.wishes.clear()
    await submit(context, *[JobSpec(kind="test")] * 6)
    granted = [await call.answer() for call in calls[:3]]
    assert [len(jobs) for jobs in granted] == [2, 2, 2]
    await settled(polls)
    assert [len(each) for each in claims.wishes] == [3]
    assert not any(call.is_done for call in calls[3:])


async def test_a_burst_for_more_polls_than_a_claim_can_hold_reaches_all_of_them(
    polls: Polls, context: Context
) -> None:
    count = 2 * MAX_POLLS_A_CLAIM + 10
    calls = await parked(polls, *[wish(worker_id=f"w{number}") for number in range(count)])
    await submit(context, *[JobSpec(kind="test")] * count)
    granted = [await call.answer() for call in calls]
    assert len({jobs[0].id for jobs in granted}) == count


async def test_work_of_unknown_amount_is_offered_until_a_poll_is_not_filled(
    polls: Polls, context: Context, claims: Claims
) -> None:
    count = 2 * MAX_POLLS_A_CLAIM + 10
    calls = await parked(polls, *[wish(worker_id=f"w{number}") for number in range(count)])
    # Another replica submits: this one is only told that there is work.
    elsewhere = Context(context.database, context.retention, RecordedSignals())
    await submit(elsewhere, *[JobSpec(kind="test")] * (count - 5))
    polls.wake("default", None)
    for call in calls[: count - 5]:
        assert len(await call.answer()) == 1
    await settled(polls)
    assert not any(call.is_done for call in calls[count - 5 :])


async def test_work_for_a_queue_that_nobody_waits_for_makes_no_claim(
    polls: Polls, context: Context, claims: Claims
) -> None:
    await parked(polls, wish("a"))
    claims.wishes.clear()
    await submit(context, JobSpec(kind="test", queue="b"))
    await settled(polls)
    assert claims.wishes == []


async def test_a_wake_up_during_the_claim_that_finds_nothing_is_not_lost(
    polls: Polls, context: Context, claims: Claims
) -> None:
    # The job commits after the claim has looked, and before the poll is parked.
    claims.after.append(lambda: submit(context))
    [granted] = await Call(polls, wish(), wait_seconds=LONG).answer()
    assert granted.attempt == 1
    assert len(claims.wishes) == 2


async def test_a_wake_up_during_another_polls_claim_is_not_lost(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [first] = await parked(polls, wish("a"))
    claims.after.append(lambda: submit(context, JobSpec(kind="test", queue="a")))
    assert await Call(polls, wish("b"), wait_seconds=0).answer() == []
    assert len(await first.answer()) == 1


async def test_a_call_that_arrives_during_a_claim_has_the_next_one(
    polls: Polls, context: Context, claims: Claims
) -> None:
    late: list[Call] = []

    async def arrive() -> None:
        late.append(Call(polls, wish("b"), wait_seconds=0))
        await turns()

    await submit(context, JobSpec(kind="test", queue="b"))
    claims.before.append(arrive)
    await Call(polls, wish("a"), wait_seconds=0).answer()
    assert len(await late[0].answer()) == 1


async def test_a_parked_call_is_answered_with_nothing_when_its_time_is_over(polls: Polls) -> None:
    assert await Call(polls, wish(), wait_seconds=0.05).answer() == []
    assert polls.parked_queues() == []


async def test_a_claim_under_way_when_the_time_is_over_decides_the_answer(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [job] = await submit(context)
    # The wait is over before the claim goes on.
    claims.before.append(lambda: asyncio.sleep(0.05))
    call = Call(polls, wish(), wait_seconds=0.02)
    assert [granted.id for granted in await call.answer()] == [job.id]


async def test_nothing_is_granted_to_a_parked_client_that_has_gone(
    polls: Polls, context: Context, claims: Claims
) -> None:
    gone, still_there = await parked(polls, wish(worker_id="gone"), wish(worker_id="there"))
    gone.hung_up.set()
    assert await gone.answer() == []
    [job] = await submit(context)
    assert [granted.id for granted in await still_there.answer()] == [job.id]
    assert [record.worker_id for record in await records(context, job.id)] == ["there"]


async def test_what_a_client_was_granted_that_left_during_the_claim_is_given_back(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [job] = await submit(context)
    call = Call(polls, wish())

    async def hang_up() -> None:
        call.hung_up.set()
        await turns()

    claims.after.append(hang_up)
    assert await call.answer() == []
    await settled(polls)
    after = await read(context, job.id)
    assert (after.state, after.attempt, after.lease_version) == (JobState.READY, 0, 1)
    assert [record.outcome for record in await records(context, job.id)] == ["released"]
    await assert_healthy(context)


async def test_what_is_given_back_goes_to_the_next_poll_that_waits(
    polls: Polls, context: Context, claims: Claims
) -> None:
    leaving, staying = await parked(polls, wish(worker_id="leaving"), wish(worker_id="staying"))

    async def hang_up() -> None:
        leaving.hung_up.set()
        await turns()

    claims.after.append(hang_up)
    [job] = await submit(context)
    [granted] = await staying.answer()
    assert (granted.id, granted.lease_version, granted.attempt) == (job.id, 2, 1)
    assert await leaving.answer() == []


async def test_a_cancelled_request_gives_back_what_its_claim_is_granted(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [job] = await submit(context)
    call = Call(polls, wish())

    async def cancel() -> None:
        call.task.cancel()
        await turns()

    claims.after.append(cancel)
    with pytest.raises(asyncio.CancelledError):
        await call.answer()
    await settled(polls)
    assert (await read(context, job.id)).state is JobState.READY


async def test_a_client_that_hangs_up_in_the_turn_of_its_answer_loses_no_job(
    polls: Polls, context: Context
) -> None:
    call = (await parked(polls, wish()))[0]
    poll = polls._line.polls()[0]
    poll.answer.add_done_callback(lambda _: call.hung_up.set())
    [job] = await submit(context)
    jobs = await call.answer()
    await settled(polls)
    # Either the answer was on its way, or it was given back; never both, never neither.
    after = await read(context, job.id)
    assert after.state is (JobState.RUNNING if jobs else JobState.READY)


async def test_a_repeated_call_takes_the_place_of_the_one_that_is_parked(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [first] = await parked(polls, wish(request_id="r"))
    second = Call(polls, wish(request_id="r"))
    assert await first.answer() == []
    await until(lambda: len(parked_polls(polls)) == 1)
    [job] = await submit(context)
    assert [granted.id for granted in await second.answer()] == [job.id]


async def test_a_repeat_of_an_answered_call_is_given_the_same_leases(polls: Polls, context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    first = await Call(polls, wish(request_id="r")).answer()
    assert len(first) == 1
    assert await Call(polls, wish(request_id="r"), wait_seconds=0).answer() == first


async def test_the_same_request_id_with_another_body_is_refused_while_the_first_is_parked(
    polls: Polls, context: Context
) -> None:
    [first] = await parked(polls, wish(request_id="r"))
    with pytest.raises(InvalidRequest):
        await Call(polls, wish(request_id="r", max_jobs=2)).answer()
    assert not first.is_done
    await submit(context)
    assert len(await first.answer()) == 1


async def test_a_request_id_is_free_again_after_an_empty_answer(polls: Polls, context: Context) -> None:
    assert await Call(polls, wish(request_id="r"), wait_seconds=0).answer() == []
    await submit(context, *[JobSpec(kind="test")] * 2)
    assert len(await Call(polls, wish(request_id="r", max_jobs=2), wait_seconds=0).answer()) == 2


async def test_shutdown_answers_every_parked_call_and_grants_nothing_any_more(
    polls: Polls, context: Context
) -> None:
    calls = await parked(polls, wish(), wish("a", "b"), wish(request_id="r"))
    polls.drain()
    assert [await call.answer() for call in calls] == [[], [], []]
    assert polls.parked_queues() == []
    [job] = await submit(context)
    assert await Call(polls, wish(), wait_seconds=LONG).answer() == []
    assert (await read(context, job.id)).state is JobState.READY


async def test_shutdown_during_a_claim_still_hands_over_what_was_granted(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [job] = await submit(context)

    async def drain() -> None:
        polls.drain()

    claims.after.append(drain)
    calls = [Call(polls, wish()), Call(polls, wish())]
    granted = [await call.answer() for call in calls]
    assert [[each.id for each in jobs] for jobs in granted] == [[job.id], []]


async def test_the_fallback_finds_work_that_no_wake_up_told_of(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [call, other] = await parked(polls, wish(), wish("other"))
    claims.wishes.clear()
    await submit(Context(context.database, context.retention, RecordedSignals()))
    await settled(polls)
    assert not call.is_done
    assert 0 < await polls.fallback() <= 5
    assert len(await call.answer()) == 1
    await settled(polls)
    # Where there is no work, nothing is claimed.
    assert [each.queues for wishes in claims.wishes for each in wishes] == [("default",)]
    assert not other.is_done


async def test_a_thousand_parked_polls_cost_one_statement_a_look(
    polls: Polls, claims: Claims, statements: list[object]
) -> None:
    await parked(polls, *[wish(f"q{number % 500}", worker_id=f"w{number}") for number in range(1000)])
    claims.wishes.clear()
    statements.clear()
    await polls.fallback()
    await settled(polls)
    assert (statements, claims.wishes) == ([READ_READY_QUEUES], [])


async def test_a_burst_of_a_thousand_is_spread_over_as_many_polls_by_two_claims(
    polls: Polls, context: Context, claims: Claims
) -> None:
    calls = await parked(polls, *[wish(worker_id=f"w{number}") for number in range(1000)])
    claims.wishes.clear()
    await submit(context, *[JobSpec(kind="test")] * 1000)
    granted = [await call.answer() for call in calls]
    assert len({job.id for jobs in granted for job in jobs}) == 1000
    await settled(polls)
    assert [len(wishes) for wishes in claims.wishes] == [MAX_POLLS_A_CLAIM, 1000 - MAX_POLLS_A_CLAIM]


async def test_calls_with_request_ids_that_arrive_together_share_a_transaction(
    polls: Polls, context: Context, statements: list[object]
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 20)
    statements.clear()
    calls = [Call(polls, wish(worker_id=f"w{number}", request_id="r")) for number in range(20)]
    granted = [await call.answer() for call in calls]
    assert len({jobs[0].id for jobs in granted}) == 20
    assert statements == [READ_LEASE_REQUESTS, LEASE_JOBS, REMEMBER_LEASE_REQUESTS]


async def test_a_repeat_of_which_nothing_is_left_is_answered_at_once(polls: Polls, context: Context) -> None:
    await submit(context)
    [granted] = await Call(polls, wish(request_id="r")).answer()
    await complete(context, token_of(granted))
    await submit(context)
    assert await Call(polls, wish(request_id="r")).answer() == []


async def test_a_new_call_hears_of_a_database_in_trouble_and_a_parked_one_outlasts_it(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [waiting] = await parked(polls, wish("a"))
    claims.errors.append(Unavailable("The database does not answer."))
    with pytest.raises(Unavailable):
        await Call(polls, wish("b")).answer()
    claims.errors.append(Unavailable("The database does not answer."))
    polls.wake("a", None)
    await settled(polls)
    assert not waiting.is_done
    await submit(context, JobSpec(kind="test", queue="a"))
    assert len(await waiting.answer()) == 1


async def test_any_other_error_of_a_claim_is_raised_to_its_callers_and_no_poll_hangs(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [waiting] = await parked(polls, wish("a"))
    claims.errors.append(RuntimeError("a defect"))
    polls.wake("a", 1)
    with pytest.raises(RuntimeError, match="a defect"):
        await waiting.answer()
    await submit(context, JobSpec(kind="test", queue="a"))
    assert len(await Call(polls, wish("a")).answer()) == 1


async def test_a_poll_that_lost_its_jobs_to_rivals_looks_again_at_once(
    polls: Polls, context: Context, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = await submit(context, JobSpec(kind="test", queue="a"))
    crowded = [Grants({}, {0}), Grants({}, {0})]

    async def lose_twice(context: Context, wishes: Sequence[Wish]) -> Grants:
        return crowded.pop() if crowded else await lease_jobs(context, wishes)

    monkeypatch.setattr(app.operations.polls, "lease_jobs", lose_twice)
    [granted] = await Call(polls, wish("a", "b"), wait_seconds=0).answer()
    assert granted.id == job.id


async def test_a_job_that_comes_back_wakes_a_poll(polls: Polls, context: Context) -> None:
    await submit(context, JobSpec(kind="test", queue="a"))
    [granted] = await Call(polls, wish("a")).answer()
    [call] = await parked(polls, wish("next"))
    follow_up = JobSpec(kind="test", queue="next")
    await complete(context, token_of(granted), enqueue=[follow_up])
    assert len(await call.answer()) == 1


async def test_two_polls_of_the_same_queues_share_a_job_of_each(polls: Polls, context: Context) -> None:
    calls = await parked(polls, wish("a", "b", worker_id="w0"), wish("a", "b", worker_id="w1"))
    await submit(context, JobSpec(kind="test", queue="a"), JobSpec(kind="test", queue="b"))
    await settled(polls)
    assert [len(await call.answer()) for call in calls] == [1, 1]


async def test_a_poll_that_takes_from_another_queue_than_it_was_offered_leaves_no_job_alone(
    polls: Polls, context: Context
) -> None:
    calls = await parked(
        polls, wish("a", "b", worker_id="w0"), wish("b", worker_id="w1"), wish("a", worker_id="w2")
    )
    await submit(context, JobSpec(kind="test", queue="b", priority=-1), JobSpec(kind="test", queue="a"))
    await settled(polls)
    # Their tasks are a turn or two behind the claim that answered them.
    await until(lambda: sum(call.is_done for call in calls) == 2)


async def test_many_polls_of_many_queues_all_find_their_job(polls: Polls, context: Context) -> None:
    queues = [f"q{number}" for number in range(12)]
    await submit(context, *[JobSpec(kind="test", queue=queue) for queue in queues])
    calls = [Call(polls, wish(*queues, worker_id=f"w{number}"), wait_seconds=0) for number in range(12)]
    granted = [await call.answer() for call in calls]
    assert sorted(job.queue for jobs in granted for job in jobs) == sorted(queues)


async def test_a_claim_takes_no_more_jobs_than_a_statement_can_carry(
    polls: Polls, context: Context, claims: Claims
) -> None:
    calls = [Call(polls, wish(worker_id=f"w{number}", max_jobs=1000), wait_seconds=0) for number in range(5)]
    for call in calls:
        assert await call.answer() == []
    assert max(sum(each.max_jobs for each in wishes) for wishes in claims.wishes) <= MAX_JOBS_A_CLAIM


async def test_a_poll_whose_claim_fails_during_shutdown_is_answered(
    polls: Polls, context: Context, claims: Claims
) -> None:
    [call] = await parked(polls, wish())

    async def drain_and_fail() -> None:
        polls.drain()
        raise Unavailable("away")

    claims.before.append(drain_and_fail)
    polls.wake("default", 1)
    with pytest.raises(Unavailable):
        await call.answer()
