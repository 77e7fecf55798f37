"""Twins: the same idempotency key, or the same request_id, on two connections at once."""

import asyncio

from app.domain.errors import IdempotencyKeyReused
from app.domain.job import JobSpec
from app.operations.context import Context
from app.operations.lease import lease_jobs_once
from app.operations.submit import submit_batch, submit_jobs
from app.store import lease_requests, leases, submissions
from app.store.leases import Demand
from tests.support.factory import accepted, assert_healthy, count_rows, keyed, lease_once, submit, wish
from tests.support.rivals import rival, until_waiting

SPEC = keyed(JobSpec(kind="test"), "k")


async def test_a_twin_waits_for_the_first_and_is_answered_with_its_job(context: Context) -> None:
    async with context.database.begin() as conn:
        claimed = await submissions.claim_keys(conn, [(0, SPEC)])
        twin = await rival(context.database, submit_jobs(context, [SPEC]))
        [job_id] = claimed.values()
        await submissions.insert_jobs(conn, [(0, SPEC, job_id)])
    [answer] = await twin
    assert not accepted(answer).created
    assert accepted(answer).job.id == job_id
    await assert_healthy(context)


async def test_a_twin_of_a_first_that_is_undone_creates_the_job(context: Context) -> None:
    async with context.database.begin() as conn:
        await submissions.claim_keys(conn, [(0, SPEC)])
        twin = await rival(context.database, submit_jobs(context, [SPEC]))
        await conn.run(b"ROLLBACK")
    [answer] = await twin
    assert accepted(answer).created
    assert await count_rows(context, "jobs") == 1


async def test_a_twin_with_another_request_is_refused_after_the_first(context: Context) -> None:
    async with context.database.begin() as conn:
        claimed = await submissions.claim_keys(conn, [(0, SPEC)])
        twin = await rival(context.database, submit_jobs(context, [keyed(JobSpec(kind="another"), "k")]))
        [job_id] = claimed.values()
        await submissions.insert_jobs(conn, [(0, SPEC, job_id)])
    [answer] = await twin
    assert isinstance(answer, IdempotencyKeyReused)
    assert answer.job_id == job_id


async def test_many_twins_make_one_job(context: Context) -> None:
    batches = await asyncio.gather(*[submit_jobs(context, [SPEC]) for _ in range(20)])
    answers = [accepted(answer) for batch in batches for answer in batch]
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.job.id for answer in answers}) == 1
    assert await count_rows(context, "jobs") == 1


async def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(context: Context) -> None:
    specs = [keyed(JobSpec(kind="test"), f"key{number:03}") for number in range(100)]
    for batch in range(5):
        fresh = [keyed(spec, f"{batch}-{spec.idempotency_key}") for spec in specs]
        one, other, third, fourth = await asyncio.gather(
            submit_batch(context, fresh),
            submit_batch(context, fresh[::-1]),
            submit_batch(context, fresh[50:] + fresh[:50]),
            submit_batch(context, fresh[::-1]),
        )
        ids = [answer.job.id for answer in one]
        assert [answer.job.id for answer in other] == ids[::-1]
        assert [answer.job.id for answer in third] == ids[50:] + ids[:50]
        assert [answer.job.id for answer in fourth] == ids[::-1]
    assert await count_rows(context, "jobs") == 500


async def test_a_batch_waits_for_the_twin_of_one_of_its_keys_and_keeps_its_order(context: Context) -> None:
    specs = [keyed(JobSpec(kind=f"kind{number}"), f"key{number}") for number in range(5)]
    async with context.database.begin() as conn:
        claimed = await submissions.claim_keys(conn, [(0, specs[2])])
        batch = await rival(context.database, submit_batch(context, specs))
        [job_id] = claimed.values()
        await submissions.insert_jobs(conn, [(0, specs[2], job_id)])
    answers = await batch
    assert [answer.created for answer in answers] == [True, True, False, True, True]
    assert [answer.job.kind for answer in answers] == [spec.kind for spec in specs]


async def test_a_twin_of_a_lease_call_gives_its_own_grants_up_and_repeats_the_first(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 4)
    asked = wish(max_jobs=2, request_id="r")
    assert asked.request is not None
    async with context.database.begin() as conn:
        granted = await leases.lease_jobs(conn, [Demand(0, "default", 1, 2, "worker", 60.0)])
        first = [job for _, job in granted]
        assert await lease_requests.remember_lease_requests(conn, {asked.request: first})
        twin = await rival(context.database, lease_once(context, asked))
    assert await twin == first
    assert await count_rows(context, "leases") == 2
    assert await count_rows(context, "ready") == 2
    await assert_healthy(context)


async def test_a_twin_of_a_lease_call_that_is_undone_keeps_its_own_grants(context: Context) -> None:
    jobs = await submit(context, *[JobSpec(kind="test")] * 2)
    asked = wish(request_id="r")
    assert asked.request is not None
    async with context.database.begin() as conn:
        granted = await leases.lease_jobs(conn, [Demand(0, "default", 1, 1, "worker", 60.0)])
        await lease_requests.remember_lease_requests(conn, {asked.request: [job for _, job in granted]})
        twin = await rival(context.database, lease_once(context, asked))
        await conn.run(b"ROLLBACK")
    assert [job.id for job in await twin] == [jobs[1].id]
    assert await count_rows(context, "leases") == 1


async def test_a_twin_among_many_lease_calls_takes_nothing_from_the_others(context: Context) -> None:
    jobs = await submit(context, *[JobSpec(kind="test")] * 4)
    twin, *others = (wish(worker_id=f"w{number}", request_id="r") for number in range(3))
    assert twin.request is not None
    async with context.database.begin() as conn:
        granted = await leases.lease_jobs(conn, [Demand(0, "default", 1, 1, "w0", 60.0)])
        first = [job for _, job in granted]
        assert await lease_requests.remember_lease_requests(conn, {twin.request: first})
        call = await rival(context.database, lease_jobs_once(context, [*others, twin]))
    grants = await call
    assert grants.jobs[2] == first
    assert [grants.jobs[number][0].id for number in (0, 1)] == [jobs[1].id, jobs[2].id]
    assert await count_rows(context, "ready") == 1
    await assert_healthy(context)


async def test_calls_that_name_the_same_request_ids_in_opposite_order_do_not_deadlock(
    context: Context,
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 40)
    asked = [wish(worker_id=f"w{number}", request_id="r") for number in range(10)]
    forth, back = await asyncio.gather(
        lease_jobs_once(context, asked), lease_jobs_once(context, list(reversed(asked)))
    )
    assert [forth.jobs[number] for number in range(10)] == [back.jobs[9 - number] for number in range(10)]
    assert await count_rows(context, "leases") == 10


async def test_many_twins_of_a_lease_call_are_given_the_same_leases(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 10)
    answers = await asyncio.gather(*[lease_once(context, wish(request_id="r")) for _ in range(8)])
    assert {job.id for jobs in answers for job in jobs} == {answers[0][0].id}
    assert await count_rows(context, "leases") == 1
    await assert_healthy(context)


async def test_several_rivals_of_one_key_wait_for_the_first_together(context: Context) -> None:
    async with context.database.begin() as conn:
        claimed = await submissions.claim_keys(conn, [(0, SPEC)])
        twins = [asyncio.create_task(submit_jobs(context, [SPEC])) for _ in range(2)]
        await until_waiting(context.database, count=2)
        [job_id] = claimed.values()
        await submissions.insert_jobs(conn, [(0, SPEC, job_id)])
    for [answer] in await asyncio.gather(*twins):
        assert accepted(answer).job.id == job_id
