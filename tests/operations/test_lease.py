"""Lease: by priority, then due time, then creation; at most once."""

import json
from datetime import timedelta

import pytest

from app.domain.calls import Heartbeat
from app.domain.errors import InvalidRequest
from app.domain.job import JobSpec, JobState, Parent
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.lease import give_back, lease_jobs, lease_jobs_once
from tests.support.factory import (
    assert_healthy,
    count_rows,
    elapse,
    fail,
    heartbeat,
    lease,
    lease_once,
    leased,
    read,
    records,
    release,
    submit,
    token_of,
    wish,
)
from tests.support.signals import RecordedSignals


async def test_jobs_are_leased_by_priority_then_due_time_then_creation(context: Context) -> None:
    [first] = await submit(context)
    earlier = first.created_at - timedelta(hours=1)
    jobs = await submit(
        context,
        JobSpec(kind="same due, created second", run_at=earlier),
        JobSpec(kind="urgent and late", priority=-1, run_at=first.created_at),
        JobSpec(kind="same due, created last", run_at=earlier),
        JobSpec(kind="urgent and early", priority=-1, run_at=earlier),
        JobSpec(kind="can wait", priority=1, run_at=earlier),
    )
    granted = [job for _ in range(6) for job in await lease(context, max_jobs=1)]
    order = [jobs[3], jobs[1], jobs[0], jobs[2], first, jobs[4]]
    assert [job.id for job in granted] == [job.id for job in order]


async def test_a_poll_of_several_queues_takes_in_order_over_all_of_them(
    context: Context,
) -> None:
    specs = [
        JobSpec(kind="test", queue="a", priority=2),
        JobSpec(kind="test", queue="b", priority=1),
        JobSpec(kind="test", queue="a", priority=1),
        JobSpec(kind="test", queue="c", priority=0),
        JobSpec(kind="test", queue="b", priority=0),
        JobSpec(kind="test", queue="unasked", priority=-9),
    ]
    jobs = await submit(context, *specs)
    granted = await lease(context, "a", "b", "c", max_jobs=4)
    assert [job.id for job in granted] == [jobs[index].id for index in (3, 4, 1, 2)]


async def test_no_poll_gets_more_than_its_max_jobs(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 10)
    assert len(await lease(context, max_jobs=3)) == 3
    assert len(await lease(context, max_jobs=100)) == 7
    assert await lease(context, max_jobs=100) == []


async def test_polls_that_share_a_claim_never_get_the_same_job(context: Context) -> None:
    await submit(
        context,
        *[JobSpec(kind="test", queue="a")] * 20,
        *[JobSpec(kind="test", queue="b")] * 20,
        *[JobSpec(kind="test", queue="c")] * 3,
    )
    wishes = [
        wish("a", max_jobs=3, worker_id="w0"),
        wish("a", "b", max_jobs=5, worker_id="w1", lease_seconds=5.0),
        wish("b", max_jobs=7, worker_id="w2"),
        wish("c", "b", "a", max_jobs=10, worker_id="w3"),
        wish("c", max_jobs=2, worker_id="w4"),
        wish("nothing", max_jobs=2, worker_id="w5"),
    ]
    grants = (await lease_jobs(context, wishes)).jobs
    ids = [job.id for jobs in grants.values() for job in jobs]
    assert len(ids) == len(set(ids))
    for number, jobs in grants.items():
        asked = wishes[number]
        assert len(jobs) <= asked.max_jobs
        for job in jobs:
            assert job.queue in asked.queues
            assert job.lease_seconds == asked.lease_seconds
            held = (await read(context, job.id)).lease
            assert held is not None
            assert held.worker_id == asked.worker_id
    assert [len(grants[number]) for number in (0, 2)] == [3, 7]
    assert 5 not in grants
    await assert_healthy(context)


async def test_polls_that_share_a_claim_are_served_in_the_order_of_the_queue(context: Context) -> None:
    jobs = await submit(context, *[JobSpec(kind="test")] * 5)
    grants = (await lease_jobs(context, [wish(max_jobs=2), wish(max_jobs=2), wish(max_jobs=2)])).jobs
    granted = [[job.id for job in grants[number]] for number in range(3)]
    ids = [job.id for job in jobs]
    assert granted == [ids[:2], ids[2:4], ids[4:]]


async def test_a_grant_carries_what_the_worker_needs(context: Context) -> None:
    spec = JobSpec(
        kind="charge",
        payload='{"amount": 0.10}',
        metadata={"a": "b"},
        priority=3,
        max_attempts=4,
        max_runtime_seconds=30.0,
        traceparent="00-trace",
        tracestate="vendor=1",
    )
    granted = await leased(context, spec)
    job = await read(context, granted.id)
    assert job.lease is not None
    assert (granted.payload, granted.metadata) == (spec.payload, '{"a":"b"}')
    assert (granted.kind, granted.priority, granted.max_attempts) == ("charge", 3, 4)
    assert (granted.attempt, granted.lease_version) == (1, 1)
    assert (granted.traceparent, granted.tracestate) == ("00-trace", "vendor=1")
    assert (granted.created_at, granted.run_at) == (job.created_at, job.run_at)
    assert granted.previous is None
    assert granted.deadline_at == job.lease.granted_at + timedelta(seconds=30)
    # The lease asks for sixty seconds; the deadline cuts it.
    assert granted.lease_expires_at == granted.deadline_at == job.lease.expires_at


