"""What goes into and comes out of a command, in an event loop and without a task for each."""

import asyncio
import os
from collections.abc import Callable

from app.work.watch import Watch

CHUNK_BYTES = 65_536

# Gets a piece of a stream, b"" at its end. It gets no other before what it returns is done; None: at once.
Take = Callable[[bytes], "asyncio.Future[None] | None"]


class Stream:
    """What a command writes on a descriptor, read to its end, no faster than it is taken.

    ``tell`` is called at the end. Most streams of most commands end without a word.
    """

    def __init__(self, descriptor: int, watch: Watch, take: Take, tell: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)
        self.has_ended = False
        self._descriptor = descriptor
        self._watch = watch
        self._take = take
        self._tell = tell
        self._taking: asyncio.Future[None] | None = None
        watch.add(descriptor, self._read)

    def stop(self) -> None:
        """Read no more, and let go of what is not taken yet."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._taking is None:
            self._watch.remove(self._descriptor)
        else:
            self._taking.cancel()

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            # It went without having read an answer; all that it had written has been read by now.
            chunk = b""
        taking = self._take(chunk)
        if taking is not None:
            self._watch.remove(self._descriptor)
            self._taking = taking
            taking.add_done_callback(self._taken)
        elif chunk == b"":
            self._watch.remove(self._descriptor)
            self.has_ended = True
            self._tell()

    def _taken(self, taking: "asyncio.Future[None]") -> None:
        self._taking = None
        if not self.has_ended:
            self._watch.add(self._descriptor, self._read)
        if not taking.cancelled():
            # The loop reports what has gone wrong; what the command says next is heard all the same.
            taking.result()


class Feed:
    """Data for a command, written as it reads, and then the end. That it does not read is no error."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = memoryview(data)
        # Most data fit into the pipe, and nothing is left to wait for.
        self._write()
        if self._rest:
            asyncio.get_running_loop().add_writer(descriptor, self._write_on)
        else:
            os.close(descriptor)

    def stop(self) -> None:
        """Write no more."""
        if self._rest:
            self._end()

    def _write_on(self) -> None:
        self._write()
        if not self._rest:
            self._end()

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._rest = self._rest[:0]

    def _end(self) -> None:
        self._rest = self._rest[:0]
        asyncio.get_running_loop().remove_writer(self._descriptor)
        os.close(self._descriptor)
