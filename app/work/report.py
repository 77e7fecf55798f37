"""What a command says on descriptor 3 while it works.

progress 40 resizing page 2     percent and message, both may be left out
checkpoint {"page": 2}          any JSON; answered with "stored", or "refused" and a code
verify                          whether the lease is held; answered with "held", or "refused lease_lost"
delay 120                       when the job is due again, should this attempt fail or be released
error {"type": "bad_address"}   what a failure says: any of type, message and details

Unasked it is told "stop" and the reason, just before SIGTERM.
"""

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fencepost import AsyncJob, LeaseLost, Problem

from app.work.lines import Lines
from app.work.streams import Stream
from app.work.watch import Watch

log = logging.getLogger("fencepost.work")

# As much as a result: no service takes a longer checkpoint unless it was told to.
_LONGEST_LINE_BYTES = 16_777_216
_MESSAGE_CHARACTERS = 1_024
_PROGRESS = re.compile(r"progress(?:\s+(\d+(?:\.\d+)?)%?(?=\s|$))?(?:\s+(.*))?")
_DELAY = re.compile(r"delay\s+(\d{1,8}(?:\.\d+)?)")
_CHECKPOINT = re.compile(r"checkpoint\s+(.+)")
_ERROR = re.compile(r"error\s+(\{.+)")
_MOST_DELAY_SECONDS = 31_536_000


class Report:
    """Reads the lines of one command, and tells the worker's client what they say."""

    def __init__(self, descriptor: int, watch: Watch, job: AsyncJob, *, tell: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._stream = Stream(descriptor, watch, self._take, tell)
        self._job = job
        self._lines = Lines(_LONGEST_LINE_BYTES)
        # What the last delay line said; None without one.
        self.delay_seconds: float | None = None
        # What the last error line said.
        self.error: dict[str, Any] = {}

    @property
    def has_ended(self) -> bool:
        """Whether all lines are done."""
        return self._stream.has_ended

    def cut(self) -> None:
        """Let all end after what has been written, also while somebody still could write."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def tell_stop(self) -> None:
        """Say why the SIGTERM that follows is sent."""
        self._answer(f"stop {self._job.stop.reason}")

    def close(self) -> None:
        """Read no more lines, and close the socket."""
        self._stream.stop()
        self._socket.close()

    def _take(self, chunk: bytes) -> "asyncio.Task[None] | None":
        lines = list(self._lines.feed(chunk) if chunk else self._lines.end())
        return asyncio.create_task(self._do(lines)) if lines else None

    async def _do(self, lines: Iterable[bytes | None]) -> None:
        """Do lines one after the other: a checkpoint is stored before the next one is looked at."""
        for line in lines:
            await self._take_line(line)

    async def _take_line(self, line: bytes | None) -> None:
        if line is None:
            self._reject("a line is too long")
            return
        text = line.decode(errors="replace").strip()
        if found := _PROGRESS.fullmatch(text):
            self._progress(*found.groups())
        elif found := _CHECKPOINT.fullmatch(text):
            await self._ask(self._save(found[1]), granted="stored")
        elif text == "verify":
            await self._ask(self._job.verify(), granted="held")
        elif (found := _DELAY.fullmatch(text)) and float(found[1]) <= _MOST_DELAY_SECONDS:
            self.delay_seconds = float(found[1])
        elif found := _ERROR.fullmatch(text):
            self._note_error(found[1])
        elif text:
            self._reject(f"not understood: {text[:200]!r}")

    def _progress(self, percent_text: str | None, message: str | None) -> None:
        percent = None if percent_text is None else float(percent_text)
        if percent is not None and percent > 100:
            self._reject(f"{percent_text} is no percentage")
            # It got on all the same.
            percent = None
        self._job.progress(percent, None if message is None else message[:_MESSAGE_CHARACTERS])

    def _note_error(self, text: str) -> None:
        try:
            said = _value(text)
        except ValueError as error:
            self._reject(f"no error: {error}")
            return
        texts = {name: said[name] for name in ("type", "message") if isinstance(said.get(name), str)}
        details = {"details": said["details"]} if "details" in said else {}
        self.error = texts | details
        if len(self.error) < len(said):
            self._reject("an error has type and message, which are texts, and details")

    async def _save(self, text: str) -> None:
        await self._job.save_checkpoint(_value(text))

    async def _ask(self, question: Awaitable[None], *, granted: str) -> None:
        try:
            await question
        except Problem as problem:
            if not isinstance(problem, LeaseLost):
                self._reject(str(problem))
            self._answer(f"refused {problem.code}")
        except ValueError as error:
            self._reject(f"no checkpoint: {error}")
            self._answer("refused malformed_request")
        else:
            self._answer(granted)

    def _answer(self, line: str) -> None:
        # Most commands do not read answers, and may be gone.
        with contextlib.suppress(OSError):
            self._socket.send(line.encode() + b"\n")

    def _reject(self, reason: str) -> None:
        log.warning("job %s, descriptor 3: %s", self._job.id, reason)


def _value(text: str) -> Any:
    """Read JSON; raises ValueError for all that is none, or more than the service takes."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