async def test_a_second_grant_tells_of_the_first(context: Context) -> None:
    first = await leased(context, JobSpec(kind="test"))
    await heartbeat(context, Heartbeat(token_of(first), with_checkpoint=True, checkpoint='{"page": 7}'))
    await fail(context, token_of(first), "broken", retry_after_seconds=0.0)
    [second] = await lease(context)
    assert (second.id, second.attempt, second.lease_version) == (first.id, 2, 2)
    assert second.checkpoint == '{"page": 7}'
    previous = json.loads(second.previous or "")
    assert previous == {
        "attempt": 1,
        "outcome": "failed",
        "error": {"type": None, "message": "broken", "details": None},
    }


async def test_a_version_grows_with_every_grant_also_when_attempts_are_given_back(context: Context) -> None:
    [job] = await submit(context)
    seen = []
    for _ in range(3):
        [granted] = await lease(context)
        seen.append((granted.id, granted.lease_version, granted.attempt))
        await release(context, token_of(granted))
    assert seen == [(job.id, 1, 1), (job.id, 2, 1), (job.id, 3, 1)]


async def test_a_grant_of_a_child_names_its_parent(context: Context) -> None:
    parent = await leased(context)
    spec = JobSpec(kind="test", queue="children", parent=Parent(parent.id, parent.lease_version))
    granted = await leased(context, spec)
    assert granted.parent == spec.parent


# A call with a request_id is safe to repeat.


async def test_a_repeat_is_given_the_same_jobs_and_versions(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 5)
    asked = wish(max_jobs=2, request_id="r")
    first = await lease_once(context, asked)
    assert len(first) == 2
    assert await lease_once(context, asked) == first
    assert await count_rows(context, "leases") == 2


async def test_a_repeat_is_given_what_is_still_untouched_and_never_anything_new(
    context: Context,
) -> None:
    await submit(context, *[JobSpec(kind="test")] * 9)
    asked = wish(max_jobs=3, request_id="r")
    one, two, three = await lease_once(context, asked)
    await heartbeat(context, Heartbeat(token_of(one)))
    assert await lease_once(context, asked) == [two, three]
    await release(context, token_of(two))
    assert await lease_once(context, asked) == [three]
    await fail(context, token_of(three))
    assert await lease_once(context, asked) == []
    assert await count_rows(context, "ready") == 7


async def test_the_same_request_id_with_another_body_is_refused(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 5)
    await lease_once(context, wish(max_jobs=1, request_id="r"))
    with pytest.raises(InvalidRequest) as refused:
        await lease_once(context, wish(max_jobs=2, request_id="r"))
    assert refused.value.pointer == "/request_id"
    assert await count_rows(context, "leases") == 1


async def test_the_same_request_id_of_another_worker_is_another_call(context: Context) -> None:
    await submit(context, *[JobSpec(kind="test")] * 2)
    [one] = await lease_once(context, wish(worker_id="one", request_id="r"))
    [other] = await lease_once(context, wish(worker_id="other", request_id="r"))
    assert one.id != other.id


async def test_many_calls_with_request_ids_are_served_by_one_transaction_each_by_its_own(
    context: Context,
) -> None:
    jobs = await submit(context, *[JobSpec(kind="test")] * 6)
    known = wish(worker_id="known", request_id="r", max_jobs=2)
    first = await lease_once(context, known)
    reused = wish(worker_id="known", request_id="r", max_jobs=1)
    gone = wish(worker_id="gone", request_id="r")
    [released] = await lease_once(context, gone)
    await release(context, token_of(released), delay_seconds=60)
    new, several, last = (wish("default", "other", worker_id="w", request_id=name) for name in "abc")
    grants = await lease_jobs_once(context, [new, known, several, gone])
    assert grants.jobs[1] == first
    assert [grants.jobs[number][0].id for number in (0, 2)] == [jobs[3].id, jobs[4].id]
    assert (grants.repeated, grants.refused) == ({1, 3}, {})
    grants = await lease_jobs_once(context, [several, reused, last])
    assert [grants.jobs[number][0].id for number in (0, 2)] == [jobs[4].id, jobs[5].id]
    assert list(grants.refused) == [1]
    assert await count_rows(context, "leases") == 5
    await assert_healthy(context)


async def test_an_empty_answer_is_not_remembered(context: Context) -> None:
    asked = wish(request_id="r")
    assert await lease_once(context, asked) == []
    [job] = await submit(context)
    assert [granted.id for granted in await lease_once(context, asked)] == [job.id]


async def test_a_request_id_is_kept_for_the_length_of_the_lease_and_free_afterwards(context: Context) -> None:
    [job] = await submit(context)
    asked = wish(request_id="r", lease_seconds=10.0)
    [first] = await lease_once(context, asked)
    await elapse(context, 11)
    await expire_leases(context)
    [second] = await lease_once(context, asked)
    assert second.id == first.id == job.id
    assert second.lease_version == 2
    assert await lease_once(context, asked) == [second]


async def test_what_a_client_that_left_was_granted_is_given_back_with_its_attempt(
    context: Context, signals: RecordedSignals
) -> None:
    [job] = await submit(context)
    signals.ready.clear()
    asked = wish(request_id="r")
    granted = await lease_once(context, asked)
    await give_back(context, asked, granted)
    after = await read(context, job.id)
    assert (after.state, after.attempt, after.lease_version) == (JobState.READY, 0, 1)
    assert after.run_at == job.run_at
    assert [record.outcome for record in await records(context, job.id)] == ["released"]
    assert signals.ready == {"default": 1}
    # A repeat leases anew: what was remembered is gone with the grant.
    [again] = await lease_once(context, asked)
    assert again.lease_version == 2


async def test_a_grant_that_was_ended_meanwhile_is_not_given_back_again(context: Context) -> None:
    granted = await leased(context)
    await fail(context, token_of(granted), retryable=False)
    await give_back(context, wish(), [granted])
    assert (await read(context, granted.id)).state is JobState.DEAD
    await assert_healthy(context)
