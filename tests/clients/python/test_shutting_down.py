import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from fencepost import AsyncJob, Client, Job, NewJob, Problem, Worker

from tests.clients.python.running import Program, running, wait_until
from tests.support.server import ServerProcess


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_waits_ends_at_once(program: Callable[..., Program], number: signal.Signals) -> None:
    worker = program("hold", drain_seconds=600)
    wait_until(lambda: has_called(worker))
    worker.send(number)
    assert worker.wait() == 0
    assert worker.has_mark("ended")


def test_a_handler_that_stops_gives_its_job_back(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("hold", queue=queue)
    worker = program("hold", drain_seconds=0.1, grace_seconds=60)
    worker.mark("started")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    job = producer.get(made.id)
    assert (worker.mark("stopped-1"), job["state"], job["attempt"]) == ("shutdown", "ready", 0)


def test_a_late_result_counts(program: Callable[..., Program], producer: Client, queue: str) -> None:
    made = producer.submit("late", queue=queue)
    worker = program("late", drain_seconds=0.1, grace_seconds=60)
    worker.mark("started")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert producer.get(made.id)["result"] == "just in time"


@pytest.mark.parametrize("kind", ["stubborn", "hold.loop", "compute"])
def test_a_handler_that_does_not_stop_ends_with_the_process(
    program: Callable[..., Program], producer: Client, queue: str, kind: str
) -> None:
    made = producer.submit(kind, queue=queue)
    worker = program(kind, drain_seconds=0.1, grace_seconds=0.5)
    worker.mark("started")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    job = producer.get(made.id)
    assert (job["state"], job["attempt"]) == ("ready", 0)


def test_a_second_signal_does_not_wait_for_handlers(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("hold", queue=queue)
    worker = program("hold", drain_seconds=600, grace_seconds=60)
    worker.mark("started")
    worker.send(signal.SIGTERM)
    wait_until(lambda: "shutting down" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert producer.get(made.id)["state"] == "ready"


def test_handlers_may_end_while_the_worker_drains(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue], drain_seconds=60)
    has_started, may_end = threading.Event(), threading.Event()

    @worker.handler("slow")
    def slow(job: Job) -> str:
        has_started.set()
        may_end.wait(60)
        return "done"

    made = producer.submit("slow", queue=queue)
    with running(worker):
        has_started.wait(60)
        worker.stop()
        later = producer.submit("slow", queue=queue)
        may_end.set()
    assert producer.get(made.id)["state"] == "succeeded"
    assert producer.get(later.id)["state"] == "ready"


def test_a_worker_may_run_again(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue])
    worker.handler()(echo)
    for number in range(2):
        made = producer.submit("echo", number, queue=queue)
        with running(worker):
            assert producer.wait(made.id, 60)["result"] == number


async def test_a_program_of_coroutines_keeps_its_loop(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue])
    loops: list[object] = []

    @worker.handler("loop")
    async def handle(job: AsyncJob) -> None:
        loops.append(asyncio.get_running_loop())

    made = producer.submit_many([NewJob("loop", queue=queue)])
    task = asyncio.create_task(worker.run_async())
    job = await asyncio.to_thread(producer.wait, made[0].id, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job["state"] == "succeeded"
    assert loops == [asyncio.get_running_loop()]


def test_a_refused_set_up_ends_the_worker(serve: Callable[..., ServerProcess]) -> None:
    server = serve(api_keys="a:produce:secretsecretsecretsecretsecretsecret")
    worker = Worker(server.url, queues=["default"], api_key="wrong", drain_seconds=1)
    worker.handler("echo")(echo)
    with pytest.raises(Problem) as refusal:
        worker.run(handle_signals=False)
    assert (refusal.value.status, refusal.value.code) == (401, "unauthorized")


def echo(job: Job) -> object:
    return job.payload


def has_called(worker: Program) -> bool:
    """Tell whether the worker runs, which it says with its first call."""
    return "/v1/leases" in worker.log
