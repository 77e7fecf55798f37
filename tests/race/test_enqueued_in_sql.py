"""Jobs that an application enqueues in a transaction of its own: who is told when, twins, and claims."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from app.background.listener import Listener
from app.domain.job import JobSpec, JobState
from app.domain.retention import Retention
from app.operations import heads
from app.operations.context import Context
from app.operations.heads import TOP_SECONDS, Heads
from app.operations.lease import lease_jobs
from app.operations.polls import Polls
from app.operations.submit import submit_jobs
from app.operations.upkeep import KeyWalk, forget_keys, promote_jobs
from app.operations.wakeups import Wakeups
from app.store.engine import Database
from tests.support.application import (
    AppConnection,
    Application,
    Enqueued,
    complete_in_sql,
    enqueue,
    hold,
    role_on,
)
from tests.support.factory import (
    accepted,
    assert_healthy,
    complete,
    count_rows,
    elapse,
    keyed,
    lease,
    leased,
    read,
    submit,
    token_of,
    wish,
)
from tests.support.rivals import until_waiting
from tests.support.signals import RecordedSignals
from tests.support.waiting import DEADLINE_SECONDS, until

SNAPSHOT_LEVELS = ["repeatable read", "serializable"]


@pytest.fixture
async def app(application: Application) -> AsyncIterator[AppConnection]:
    async with application.connect() as connection:
        yield connection


@pytest.fixture
async def other(application: Application) -> AsyncIterator[AppConnection]:
    async with application.connect() as connection:
        yield connection


# Who waits is told at the commit.


async def never() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def replica(context: Context, url: str) -> AsyncIterator[Polls]:
    """Run what a replica hears and answers with; nothing else would look for work."""
    wakeups = Wakeups()
    polls = Polls(context, announce_parked=wakeups.announce_parked)
    wakeups.attach(polls)
    listener = Listener(url, wakeups)
    # The first pass ends when the channel is listened to.
    await listener.run()

    async def listen() -> None:
        while True:
            await listener.run()

    listening = asyncio.create_task(listen())
    try:
        yield polls
    finally:
        polls.drain()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_parked_polls_of_every_replica_hear_of_jobs_at_their_commit(
    context: Context, database_url: str, app: AppConnection
) -> None:
    async with replica(context, database_url) as here, replica(context, database_url) as there:
        waiting = [
            asyncio.create_task(
                each.lease(wish("mail"), wait_seconds=2 * DEADLINE_SECONDS, disconnected=never)
            )
            for each in (here, there)
        ]
        await until(lambda: here.parked_queues() and there.parked_queues())
        await app.execute("BEGIN")
        first = await enqueue(app, queue="mail")
        second = await enqueue(app, queue="mail")
        assert not any(task.done() for task in waiting)
        await app.execute("COMMIT")
        granted = {job.id for task in waiting for job in await asyncio.wait_for(task, DEADLINE_SECONDS)}
    assert granted == {first.job_id, second.job_id}


@pytest.mark.parametrize("committed", [False, True])
async def test_what_is_sent_is_one_message_a_queue_and_nothing_after_a_rollback(
    app: AppConnection, database_url: str, *, committed: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as listening:
        await listening.execute("LISTEN fencepost")
        await app.execute("BEGIN")
        for queue in ("a", "a", "b", "a"):
            await enqueue(app, queue=queue)
        await enqueue(app, queue="scheduled", delay_seconds=60)
        await app.execute("COMMIT" if committed else "ROLLBACK")
        await app.execute("SELECT pg_notify('fencepost', 'the end')")
        messages = []
        async for message in listening.notifies(timeout=DEADLINE_SECONDS):
            if message.payload == "the end":
                break
            messages.append(message.payload)
    assert messages == (["sql !a", "sql !b"] if committed else [])


async def test_a_scheduled_job_is_promoted_when_it_is_due(context: Context, app: AppConnection) -> None:
    made = await enqueue(app, delay_seconds=60)
    assert (await read(context, made.job_id)).state is JobState.SCHEDULED
    await elapse(context, 61)
    await promote_jobs(context)
    assert [job.id for job in await lease(context)] == [made.job_id]
    await assert_healthy(context)


# Keys.


async def test_a_twin_waits_for_the_first_and_is_given_its_job(
    context: Context, app: AppConnection, other: AppConnection, database: Database
) -> None:
    await app.execute("BEGIN")
    first = await enqueue(app, payload={"n": 1}, idempotency_key="k")
    twin = asyncio.create_task(enqueue(other, payload={"n": 1}, idempotency_key="k"))
    await until_waiting(database)
    await app.execute("COMMIT")
    assert await twin == Enqueued(first.job_id, created=False)
    assert await count_rows(context, "jobs") == 1
    await assert_healthy(context)


async def test_a_twin_of_a_first_that_is_undone_creates_the_job(
    context: Context, app: AppConnection, other: AppConnection, database: Database
) -> None:
    await app.execute("BEGIN")
    first = await enqueue(app, idempotency_key="k")
    twin = asyncio.create_task(enqueue(other, idempotency_key="k"))
    await until_waiting(database)
    await app.execute("ROLLBACK")
    made = await twin
    assert made.created
    assert made.job_id != first.job_id
    assert await count_rows(context, "jobs") == 1


async def test_a_twin_with_another_request_is_refused_after_the_first(
    app: AppConnection, other: AppConnection, database: Database
) -> None:
    await app.execute("BEGIN")
    first = await enqueue(app, idempotency_key="k")
    twin = asyncio.create_task(enqueue(other, "another", idempotency_key="k"))
    await until_waiting(database)
    await app.execute("COMMIT")
    with pytest.raises(psycopg.DatabaseError, match="another request") as refusal:
        await twin
    assert refusal.value.sqlstate == "FP002"
    assert first.job_id in (refusal.value.diag.message_detail or "")


async def test_many_twins_make_one_job(context: Context, application: Application) -> None:
    async def one() -> Enqueued:
        async with application.connect() as connection:
            return await enqueue(connection, payload=[1], idempotency_key="k")

    made = await asyncio.gather(*[one() for _ in range(12)])
    assert sum(each.created for each in made) == 1
    assert len({each.job_id for each in made}) == 1
    assert await count_rows(context, "jobs") == 1


@pytest.mark.parametrize("isolation", SNAPSHOT_LEVELS)
async def test_a_twin_after_the_snapshot_has_the_transaction_run_again(
    application: Application, app: AppConnection, isolation: str
) -> None:
    async with application.connect(isolation=isolation) as late:
        await late.execute("BEGIN")
        await late.execute("SELECT count(*) FROM public.notes")
        first = await enqueue(app, idempotency_key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            await enqueue(late, idempotency_key="k")
        await late.execute("ROLLBACK")
        assert await enqueue(late, idempotency_key="k") == Enqueued(first.job_id, created=False)


async def test_within_one_transaction_a_key_is_known_too(app: AppConnection) -> None:
    async with app.transaction():
        first = await enqueue(app, idempotency_key="k")
        assert await enqueue(app, idempotency_key="k") == Enqueued(first.job_id, created=False)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"payload": '{"a": 1, "b": [2]}'}, {"payload": '{"b":[2],"a":1}'}),
    ({"payload": '{"a": 0, "a": 1}'}, {"payload": '{"a": 1}'}),
    ({"payload": "null"}, {}),
    ({"payload": r'["\u0041", "\"1\"", "\\\\"]'}, {"payload": r'["A", "\u00221\u0022", "\u005c\u005c"]'}),
    ({"payload": "[1e131071, 1e-16000]"}, {"payload": "[ 1e131071, 1e-16000 ]"}),
    ({"priority": 0, "queue": "default", "max_attempts": 10, "metadata": {}}, {}),
    ({"backoff": {"base_seconds": 5}}, {}),
    ({"backoff": '{"base_seconds": 6, "jitter": 0.2}'}, {"backoff": '{"jitter": 0.20, "base_seconds": 6.0}'}),
    ({"backoff": {"max_seconds": 1.9409999999999998}}, {"backoff": {"max_seconds": 1.941}}),
    ({"backoff": {"base_seconds": 5.0000000001}}, {}),
    ({"delay_seconds": 1.9409999999999998}, {"delay_seconds": 1.941}),
    ({"max_runtime_seconds": 1.9409999999999998}, {"max_runtime_seconds": 1.941}),
    ({"progress_timeout_seconds": 1.9409999999999998}, {"progress_timeout_seconds": 1.941}),
    ({"metadata": '{"a": "b", "c": "\\u0064"}'}, {"metadata": {"c": "d", "a": "b"}}),
    ({"run_at": "2100-01-01 00:00+00"}, {"run_at": "2100-01-01 02:00+02"}),
]
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"payload": "1"}, {"payload": "1.0"}),
    ({"payload": "1"}, {"payload": '"1"'}),
    ({"payload": "100"}, {"payload": "1e2"}),
    ({"payload": '["#1"]'}, {"payload": "[1]"}),
    ({"payload": '"1#"'}, {"payload": '"1"'}),
    ({"payload": r'"\"1"'}, {"payload": r'"\\1"'}),
    ({"payload": "1"}, {"payload": "true"}),
    ({"payload": '"null"'}, {}),
    ({"queue": "mail"}, {}),
    ({"priority": 1}, {}),
    ({"max_attempts": 9}, {}),
    ({"delay_seconds": 5}, {"delay_seconds": 6}),
    ({"delay_seconds": 0}, {}),
    ({"max_runtime_seconds": 5}, {"progress_timeout_seconds": 5}),
    ({"metadata": {"a": "b"}}, {}),
    ({"backoff": {"base_seconds": 6}}, {}),
    ({"run_at": "2100-01-01 00:00:00.000001+00"}, {"run_at": "2100-01-01 00:00+00"}),
]


@pytest.mark.parametrize(("one", "another"), SAME, ids=range(len(SAME)))
async def test_requests_that_mean_the_same_are_one(
    app: AppConnection, one: dict[str, Any], another: dict[str, Any]
) -> None:
    first = await enqueue(app, idempotency_key="k", **one)
    assert await enqueue(app, idempotency_key="k", **another) == Enqueued(first.job_id, created=False)


@pytest.mark.parametrize(("one", "another"), DIFFERENT, ids=range(len(DIFFERENT)))
async def test_requests_that_mean_something_else_are_refused(
    context: Context, app: AppConnection, one: dict[str, Any], another: dict[str, Any]
) -> None:
    await enqueue(app, idempotency_key="k", **one)
    with pytest.raises(psycopg.DatabaseError) as refusal:
        await enqueue(app, idempotency_key="k", **another)
    assert refusal.value.sqlstate == "FP002"
    assert await count_rows(context, "jobs") == 1


async def test_a_request_means_the_same_however_the_session_writes_numbers_and_texts(
    app: AppConnection, other: AppConnection
) -> None:
    request: dict[str, Any] = {
        "idempotency_key": "k",
        "payload": r'["\\", 1]',
        "delay_seconds": 86400.123456,
        "run_at": None,
        "metadata": {"a": "b"},
        "backoff": {"jitter": 0.1234567},
    }
    first = await enqueue(app, **request)
    for setting in (
        "extra_float_digits = -10",
        "standard_conforming_strings = off",
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'German'",
    ):
        await other.execute(f"SET {setting}".encode())
    assert await enqueue(other, **request) == Enqueued(first.job_id, created=False)


async def test_a_key_costs_no_more_for_numbers_that_would_fill_the_memory(app: AppConnection) -> None:
    numbers = f"[{', '.join(['1e131071'] * 25_000)}]"
    # Written out, they are three thousand megabytes.
    await app.execute("SET statement_timeout = '30s'")
    first = await enqueue(app, payload=numbers, idempotency_key="k")
    assert await enqueue(app, payload=numbers, idempotency_key="k") == Enqueued(first.job_id, created=False)


async def test_transactions_that_use_keys_in_opposite_order_are_run_again_and_make_each_job_once(
    context: Context, app: AppConnection, other: AppConnection
) -> None:
    async def both(connection: AppConnection, keys: list[str]) -> None:
        async with connection.transaction():
            for key in keys:
                await enqueue(connection, idempotency_key=key)

    await app.execute("BEGIN")
    await other.execute("BEGIN")
    await enqueue(app, idempotency_key="a")
    await enqueue(other, idempotency_key="b")
    outcomes = await asyncio.gather(
        enqueue(app, idempotency_key="b"), enqueue(other, idempotency_key="a"), return_exceptions=True
    )
    [refusal] = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert isinstance(refusal, psycopg.errors.DeadlockDetected)
    loser = app if refusal is outcomes[0] else other
    await (other if loser is app else app).execute("COMMIT")
    await loser.execute("ROLLBACK")
    await both(loser, ["a", "b"])
    assert await count_rows(context, "jobs") == 2


async def test_keys_belong_to_the_role_and_no_caller_over_http_shares_them(
    context: Context, database_url: str, application: Application, app: AppConnection
) -> None:
    with role_on(database_url) as role:
        async with Application(database_url, role).connect() as neighbour:
            made = [await enqueue(app, idempotency_key="k"), await enqueue(neighbour, idempotency_key="k")]
    [over_http] = await submit_jobs(context, [keyed(JobSpec(kind="test"), "k", caller=application.role)])
    assert accepted(over_http).created
    assert all(each.created for each in made)
    assert await count_rows(context, "jobs") == 3


async def test_a_second_run_of_a_handler_finds_the_child_of_the_first(
    context: Context, app: AppConnection
) -> None:
    job = await leased(context)
    parent: dict[str, Any] = {"parent_job_id": job.id, "idempotency_key": f"{job.id}:mail"}
    first = await enqueue(app, parent_lease_version=1, **parent)
    await complete_in_sql(app, token_of(job))
    # A known key is answered before the parent's lease counts, whatever version asks.
    for version in (1, 2):
        assert await enqueue(app, parent_lease_version=version, **parent) == Enqueued(
            first.job_id, created=False
        )


async def test_a_key_is_kept_while_its_job_is_unfinished_and_then_until_the_service_forgets_it(
    context: Context, database: Database, app: AppConnection
) -> None:
    brief = Context(database, Retention(idempotency_seconds=0.0), RecordedSignals())
    first = await enqueue(app, idempotency_key="k")
    await forget_keys(brief, KeyWalk())
    assert await enqueue(app, idempotency_key="k") == Enqueued(first.job_id, created=False)
    [job] = await lease(context)
    await complete_in_sql(app, token_of(job))
    await forget_keys(context, KeyWalk())
    assert await enqueue(app, idempotency_key="k") == Enqueued(first.job_id, created=False)
    await forget_keys(brief, KeyWalk())
    assert (await enqueue(app, "another", idempotency_key="k")).created


async def test_a_key_whose_job_is_gone_makes_a_new_one(context: Context, app: AppConnection) -> None:
    first = await enqueue(app, idempotency_key="k")
    async with context.database.begin() as conn:
        for table in ("ready", "jobs"):
            await conn.execute(text(f"DELETE FROM fencepost.{table}"))  # noqa: S608
    again = await enqueue(app, "another", idempotency_key="k")
    assert again.created
    assert again.job_id != first.job_id


# Parents.


async def test_a_child_needs_its_parents_lease_at_its_own_commit(
    context: Context, app: AppConnection, other: AppConnection, database: Database
) -> None:
    token = token_of(await leased(context))
    parent: dict[str, Any] = {"parent_job_id": token.job_id, "parent_lease_version": token.lease_version}
    await app.execute("BEGIN")
    await enqueue(app, queue="children", **parent)
    # The end of the parent comes after the commit of the child.
    ending = asyncio.create_task(complete_in_sql(other, token))
    await until_waiting(database)
    await app.execute("COMMIT")
    await ending
    with pytest.raises(psycopg.DatabaseError) as refusal:
        await enqueue(app, queue="children", idempotency_key="k", **parent)
    assert refusal.value.sqlstate == "FP001"
    assert len(await lease(context, "children", max_jobs=5)) == 1
    # A refused request uses up no key.
    assert (await enqueue(app, idempotency_key="k")).created


async def test_a_heartbeat_of_the_parent_does_not_wait_for_a_child(
    context: Context, app: AppConnection
) -> None:
    job = await leased(context)
    async with app.transaction():
        await enqueue(app, parent_job_id=job.id, parent_lease_version=job.lease_version)
        held = await hold(app, token_of(job))
    assert held.lease_expires_at == job.lease_expires_at
    await complete(context, token_of(job))


# Claims that begin at a head.


async def test_a_job_that_commits_behind_a_head_is_found_from_the_top(
    context: Context, database: Database, app: AppConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "WORTH_JOBS", 1)
    now = 100.0
    remembering = Context(database, Retention(), RecordedSignals(), Heads(clock=lambda: now))
    await submit(context, *[JobSpec(kind="test")] * 5)
    await app.execute("BEGIN")
    late = await enqueue(app)
    await submit(context, *[JobSpec(kind="test")] * 20)
    taken = (await lease_jobs(remembering, [wish(max_jobs=10)])).jobs[0]
    assert len(taken) == 10
    await app.execute("COMMIT")
    [passed] = (await lease_jobs(remembering, [wish()])).jobs[0]
    assert passed.id != late.job_id
    now += TOP_SECONDS
    [found] = (await lease_jobs(remembering, [wish()])).jobs[0]
    assert found.id == late.job_id
    # Where a claim finds too little behind its head it looks from the top at once.
    assert len((await lease_jobs(remembering, [wish(max_jobs=14)])).jobs[0]) == 14
    await app.execute("BEGIN")
    late = await enqueue(app)
    await submit(context)
    await lease_jobs(remembering, [wish()])
    await app.execute("COMMIT")
    [found] = (await lease_jobs(remembering, [wish()])).jobs[0]
    assert found.id == late.job_id


async def test_a_long_transaction_puts_no_job_before_those_that_came_while_it_lasted(
    context: Context, app: AppConnection
) -> None:
    await app.execute("BEGIN")
    await app.execute("SELECT 1")
    [first] = await submit(context)
    second = await enqueue(app)
    await app.execute("COMMIT")
    assert [job.id for job in await lease(context, max_jobs=2)] == [first.id, second.job_id]
