import signal
import time
from collections.abc import Callable

import psutil
from fencepost import AsyncJob, Client, Job, LeaseLost, Worker

from tests.clients.python.running import Program, running, wait_until
from tests.support.server import ServerProcess, free_port


def echo(job: Job) -> object:
    return job.payload


def version_of(producer: Client, job_id: str) -> int:
    return producer.get(job_id)["lease_version"]


def test_a_coroutine_that_blocks_its_loop_stops_no_heartbeat(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue], lease_seconds=1)

    @worker.handler("block")
    async def block(job: AsyncJob) -> int:
        time.sleep(3)  # noqa: ASYNC251 - that is the point
        return job.lease_version

    made = producer.submit("block", queue=queue)
    with running(worker):
        assert producer.wait(made.id, 60)["result"] == 1


def test_a_paused_process_finds_out_by_itself_and_writes_nothing(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("look", queue=queue)
    worker = program("look", lease_seconds=2)
    assert worker.mark("started") == "1"
    worker.mark("turn")
    worker.send(signal.SIGSTOP)
    wait_until(lambda: producer.get(made.id)["state"] == "ready")
    worker.send(signal.SIGCONT)
    # The handler asks nothing but its own clock, and returns as if it had done its work.
    assert worker.mark("stopped-1") == "lease_lost"
    wait_until(lambda: version_of(producer, made.id) >= 2)
    assert producer.get(made.id)["state"] == "running"
    wait_until(lambda: f"lease lost: job {made.id}, version 1" in worker.log)


def test_a_paused_handler_is_told_by_its_questions(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("careful", queue=queue)
    worker = program("careful", lease_seconds=2)
    worker.mark("started")
    worker.send(signal.SIGSTOP)
    wait_until(lambda: producer.get(made.id)["state"] == "ready")
    worker.send(signal.SIGCONT)
    assert worker.mark("refused-1") == "lease_lost"


def test_a_handlers_process_is_killed_when_its_lease_is_lost(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("compute", queue=queue)
    worker = program("compute", lease_seconds=2)
    worker.mark("started")
    process = int(worker.mark("process"))
    producer.cancel(made.id, force=True)
    wait_until(lambda: not is_running(process))
    assert worker.process.poll() is None


def test_a_handlers_process_ends_by_itself_while_the_worker_is_stopped(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    producer.submit("compute", queue=queue)
    worker = program("compute", lease_seconds=2)
    worker.mark("started")
    process = int(worker.mark("process"))
    worker.send(signal.SIGSTOP)
    wait_until(lambda: not is_running(process))


def test_a_handlers_process_ends_with_its_worker(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    producer.submit("compute", queue=queue)
    worker = program("compute", lease_seconds=600)
    worker.mark("started")
    process = int(worker.mark("process"))
    worker.kill()
    wait_until(lambda: not is_running(process))


def test_a_forced_cancel_stops_the_handler_as_lost(url: str, producer: Client, queue: str) -> None:
    worker = Worker(url, queues=[queue], lease_seconds=1)
    reasons: list[object] = []
    refusals: list[LeaseLost] = []

    @worker.handler("hold")
    def hold(job: Job) -> str:
        job.stop.wait(60)
        reasons.append(job.stop.reason)
        try:
            job.save_checkpoint(1)
        except LeaseLost as lost:
            refusals.append(lost)
        return "as if nothing had happened"

    made = producer.submit("hold", queue=queue)
    with running(worker):
        wait_until(lambda: producer.get(made.id)["state"] == "running")
        producer.cancel(made.id, force=True)
        wait_until(lambda: refusals)
    assert reasons == ["lease_lost"]
    lost = refusals[0]
    assert (lost.presented_version, lost.reason, lost.job_state) == (1, "cancelled", "cancelled")
    assert producer.get(made.id)["state"] == "cancelled"


def test_work_goes_on_after_the_service_was_away(serve: Callable[..., ServerProcess]) -> None:
    port = free_port()
    server = serve(port=port)
    url = f"http://127.0.0.1:{port}"
    worker = Worker(url, queues=["default"], lease_seconds=600, concurrency=2)
    worker.handler("quick")(echo)

    @worker.handler("over")
    def over(job: Job) -> str:
        """Begin before the service goes, and end while it is away."""
        server.kill()
        return "done meanwhile"

    with Client(url, retry_seconds=600) as producer, running(worker):
        made = producer.submit("over")
        server.process.wait(60)
        serve(port=port)
        assert producer.wait(made.id, 60)["result"] == "done meanwhile"
        assert producer.get(made.id)["lease_version"] == 1
        after = producer.submit("quick", 5)
        assert producer.wait(after.id, 60)["result"] == 5


def is_running(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
