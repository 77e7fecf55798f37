import asyncio
import os
import threading
import time
from functools import partial

import pytest
from fencepost import SETTLED, AsyncJob, Client, Complete, Fail, Job, NewJob, Problem, Release, Worker

from tests.clients.python.handlers_in_processes import ask, crash, die, echo, give_no_json, report
from tests.clients.python.running import running, wait_until


@pytest.fixture
def worker(url: str, queue: str) -> Worker:
    return Worker(url, queues=[queue], lease_seconds=30, grace_seconds=1, drain_seconds=5)


def test_every_job_of_many_ends_once_with_its_own_result(
    worker: Worker, producer: Client, queue: str
) -> None:
    runs: list[int] = []

    @worker.handler("thread")
    def in_thread(job: Job) -> int:
        runs.append(job.payload)
        return -int(job.payload)

    @worker.handler("loop")
    async def in_loop(job: AsyncJob) -> int:
        await asyncio.sleep(0)
        runs.append(job.payload)
        return -int(job.payload)

    kinds = ["thread", "loop"]
    made = producer.submit_many([NewJob(kinds[number % 2], number, queue=queue) for number in range(300)])
    with running(worker):
        results = [producer.wait(each.id, 60)["result"] for each in made]
    assert results == [-number for number in range(300)]
    assert sorted(runs) == list(range(300))


def test_a_handler_sees_the_facts_of_its_lease(worker: Worker, producer: Client, queue: str) -> None:
    seen: list[object] = []

    @worker.handler("facts")
    def facts(job: Job) -> None:
        assert job.deadline_at is not None
        seen.extend([job.id, job.kind, job.queue, job.payload, job.attempt, job.max_attempts, job.metadata])
        seen.extend([job.checkpoint, job.previous, job.parent, job.traceparent, job.facts["lease_seconds"]])
        seen.append(job.idempotency_key("charge"))

    made = producer.submit(
        "facts", [1], queue=queue, max_attempts=4, metadata={"a": "b"}, max_runtime_seconds=60
    )
    with running(worker):
        assert producer.wait(made.id, 60)["state"] == "succeeded"
    assert seen[:7] == [made.id, "facts", queue, [1], 1, 4, {"a": "b"}]
    assert seen[7:] == [None, None, None, None, 30, f"{made.id}:charge"]


def test_an_exception_fails_the_attempt_with_its_name_and_trace(
    worker: Worker, producer: Client, queue: str
) -> None:
    @worker.handler("raise")
    async def fail(job: AsyncJob) -> None:
        raise LookupError("no such account")

    made = producer.submit("raise", queue=queue, max_attempts=1)
    with running(worker):
        job = producer.wait(made.id, 60)
    assert job["state"] == "dead"
    assert job["error"] is not None
    assert (job["error"]["type"], job["error"]["message"]) == ("LookupError", "no such account")
    assert "in fail" in job["error"]["details"]["traceback"]


@pytest.mark.parametrize("is_raised", [True, False])
def test_a_failure_for_good_is_not_tried_again(
    worker: Worker, producer: Client, queue: str, is_raised: bool
) -> None:
    @worker.handler("fail")
    def fail(job: Job) -> object:
        failure = Fail("no such card", retryable=False, type="card", details={"digits": 4})
        if is_raised:
            raise failure
        return failure

    made = producer.submit("fail", queue=queue)
    with running(worker):
        job = producer.wait(made.id, 60)
    assert (job["state"], job["attempt"]) == ("dead", 1)
    assert job["error"] == {"type": "card", "message": "no such card", "details": {"digits": 4}}


