"""One attempt: the command is started, attended to its end, and stopped when the client says so."""

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fencepost import AsyncJob, Complete, Fail, Release

from app.work.environment import job_environment
from app.work.guard import Guard
from app.work.outcome import RELEASE_EXIT_CODE, not_started, outcome_of
from app.work.output import Outlet, Output
from app.work.process import Process
from app.work.report import Report
from app.work.streams import Feed
from app.work.watch import Watch

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
    watch: Watch
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
        self._process = process
        # Set whenever the command has exited, or one of its streams has ended.
        self._news = asyncio.Event()
        watch, tell, ends = command.watch, self._news.set, process.ends
        process.await_exit(watch, tell)
        # ASCII alone, everything else escaped: a payload may hold what UTF-8 has no form for.
        self._feed = Feed(ends.stdin, json.dumps(job.payload).encode())
        self._stdout = Output(
            ends.stdout, watch, command.stdout, longest_line_bytes=_LONGEST_RESULT_BYTES, tell=tell
        )
        # Of stderr only the tail is of use.
        self._stderr = Output(ends.stderr, watch, command.stderr, longest_line_bytes=0, tell=tell)
        self._report = Report(ends.progress, watch, job, tell=tell)

    async def run(self) -> Complete | Fail | Release:
        """Attend to the command until it has ended; stop it when this is cancelled."""
        try:
            await self._until(lambda: self._process.has_exited)
            await self._linger()
        finally:
            # What has been left running is nobody's: no heartbeat is sent for it.
            self._process.signal(signal.SIGKILL)
        exit_code = self._process.reap()
        self._feed.stop()
        self._stdout.close()
        self._stderr.close()
        if exit_code != 0:
            # A checkpoint that was written before the failure is for the next attempt.
            self._report.cut()
            await self._until(lambda: self._report.has_ended)
        self._report.close()
        return outcome_of(
            exit_code,
            stdout_line=self._stdout.last_line,
            stderr_tail=self._stderr.tail,
            delay_seconds=self._delay_seconds(exit_code),
            error=self._report.error,
        )

    async def _linger(self) -> None:
        """Wait for the ends of the streams, for as long as what is left of the command may write."""
        if self._has_fallen_silent():
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _LINGER_SECONDS
        timer = loop.call_at(until, self._news.set)
        await self._until(lambda: self._has_fallen_silent() or loop.time() >= until)
        timer.cancel()

    def _has_fallen_silent(self) -> bool:
        return self._stdout.has_ended and self._stderr.has_ended and self._report.has_ended

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that news may bring, and stop the command whenever this is cancelled."""
        while not condition():
            self._news.clear()
            try:
                await self._news.wait()
            except asyncio.CancelledError:
                self._report.tell_stop()
                self._process.stop(self._command.grace_seconds)

    def _delay_seconds(self, exit_code: int) -> float | None:
        if self._report.delay_seconds is None and exit_code == RELEASE_EXIT_CODE:
            return self._command.release_delay_seconds
        return self._report.delay_seconds
