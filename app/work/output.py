"""What a command writes: read to its end in bounded memory, and passed on line by line."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from app.work.lines import Lines
from app.work.streams import CHUNK_BYTES, Stream
from app.work.watch import Watch

# Up to this a line is passed on in one piece, so that those of two commands do not mix.
_WHOLE_LINE_BYTES = 65_536
_TAIL_BYTES = 4_096
# The largest pipe that a process without privileges may have.
_MOST_LEFT_BYTES = 1_048_576
# What may wait for a slow reader of this process's stream: a chunk of each of a thousand commands.
_MOST_WAITING_BYTES = 67_108_864

log = logging.getLogger("fencepost.work")


class Outlet:
    """One of this process's own streams, written to by a thread: a slow reader holds up no event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writes: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        self._waiting_bytes = 0
        self._dropped_bytes = 0
        self._thread = threading.Thread(target=self._run, name=f"fencepost-output-{descriptor}", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> "asyncio.Future[None]":
        """Write data; the future is done when it has been taken, or when nobody will take it.

        Data is dropped while too much of it waits: a log collector that stands still must not take this
        process's memory, nor the results of jobs.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self._dropped_bytes += len(data)
            written.set_result(None)
        else:
            self._waiting_bytes += len(data)
            self._writes.put((data, written))
        return written

    def close(self, *, timeout_seconds: float) -> None:
        """Wait until all has been taken, as far as the time allows."""
        self._writes.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (write := self._writes.get()) is not None:
            data, written = write
            rest = memoryview(data)
            # Commands go on without an audience.
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            # At the end of the process the loop may be gone.
            with contextlib.suppress(RuntimeError):
                written.get_loop().call_soon_threadsafe(self._taken, data, written)

    def _taken(self, data: bytes, written: "asyncio.Future[None]") -> None:
        self._waiting_bytes -= len(data)
        if not written.done():
            written.set_result(None)
        # Said when somebody reads again: before, the log might find nobody either.
        if self._dropped_bytes and not self._waiting_bytes:
            log.warning(
                "descriptor %d was not read: %d bytes are dropped", self._descriptor, self._dropped_bytes
            )
            self._dropped_bytes = 0


class Output:
    """One output stream of one command.

    ``tail`` is the end of it. ``last_line`` is the last line that is not blank: empty without one, None when
    it was longer than what may be kept.
    """

    def __init__(
        self,
        descriptor: int,
        watch: Watch,
        outlet: Outlet,
        *,
        longest_line_bytes: int,
        tell: Callable[[], None],
    ) -> None:
        self._descriptor = descriptor
        self._outlet = outlet
        self._lines = Lines(longest_line_bytes)
        self._unfinished = b""
        self.last_line: bytes | None = b""
        self.tail = b""
        self._stream = Stream(descriptor, watch, self._pass_on, tell)

    @property
    def has_ended(self) -> bool:
        """Whether all has been read and passed on."""
        return self._stream.has_ended

    def close(self) -> None:
        """Read what is there, without waiting for more, and close."""
        if not self._stream.has_ended:
            self._stream.stop()
            self._read_what_is_left()
        os.close(self._descriptor)
        self._note(self._lines.end())
        if self._unfinished:
            self._outlet.put(self._unfinished + b"\n")

    def _read_what_is_left(self) -> None:
        left = _MOST_LEFT_BYTES
        with contextlib.suppress(BlockingIOError):
            while left > 0 and (chunk := os.read(self._descriptor, CHUNK_BYTES)):
                left -= len(chunk)
                self._outlet.put(self._take(chunk))

    def _pass_on(self, chunk: bytes) -> "asyncio.Future[None] | None":
        return self._outlet.put(self._take(chunk)) if chunk else None

    def _take(self, chunk: bytes) -> bytes:
        """Note what a chunk says; return what can be passed on now."""
        self.tail = (self.tail + chunk)[-_TAIL_BYTES:]
        self._note(self._lines.feed(chunk))
        text = self._unfinished + chunk
        cut = text.rfind(b"\n") + 1
        if cut == 0 and len(text) > _WHOLE_LINE_BYTES:
            cut = len(text)
        self._unfinished = text[cut:]
        return text[:cut]

    def _note(self, lines: Iterable[bytes | None]) -> None:
        for line in lines:
            if line is None or line.strip():
                self.last_line = line
