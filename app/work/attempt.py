"""One attempt: the command is started, attended to its end, and stopped when the client says so."""

import asyncio
import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fencepost import AsyncJob, Complete, Fail, Release

from app.work.descriptors import feed
from app.work.environment import job_environment
from app.work.guard import Guard
from app.work.outcome import RELEASE_EXIT_CODE, not_started, outcome_of
from app.work.output import Outlet, Output
from app.work.process import Process
from app.work.report import Report

# What a command has left running may finish its last lines, as `exec > >(tee log)` does; then it is killed.
_LINGER_SECONDS = 1.0
# The service's own limit for the body of a call for many, unless it was told another one.
_LONGEST_RESULT_BYTES = 16_777_216


@dataclass(frozen=True, slots=True)
class Command:
    """What is run for each job, and what all attempts share."""

    path: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    grace_seconds: float
    release_delay_seconds: float
    guard: Guard
    stdout: Outlet
    stderr: Outlet


async def run_command(command: Command, job: AsyncJob) -> Complete | Fail | Release:
    """Run the command for a job. To cancel this is to have it stopped; how it ends then is still returned."""
    try:
        environ = job_environment(command.environ, job.facts)
        process = Process.start(command.path, command.arguments, environ, command.guard)
    except (OSError, ValueError) as error:
        return not_started(error)
    return await Attempt(command, job, process).run()


class Attempt:
    """A command that runs for a job."""

    def __init__(self, command: Command, job: AsyncJob, process: Process) -> None:
        self._command = command
        self._job = job
        self._process = process
        self._stdout = Output(process.ends.stdout, command.stdout, longest_line_bytes=_LONGEST_RESULT_BYTES)
        # Of stderr only the tail is of use.
        self._stderr = Output(process.ends.stderr, command.stderr, longest_line_bytes=0)
        self._report = Report(process.ends.progress, job)

    async def run(self) -> Complete | Fail | Release:
        """Attend to the command until it has ended; stop it when this is cancelled."""
        attending = asyncio.create_task(self._attend())
        while not attending.done():
            try:
                await asyncio.wait([attending])
            except asyncio.CancelledError:
                self._report.tell_stop()
                self._process.stop(self._command.grace_seconds)
        return attending.result()

    async def _attend(self) -> Complete | Fail | Release:
        # ASCII alone, everything else escaped: a payload may hold what UTF-8 has no form for.
        payload = json.dumps(self._job.payload).encode()
        feeding = asyncio.create_task(feed(self._process.ends.stdin, payload))
        reading = [asyncio.create_task(each.read()) for each in (self._stdout, self._stderr)]
        reporting = asyncio.create_task(self._report.read())
        try:
            await self._process.exited.wait()
            await asyncio.wait([*reading, reporting], timeout=_LINGER_SECONDS)
        finally:
            # What has been left running is nobody's: no heartbeat is sent for it.
            self._process.signal(signal.SIGKILL)
        exit_code = self._process.reap()
        await _end([feeding, *reading])
        self._stdout.close()
        self._stderr.close()
        self._report.cut()
        if exit_code == 0:
            await _end([reporting])
        else:
            # A checkpoint that was written before the failure is for the next attempt.
            await reporting
        self._report.close()
        return outcome_of(
            exit_code,
            stdout_line=self._stdout.last_line,
            stderr_tail=self._stderr.tail,
            delay_seconds=self._delay_seconds(exit_code),
            error=self._report.error,
        )

    def _delay_seconds(self, exit_code: int) -> float | None:
        if self._report.delay_seconds is None and exit_code == RELEASE_EXIT_CODE:
            return self._command.release_delay_seconds
        return self._report.delay_seconds


async def _end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel what still runs, and raise what has gone wrong."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
