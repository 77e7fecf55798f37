"""Handlers that a process finds by their names."""

import os
import threading

from fencepost import Fail, Job, Release


def echo(job: Job) -> list[object]:
    return [job.payload, os.getpid()]


def ask(job: Job) -> list[object]:
    job.progress(50, "half")
    job.save_checkpoint({"stored": True})
    job.verify()
    child = job.submit("child", "mail", queue=job.payload)
    return [child.created, child.job["idempotency_key"]]


def die(job: Job) -> None:
    os._exit(7)


def crash(job: Job) -> float:
    return 1 / 0


def give_no_json(job: Job) -> object:
    return {1, 2}


def report(job: Job) -> None:
    raise Fail("no such card", retryable=False, type="card")


class Declined(Fail):
    """A failure that is made of other things than its message."""

    def __init__(self, code: int, *, bank: str) -> None:
        super().__init__(f"code {code}", retryable=False, type="declined", details=lambda: bank)


class Closed(Release):
    """A reason to give the job back that is made of nothing."""

    def __init__(self) -> None:
        super().__init__(3600, "closed")


def decline(job: Job) -> None:
    raise Declined(7, bank="a")


def close(job: Job) -> None:
    raise Closed


def fork_and_die(job: Job) -> None:
    """Die while a process that was forked holds all that was open."""
    if os.fork() == 0:
        threading.Event().wait()
    os._exit(7)


def leave_a_thread(job: Job) -> str:
    threading.Thread(target=threading.Event().wait).start()
    return "left"
