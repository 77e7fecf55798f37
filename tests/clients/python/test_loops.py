"""Coroutine handlers whose task or loop ends in another way than by their own return."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest
from fencepost import AsyncJob, Client, Job, LeaseLost, NewJob, Worker

from tests.clients.python.running import running, wait_until


def quit_the_program() -> None:
    sys.exit(3)


def interrupt_the_program() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [quit_the_program, interrupt_the_program])
def test_a_task_of_a_handler_that_exits_ends_no_other_handler(
    url: str, producer: Client, queue: str, end: Callable[[], None]
) -> None:
    worker = Worker(url, queues=[queue])
    may_end = threading.Event()

    async def exits() -> None:
        await asyncio.sleep(0)
        end()

    @worker.handler("exits")
    async def exit_in_a_task(job: AsyncJob) -> None:
        await asyncio.gather(exits())

    @worker.handler("beside")
    async def beside(job: AsyncJob) -> str:
        await asyncio.to_thread(may_end.wait, 60)
        return "unharmed"

    other = producer.submit("beside", queue=queue)
    with running(worker):
        wait_until(lambda: producer.get(other.id)["state"] == "running")
        made = producer.submit("exits", queue=queue, max_attempts=1)
        error = producer.wait(made.id, 60)["error"] or {}
        may_end.set()
        assert producer.wait(other.id, 60)["result"] == "unharmed"
    assert error["type"] in ("SystemExit", "KeyboardInterrupt")


async def test_a_handler_that_is_stopped_before_its_first_turn_ends_all_the_same(
    url: str, producer: Client, queue: str
) -> None:
    worker = Worker(url, queues=[queue], lease_seconds=1)

    @worker.handler()
    async def handle(job: AsyncJob) -> None:
        pass

    running_worker = asyncio.create_task(worker.run_async())
    await asyncio.sleep(0)
    made = producer.submit("late", queue=queue)
    # The loop of the handlers is busy with this test, which looks on without awaiting anything.
    wait_until(lambda: producer.get(made.id)["state"] == "running")
    producer.cancel(made.id)
    wait_until(lambda: worker_has_told(worker))
    job = await asyncio.to_thread(producer.wait, made.id, 60)
    running_worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_worker
    assert (job["state"], (job["error"] or {})["type"]) == ("cancelled", "cancelled")


async def test_a_program_that_cancels_its_tasks_gives_their_jobs_back(
    url: str, producer: Client, queue: str
) -> None:
    worker = Worker(url, queues=[queue], drain_seconds=60)
    tasks: list[asyncio.Task[None] | None] = []

    @worker.handler()
    async def hold(job: AsyncJob) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(3600)

    made = producer.submit("hold", queue=queue)
    running_worker = asyncio.create_task(worker.run_async())
    await until(lambda: tasks)
    worker.stop()
    assert tasks[0] is not None
    tasks[0].cancel()
    await running_worker
    job = producer.get(made.id)
    assert (job["state"], job["attempt"]) == ("ready", 0)


async def test_to_cancel_twice_is_to_stop_twice(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue], drain_seconds=600, grace_seconds=60)
    reasons: list[object] = []

    @worker.handler()
    async def hold(job: AsyncJob) -> None:
        reasons.append("started")
        try:
            await asyncio.sleep(3600)
        finally:
            reasons.append(job.stop.reason)

    made = producer.submit_many([NewJob("hold", queue=queue)])[0]
    running_worker = asyncio.create_task(worker.run_async())
    await until(lambda: reasons)
    for _ in range(2):
        running_worker.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running_worker, 60)
    assert reasons == ["started", "shutdown"]
    assert producer.get(made.id)["state"] == "ready"


def test_a_handler_that_outlives_its_worker_hears_that_its_lease_is_over(
    url: str, producer: Client, queue: str
) -> None:
    worker = Worker(url, queues=[queue], drain_seconds=0, grace_seconds=0)
    has_started, may_ask, heard = threading.Event(), threading.Event(), list[BaseException]()
    has_heard = threading.Event()

    @worker.handler()
    def outlive(job: Job) -> None:
        has_started.set()
        may_ask.wait(60)
        try:
            job.verify()
        except Exception as error:  # noqa: BLE001 - it is looked at below
            heard.append(error)
        has_heard.set()

    producer.submit("outlive", queue=queue)
    with running(worker):
        has_started.wait(60)
    may_ask.set()
    assert has_heard.wait(60)
    assert [type(error) for error in heard] == [LeaseLost]


def worker_has_told(worker: Worker) -> bool:
    """Tell whether the worker has told its handlers of a cancel."""
    assert worker._running is not None
    _, engine = worker._running
    return any(lease.stop.reason == "cancelled" for lease in engine._leases.taken)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - another thread makes it so
            await asyncio.sleep(0.01)
