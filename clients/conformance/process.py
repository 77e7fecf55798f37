"""The adapter's process: started, signalled and ended by its id, and its events read while it writes them."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clients.conformance.record import Act, Event, Record

LOOK_SECONDS = 0.01


class AdapterProcess:
    """One client under test. ``start`` begins run 1, ``restart`` the next one.

    It leads a process group of its own, so that nothing it starts outlives the case.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        scratch: Path,
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
        record: Record,
        clock: Callable[[], float],
        letter: Callable[[str | None], str | None],
    ) -> None:
        self._command = command
        self._folder = folder
        self._events = scratch / "events"
        self._output = scratch / "output"
        self._environment = environment
        self._settings = {**settings, "events": str(self._events)}
        self._record = record
        self._clock = clock
        self._letter = letter
        self._process: asyncio.subprocess.Process | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._read = 0
        self.run = 0

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        self.run += 1
        self._events.touch()
        environment = {**os.environ, **self._environment, "CONFORMANCE": json.dumps(self._settings)}
        with self._output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._watching = [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._await_exit(self._process)),
        ]

    async def restart(self) -> None:
        """End the process in order, and start another one."""
        self.signal("SIGTERM")
        await self.exited()
        self._stop_watching()
        await self.start()

    def signal(self, name: str) -> None:
        """Send a signal to the adapter itself, not to what it has started."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.Signals[name])

    async def exited(self) -> int:
        assert self._process is not None  # noqa: S101 (only a started process is awaited)
        return await self._process.wait()

    async def end(self) -> None:
        """Kill what is left, and read the last events."""
        if self._process is not None:
            # The group bears its leader's id, also when that has gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._stop_watching()
        self.read_events()

    def output(self, limit: int = 3000) -> str:
        """Return the end of what it wrote to its standard output and error."""
        return self._output.read_text(errors="replace")[-limit:] if self._output.exists() else ""

    def read_events(self) -> None:
        """Take the lines that have been written since the last look."""
        with self._events.open("rb") as events:
            events.seek(self._read)
            for line in events.read().splitlines(keepends=True):
                # The rest of a line that is just being written comes with the next look.
                if line.endswith(b"\n"):
                    self._read += len(line)
                    self._record.add(self._event(line))

    def _event(self, line: bytes) -> Event | Act:
        try:
            body = json.loads(line)
            name = body["event"]
        except (ValueError, TypeError, KeyError):
            return Act(self._clock(), self.run, "no event", told=line.decode(errors="replace"))
        job = self._letter(body.get("job_id"))
        return Event(self._clock(), self.run, name, job, body.get("lease_version"), body)

    async def _follow(self) -> None:
        while True:
            self.read_events()
            await asyncio.sleep(LOOK_SECONDS)

    async def _await_exit(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        self.read_events()
        self._record.add(Act(self._clock(), self.run, "exit", told=f"code {code}"))

    def _stop_watching(self) -> None:
        for task in self._watching:
            task.cancel()
