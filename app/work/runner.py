"""The worker that runs a command for each job."""

import re
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from fencepost import AsyncJob, Complete, Fail, Problem, Release, Worker

from app.work.attempt import Command, run_command
from app.work.environment import base_environment
from app.work.guard import Guard
from app.work.output import Outlet
from app.work.process import occupy_the_commands_descriptors
from app.work.watch import Watch

_VISIBLE_ASCII = re.compile(r"[!-~]+")
# Beside the grace of the commands: SIGKILL, the last lines, and the call that tells the end.
_SPARE_SECONDS = 2.0
_LAST_LINES_SECONDS = 1.0
_DESCRIPTORS_EACH = 5
_DESCRIPTORS_BESIDE = 100


class WorkError(Exception):
    """The worker cannot work as it is set up; the text is one line for a person."""


class BadOption(WorkError):
    """It was started in a way that can never work."""


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What ``fencepost work`` was started with."""

    url: str
    api_key: str | None = field(repr=False)
    queues: Sequence[str]
    concurrency: int
    lease_seconds: float
    wait_seconds: float
    drain_seconds: float
    grace_seconds: float
    release_delay_seconds: float
    worker_id: str | None
    command: Sequence[str]


def run_worker(options: WorkOptions, environ: Mapping[str, str]) -> None:
    """Run the command for jobs until SIGTERM or SIGINT; raise WorkError when that cannot be done."""
    path = _path_of(options.command[0])
    url = _checked_url(options.url)
    api_key = _checked_key(options.api_key)
    _make_room(options.concurrency)
    occupy_the_commands_descriptors()
    guard = Guard(options.concurrency)
    outlets = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())
    command = Command(
        path=path,
        arguments=tuple(options.command),
        environ=base_environment(environ, url=url),
        grace_seconds=options.grace_seconds,
        release_delay_seconds=options.release_delay_seconds,
        guard=guard,
        watch=Watch(),
        stdout=outlets[0],
        stderr=outlets[1],
    )
    worker = Worker(
        url,
        queues=options.queues,
        concurrency=options.concurrency,
        api_key=api_key,
        lease_seconds=options.lease_seconds,
        wait_seconds=options.wait_seconds,
        drain_seconds=options.drain_seconds,
        grace_seconds=options.grace_seconds + _SPARE_SECONDS,
        worker_id=options.worker_id,
    )

    @worker.handler()
    async def run(job: AsyncJob) -> Complete | Fail | Release:
        return await run_command(command, job)

    try:
        worker.run()
    except Problem as problem:
        raise WorkError(f"the service refuses this worker: {problem}") from problem
    finally:
        guard.close()
        for outlet in outlets:
            outlet.close(timeout_seconds=_LAST_LINES_SECONDS)


def _path_of(program: str) -> str:
    path = shutil.which(program)
    if path is not None:
        return path
    if "/" in program and Path(program).exists():
        raise BadOption(f"{program} is not an executable file")
    raise BadOption(f"there is no program {program}")


def _checked_key(text: str | None) -> str | None:
    if text is not None and not _VISIBLE_ASCII.fullmatch(text):
        raise BadOption("FENCEPOST_CLIENT_KEY must be visible ASCII characters")
    return text


def _checked_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise BadOption("the address of the service must be like http://127.0.0.1:8000")
    return text.rstrip("/")


def _make_room(concurrency: int) -> None:
    """Allow this process as many descriptors as its commands take, as far as the system lets it."""
    needed = concurrency * _DESCRIPTORS_EACH + _DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise WorkError(
                f"{concurrency} commands at once take {needed} descriptors, and this system allows {hard}: "
                "see `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