def test_a_failure_may_say_when_to_try_again(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("twice")
    def twice(job: Job) -> object:
        return job.previous if job.attempt == 2 else Fail("not yet", retry_after_seconds=0)

    made = producer.submit("twice", queue=queue)
    with running(worker):
        job = producer.wait(made.id, 60)
    assert job["result"]["outcome"] == "failed"


def test_a_released_job_has_its_attempt_back(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("release")
    async def release(job: AsyncJob) -> object:
        if job.previous is None:
            raise Release(reason="the till is closed")
        return [job.attempt, job.previous["outcome"], job.lease_version]

    made = producer.submit("release", queue=queue)
    with running(worker):
        assert producer.wait(made.id, 60)["result"] == [1, "released", 2]


def test_follow_ups_are_made_with_the_success(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("order")
    def order(job: Job) -> Complete:
        return Complete({"total": 3}, enqueue=[NewJob("invoice", job.payload, queue=queue)])

    @worker.handler("invoice")
    def invoice(job: Job) -> object:
        return job.parent

    made = producer.submit("order", {"number": 1}, queue=queue)
    with running(worker):
        assert producer.wait(made.id, 60)["result"] == {"total": 3}
        [child] = children(producer, made.id)
        invoiced = producer.wait(child, 60)
    version = producer.get(made.id)["lease_version"]
    assert invoiced["result"] == {"job_id": made.id, "lease_version": version}


def test_a_child_is_made_once_for_each_name(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("parent")
    async def parent(job: AsyncJob) -> list[object]:
        first = await job.submit("one", "child", 1, queue=f"{queue}-later")
        again = await job.submit("one", "child", 1, queue=f"{queue}-later")
        return [first.id == again.id, first.created, again.created, again.job["idempotency_key"]]

    made = producer.submit("parent", queue=queue)
    with running(worker):
        assert producer.wait(made.id, 60)["result"] == [True, True, False, f"{made.id}:one"]


def test_a_kind_without_a_handler_fails_for_another_worker(
    worker: Worker, producer: Client, queue: str
) -> None:
    worker.handler("known")(in_vain)
    made = producer.submit("strange", queue=queue, max_attempts=1)
    with running(worker):
        error = producer.wait(made.id, 60)["error"]
    assert error is not None
    assert error["type"] == "unknown_kind"


def test_a_handler_without_a_kind_gets_all_other_kinds(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("known")
    def known(job: Job) -> str:
        return "known"

    @worker.handler()
    def other(job: Job) -> str:
        return f"other: {job.kind}"

    made = producer.submit_many([NewJob("known", queue=queue), NewJob("strange", queue=queue)])
    with running(worker):
        assert [producer.wait(each.id, 60)["result"] for each in made] == ["known", "other: strange"]


def test_a_result_that_is_no_json_blames_no_other_job(worker: Worker, producer: Client, queue: str) -> None:
    values: dict[str, object] = {
        "set": {1},
        "nan": float("nan"),
        "surrogate": "\ud800",
        "large": "x" * 300_000,
    }

    @worker.handler()
    def give(job: Job) -> object:
        return values.get(job.kind, "fine")

    made = producer.submit_many([NewJob(kind, queue=queue) for kind in [*values, "a", "b"]])
    with running(worker):
        jobs = [producer.wait(each.id, 60) for each in made]
    assert [job["state"] for job in jobs] == ["dead"] * 4 + ["succeeded"] * 2
    assert {(job["error"] or {})["type"] for job in jobs[:4]} == {"result_refused"}


def test_progress_and_checkpoint_reach_the_service(worker: Worker, producer: Client, queue: str) -> None:
    may_end = threading.Event()

    @worker.handler("long")
    def long(job: Job) -> str:
        job.progress(40, "almost half")
        job.save_checkpoint({"row": 17})
        may_end.wait(60)
        raise Fail("again", retry_after_seconds=0) if job.attempt == 1 else Release(3600)

    made = producer.submit("long", queue=queue)
    with running(worker):
        wait_until(lambda: producer.get(made.id)["checkpoint"] == {"row": 17})
        lease = producer.get(made.id)["lease"]
        assert lease is not None
        assert lease["progress"] is not None
        assert (lease["progress"]["percent"], lease["progress"]["message"]) == (40, "almost half")
        may_end.set()


def test_the_next_attempt_has_the_checkpoint(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("rows")
    async def rows(job: AsyncJob) -> object:
        if job.attempt == 1:
            await job.save_checkpoint([1, 2])
            raise Fail("a crash", retry_after_seconds=0)
        return job.checkpoint

    made = producer.submit("rows", queue=queue)
    with running(worker):
        assert producer.wait(made.id, 60)["result"] == [1, 2]


def test_a_checkpoint_that_is_too_large_is_refused_to_who_gave_it(
    worker: Worker, producer: Client, queue: str
) -> None:
    @worker.handler("large")
    def large(job: Job) -> int:
        try:
            job.save_checkpoint("x" * 70_000)
        except Problem as problem:
            return problem.status
        return 0

    @worker.handler("small")
    def small(job: Job) -> str:
        job.save_checkpoint("x")
        return "stored"

    made = producer.submit_many([NewJob("large", queue=queue), NewJob("small", queue=queue)])
    with running(worker):
        assert [producer.wait(each.id, 60)["result"] for each in made] == [413, "stored"]


def test_a_cancel_reaches_a_coroutine_and_a_thread(worker: Worker, producer: Client, queue: str) -> None:
    reasons: list[object] = []

    @worker.handler("loop")
    async def in_loop(job: AsyncJob) -> None:
        job.progress()
        try:
            await asyncio.sleep(3600)
        finally:
            reasons.append(job.stop.reason)

    @worker.handler("thread")
    def in_thread(job: Job) -> None:
        while True:
            job.progress()
            time.sleep(0.05)
            job.raise_if_stopped()

    made = producer.submit_many([NewJob("loop", queue=queue), NewJob("thread", queue=queue)])
    with running(worker):
        for each in made:
            wait_until(partial(is_running, producer, each.id))
            assert producer.cancel(each.id)["state"] == "running"
        jobs = [producer.wait(each.id, 60) for each in made]
    assert [job["state"] for job in jobs] == ["cancelled"] * 2
    assert {(job["error"] or {})["type"] for job in jobs} == {"cancelled"}
    assert reasons == ["cancelled"]


def test_settled_sends_nothing(worker: Worker, producer: Client, queue: str) -> None:
    @worker.handler("settled")
    def settled(job: Job) -> object:
        return SETTLED

    made = producer.submit("settled", queue=queue)
    with running(worker):
        wait_until(lambda: producer.get(made.id)["state"] == "running")
    # Nobody completed it: the way down found it, and gave it back.
    assert producer.get(made.id)["state"] == "ready"


def test_processes_do_jobs_and_are_used_again(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue], concurrency=1)
    worker.handler("echo", process=True)(echo)
    made = producer.submit_many([NewJob("echo", number, queue=queue) for number in range(3)])
    with running(worker):
        results = [producer.wait(each.id, 60)["result"] for each in made]
    assert [value for value, _ in results] == [0, 1, 2]
    assert len({process for _, process in results}) == 1
    assert results[0][1] != os.getpid()


def test_a_process_can_ask_what_a_thread_can(worker: Worker, producer: Client, queue: str) -> None:
    worker.handler("ask", process=True)(ask)
    made = producer.submit("ask", f"{queue}-later", queue=queue)
    with running(worker):
        job = producer.wait(made.id, 60)
    assert job["result"] == [True, f"{made.id}:child"]
    assert job["checkpoint"] == {"stored": True}


def test_a_process_that_dies_fails_its_job_with_its_status(
    worker: Worker, producer: Client, queue: str
) -> None:
    worker.handler("die", process=True)(die)
    worker.handler("crash", process=True)(crash)
    worker.handler("nojson", process=True)(give_no_json)
    worker.handler("report", process=True)(report)
    kinds = ["die", "crash", "nojson", "report"]
    made = producer.submit_many([NewJob(kind, queue=queue, max_attempts=1) for kind in kinds])
    with running(worker):
        errors = [producer.wait(each.id, 60)["error"] or {} for each in made]
    assert [error["type"] for error in errors] == [
        "process_died",
        "ZeroDivisionError",
        "result_refused",
        "card",
    ]
    assert errors[0]["details"] == {"exit_status": 7}


def in_vain(job: Job) -> None:
    raise AssertionError(f"there is no job of the kind {job.kind}")


def is_running(producer: Client, job_id: str) -> bool:
    return producer.get(job_id)["state"] == "running"


def children(producer: Client, parent: str) -> list[str]:
    answer = producer._http.get("/v1/jobs", params={"parent_id": parent})
    return [job["id"] for job in answer.json()["jobs"]]
