"""Handlers that a process finds by their names."""

import os

from fencepost import Fail, Job


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
