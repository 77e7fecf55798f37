"""The client under the conformance suite: python conformance_adapter.py [loop | thread]

The argument says where the scripted handlers run; the suite's CONFORMANCE says everything else.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fencepost import (
    SETTLED,
    AsyncJob,
    Client,
    Complete,
    Fail,
    Job,
    NewJob,
    Problem,
    Release,
    Submitted,
    Unavailable,
    Worker,
)

ORDER = json.loads(os.environ["CONFORMANCE"])
LOOK_SECONDS = 0.01


def tell(event: str, job: Job | AsyncJob | None = None, **members: Any) -> None:
    """Append one event; a single write, since several threads have the file open."""
    line = {"event": event} | ({} if job is None else {"job_id": job.id, "lease_version": job.lease_version})
    with Path(ORDER["events"]).open("ab", buffering=0) as events:
        events.write(json.dumps(line | members).encode() + b"\n")


def scripted(job: Job) -> object:
    """Obey the payload's steps, in a thread."""
    tell("started", job)
    try:
        for step in job.payload.get("steps", []):
            ((verb, value),) = ((name, value) for name, value in step.items() if name != "name")
            if verb in STEPS:
                refusable(job, lambda: STEPS[verb](job, value, step))  # noqa: B023 - called in this turn
            else:
                return ended(job, verb, value)
    except BaseException:
        tell("ended", job, how="raised")
        raise
    return ended(job, "return", None)


def refusable(job: Job | AsyncJob, act: Callable[[], object]) -> None:
    """Do a step, and tell when it is refused."""
    try:
        act()
    except Problem as problem:
        tell("error", job, code=problem.code)
        raise


def sleep(job: Job, seconds: float | None) -> None:
    """Work for a while, or until told to stop."""
    if job.stop.wait(seconds):
        tell("stopped", job, reason=job.stop.reason)
        job.raise_if_stopped()


def be_stubborn(job: Job, seconds: float) -> None:
    """Notice the stop, and go on."""
    end, is_told = time.monotonic() + seconds, False
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        if not is_told and job.stop.is_set():
            tell("stopped", job, reason=job.stop.reason)
            is_told = True


STEPS: dict[str, Callable[[Job, Any, dict[str, Any]], object]] = {
    "sleep": lambda job, value, _: sleep(job, value),
    "hold": lambda job, _, __: sleep(job, None),
    "stubborn": lambda job, value, _: be_stubborn(job, value),
    "progress": lambda job, value, _: job.progress(value.get("percent"), value.get("message")),
    "checkpoint": lambda job, value, _: job.save_checkpoint(value),
    "submit": lambda job, value, step: job.submit(step["name"], **value),
    "verify": lambda job, _, __: job.verify(),
}


async def scripted_in_loop(job: AsyncJob) -> object:
    """Obey the payload's steps, as a coroutine."""
    tell("started", job)
    try:
        for step in job.payload.get("steps", []):
            ((verb, value),) = ((name, value) for name, value in step.items() if name != "name")
            if verb not in ASYNC_STEPS:
                return ended(job, verb, value)
            try:
                await ASYNC_STEPS[verb](job, value, step)
            except Problem as problem:
                tell("error", job, code=problem.code)
                raise
    except BaseException:
        tell("ended", job, how="raised")
        raise
    return ended(job, "return", None)


async def sleep_in_loop(job: AsyncJob, seconds: float) -> None:
    """Work for a while, or until cancelled."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        tell("stopped", job, reason=job.stop.reason)
        raise


async def be_stubborn_in_loop(job: AsyncJob, seconds: float) -> None:
    """Notice the cancel, and go on."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            tell("stopped", job, reason=job.stop.reason)


async def progress_in_loop(job: AsyncJob, said: dict[str, Any]) -> None:
    """Tell how far the handler is."""
    job.progress(said.get("percent"), said.get("message"))


ASYNC_STEPS: dict[str, Callable[[AsyncJob, Any, dict[str, Any]], Awaitable[object]]] = {
    "sleep": lambda job, value, _: sleep_in_loop(job, value),
    "hold": lambda job, _, __: sleep_in_loop(job, float("inf")),
    "stubborn": lambda job, value, _: be_stubborn_in_loop(job, value),
    "progress": lambda job, value, _: progress_in_loop(job, value),
    "checkpoint": lambda job, value, _: job.save_checkpoint(value),
    "submit": lambda job, value, step: job.submit(step["name"], **value),
    "verify": lambda job, _, __: job.verify(),
}


def ended(job: Job | AsyncJob, verb: str, value: Any) -> object:
    """Return, or raise, what the last step says."""
    if verb == "raise":
        raise RuntimeError(value)
    tell("ended", job, how="returned")
    match verb:
        case "return":
            return value
        case "complete":
            follow_ups = [NewJob(**body) for body in value.get("enqueue", [])]
            return Complete(value.get("result"), enqueue=follow_ups)
        case "fail":
            return Fail(**value)
        case "release":
            return Release(**value)
        case "settled":
            return SETTLED
        case _:
            raise ValueError(f"no step is called {verb}")


def work(room: str) -> None:
    """Run a worker until SIGTERM."""
    worker = Worker(ORDER["url"], api_key=ORDER.get("api_key"), **ORDER["worker"])
    if room == "loop":
        worker.handler("scripted")(scripted_in_loop)
    else:
        worker.handler("scripted")(scripted)
    threading.Thread(target=tell_when_ready, daemon=True).start()
    worker.run()


def tell_when_ready() -> None:
    """Tell as soon as signals are handled."""
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(LOOK_SECONDS)
    tell("ready")


def produce() -> None:
    """Submit what the suite wants submitted."""
    with Client(ORDER["url"], api_key=ORDER.get("api_key")) as client:
        for step in ORDER["produce"]:
            try:
                for each in submitted(client, step):
                    tell("submitted", id=each.id, created=each.created)
            except Problem as problem:
                tell("refused", code=problem.code, status=problem.status)
            except Unavailable:
                tell("refused", code="unavailable", status=0)
    tell("done")


def submitted(client: Client, step: dict[str, Any]) -> list[Submitted]:
    """Submit one job or many."""
    if "submit" in step:
        return [client.submit(**step["submit"])]
    return client.submit_many([NewJob(**body) for body in step["submit_many"]])


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if ORDER["role"] == "producer":
        produce()
    else:
        try:
            work(sys.argv[1] if len(sys.argv) > 1 else "loop")
        except Problem as problem:
            sys.exit(str(problem))
