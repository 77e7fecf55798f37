"""Handlers in processes that fork, die, start others, import slowly, or are left by their worker."""

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable

import psutil
import pytest
from fencepost import Client, Job, NewJob, Worker

from tests.clients.python.handlers_in_processes import close, decline, fork_and_die
from tests.clients.python.running import Program, running, wait_until
from tests.docs.documents import ROOT


@pytest.fixture
def worker(url: str, queue: str) -> Worker:
    return Worker(url, queues=[queue], lease_seconds=30, grace_seconds=1, drain_seconds=5)


def test_a_process_that_dies_after_a_fork_fails_its_job(worker: Worker, producer: Client, queue: str) -> None:
    worker.handler("fork", process=True)(fork_and_die)
    made = producer.submit("fork", queue=queue, max_attempts=1)
    with running(worker):
        error = producer.wait(made.id, 60)["error"] or {}
    assert (error["type"], error["details"]) == ("process_died", {"exit_status": 7})


def test_a_failure_and_a_release_of_a_handlers_own_mean_the_same_in_a_process(
    worker: Worker, producer: Client, queue: str
) -> None:
    worker.handler("decline", process=True)(decline)
    worker.handler("close", process=True)(close)
    declined, closed = producer.submit_many([NewJob(kind, queue=queue) for kind in ("decline", "close")])
    with running(worker):
        error = producer.wait(declined.id, 60)["error"] or {}
        wait_until(lambda: producer.get(closed.id)["state"] == "scheduled")
    assert (error["type"], error["message"]) == ("declined", "code 7")
    assert producer.get(declined.id)["attempt"] == 1
    assert (producer.get(closed.id)["attempt"], producer.get(closed.id)["error"]) == (0, None)


def test_a_handler_that_its_process_cannot_find_fails_its_job(
    worker: Worker, producer: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(job: Job) -> None:
        pass

    module = types.ModuleType("nowhere")
    module.__dict__["lost"] = lost
    lost.__module__, lost.__qualname__ = "nowhere", "lost"
    monkeypatch.setitem(sys.modules, "nowhere", module)
    worker.handler("lost", process=True)(lost)
    made = producer.submit("lost", queue=queue, max_attempts=1)
    with running(worker):
        error = producer.wait(made.id, 60)["error"] or {}
    assert (error["type"], error["message"]) == ("ModuleNotFoundError", "No module named 'nowhere'")


def test_what_a_process_has_started_is_killed_with_it(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    made = producer.submit("program", queue=queue)
    worker = program("program", lease_seconds=2)
    started = psutil.Process(int(worker.mark("program")))
    try:
        producer.cancel(made.id, force=True)
        wait_until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE)
    finally:
        if started.is_running():
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_the_whole_group_ends_no_process_that_still_imports(
    program: Callable[..., Program], producer: Client, queue: str, number: signal.Signals
) -> None:
    made = producer.submit("slow", "text", queue=queue)
    worker = program("slow", drain_seconds=60)
    os.kill(int(worker.mark("importing")), number)
    worker.go_on()
    job = producer.wait(made.id, 60)
    assert (job["state"], job["attempt"], job["result"]) == ("succeeded", 1, 4)


def test_a_process_that_reads_nothing_yet_holds_up_no_heartbeat(
    program: Callable[..., Program], producer: Client, queue: str
) -> None:
    # More than a pipe takes: the thread that writes it waits for the process.
    made = producer.submit("slow", "x" * 260_000, queue=queue)
    worker = program("slow", lease_seconds=2, grace_seconds=60)
    worker.mark("importing")
    producer.cancel(made.id)
    renewals: set[str] = set()

    def is_renewed() -> bool:
        lease = producer.get(made.id)["lease"]
        assert lease is not None
        renewals.add(lease["expires_at"])
        return len(renewals) > 5

    wait_until(is_renewed)
    worker.go_on()
    error = producer.wait(made.id, 60)["error"] or {}
    assert error["type"] == "cancelled"


@pytest.mark.parametrize("end", ["worker.stop(); thread.join()", "pass"], ids=["stopped", "left running"])
@pytest.mark.parametrize("handler", ["echo", "leave_a_thread"])
def test_a_program_ends_whatever_its_processes_still_do(url: str, queue: str, end: str, handler: str) -> None:
    text = f"""
import threading
from fencepost import Client, Worker
from tests.clients.python import handlers_in_processes
if __name__ == "__main__":
    worker = Worker({url!r}, queues=[{queue!r}])
    worker.handler("a", process=True)(handlers_in_processes.{handler})
    thread = threading.Thread(target=worker.run, kwargs={{"handle_signals": False}}, daemon=True)
    thread.start()
    with Client({url!r}) as client:
        print(client.wait(client.submit("a", queue={queue!r}).id, 60)["state"])
    {end}
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "clients" / "python" / "src")])
    told = subprocess.check_output([sys.executable, "-c", text], env={"PYTHONPATH": path}, timeout=60)
    assert told == b"succeeded\n"
