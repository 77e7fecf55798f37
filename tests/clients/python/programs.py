"""Workers that run as programs: python programs.py NAME FOLDER URL QUEUE [option=value ...]

Each handler writes marks, files in FOLDER, so that a test knows where it is.
"""

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fencepost import AsyncJob, Job, LeaseLost, Worker

NAME, FOLDER, URL, QUEUE = sys.argv[1:5] if len(sys.argv) > 4 else ("", "", "http://127.0.0.1:1", "none")
OPTIONS: dict[str, Any] = {name: float(value) for name, value in (each.split("=") for each in sys.argv[5:])}
if "concurrency" in OPTIONS:
    OPTIONS["concurrency"] = int(OPTIONS["concurrency"])

worker = Worker(URL, queues=[QUEUE], **OPTIONS)


def mark(name: str, text: object = "") -> None:
    """Write a mark; it appears with its whole text."""
    unfinished = Path(FOLDER) / f".{name}"
    unfinished.write_text(str(text))
    unfinished.rename(Path(FOLDER) / name)


@worker.handler("hold")
def hold(job: Job) -> None:
    """Work until told to stop."""
    mark("started", job.lease_version)
    job.stop.wait()
    mark(f"stopped-{job.lease_version}", job.stop.reason)
    job.raise_if_stopped()


@worker.handler("look")
def look(job: Job) -> None:
    """Ask the clock only, in a loop that knows nothing of events."""
    mark("started", job.lease_version)
    while not job.stop.is_set():
        mark("turn", time.monotonic())
        time.sleep(0.01)
    mark(f"stopped-{job.lease_version}", job.stop.reason)


@worker.handler("hold.loop")
async def hold_in_loop(job: AsyncJob) -> None:
    """Block the loop of the handlers for good."""
    mark("started", job.lease_version)
    time.sleep(3600)  # noqa: ASYNC251 - that is the point


@worker.handler("late")
def late(job: Job) -> str:
    """Return a result although told to stop."""
    mark("started", job.lease_version)
    job.stop.wait()
    return "just in time"


@worker.handler("stubborn")
def stubborn(job: Job) -> None:
    """Hear nothing."""
    mark("started", job.lease_version)
    time.sleep(3600)


@worker.handler("compute", process=True)
def compute(job: Job) -> int:
    """Work in a process that hears nothing, until it is killed."""
    mark("process", os.getpid())
    mark("started", job.lease_version)
    while True:
        sum(range(100_000))


@worker.handler("program", process=True)
def program(job: Job) -> None:
    """Wait in a process for a program that it has started."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    mark("program", started.pid)
    started.wait()


@worker.handler("slow", process=True)
def slow(job: Job) -> int:
    """Work in a process that has taken its time to import this module, until told to stop if it is much."""
    if len(job.payload) > 1_000:
        job.stop.wait()
        job.raise_if_stopped()
    return len(job.payload)


@worker.handler("careful")
def careful(job: Job) -> None:
    """Ask before writing."""
    mark("started", job.lease_version)
    job.stop.wait()
    try:
        job.verify()
    except LeaseLost as lost:
        mark(f"refused-{job.lease_version}", lost.code)
        raise


if NAME == "slow" and multiprocessing.current_process().name == "fencepost-process":
    mark("importing", os.getpid())
    while not (Path(FOLDER) / "go-on").exists():
        time.sleep(0.01)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    worker.run()
    mark("ended")
