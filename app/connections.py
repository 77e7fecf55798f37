"""One connection of a client: uvicorn's, with deadlines, bounds, and one reading of every message.

uvicorn reads a request for as long as it takes, and whatever its head weighs. It also takes trailers for
headers, drops the body of a request that offers an upgrade, and answers what it cannot read ahead of
what it was asked before. All of that is decided here, before the application is called:

    the head   in time and within MAX_HEAD_BYTES, or the connection is closed
    the body   in time (the application answers 408), or the connection is closed
    the answer taken by the client, or the connection is closed
    framing    what another server could read in another way is refused with 400
"""

import asyncio
import enum
import fcntl
import sys
import termios
from array import array
from collections import deque
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGISendEvent, HTTPResponseBodyEvent, HTTPResponseStartEvent
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from app.deadlines import DEADLINES, Deadlines

# The target, the names and the values; a read may bring some more before it is counted.
MAX_HEAD_BYTES = 65_536
# Requests of one connection that wait for their answers; each is an object of some kilobytes.
MAX_OPEN_REQUESTS = 16


class _Owed(enum.Enum):
    """What of a request is still to come."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class _RefusedHead(ValueError):
    """Raised inside the parser, which makes a 400 of it."""


def connections_within(deadlines: Deadlines) -> type["Connection"]:
    """Return the class of connections that keep to these deadlines."""
    return type("Connection", (Connection,), {"deadlines": deadlines})


class Connection(HttpToolsProtocol):
    """A client has its time for what it owes; while it waits for us, no clock runs."""

    deadlines: ClassVar[Deadlines] = DEADLINES

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = _Parser(self)
        # Two requests at once, of which the first ends the connection, are no reason to refuse the first.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # From the opening on a client owes a head.
        self._owed = _Owed.HEAD
        self._clocked = _Owed.NOTHING
        self._clock: asyncio.TimerHandle | None = None
        self._reader_clock: asyncio.TimerHandle | None = None
        # Requests with a whole head and without a whole answer.
        self._open_cycles: deque[RequestResponseCycle] = deque()
        # Bytes since anything came of them: a head that grows, or what stands between the pieces of a body.
        self._idle_bytes = 0
        self._is_broken = False

    # What the transport says.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._set_clock()

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            return
        if self._owed is _Owed.NOTHING:
            # Also of line breaks, which begin no message and yet stop uvicorn's clock for idle connections.
            self._owed = _Owed.HEAD
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES and not self._is_broken:
            self.send_400_response(f"The framing of a request may have {MAX_HEAD_BYTES} bytes.")
        self._set_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        for clock in (self._clock, self._reader_clock):
            if clock is not None:
                clock.cancel()
        # uvicorn leaves its clock running when the connection was reset, and tells the last request alone.
        self._unset_keepalive_if_required()
        for cycle in self._open_cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_clock is not None and not self.transport.is_closing():
            self._reader_clock.cancel()
            self._reader_clock = None

    # What the parser says.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._owed = _Owed.HEAD

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _RefusedHead
            return  # The parser brings the head once more, without its offer.
        self._check_head()
        if len(self._open_cycles) >= MAX_OPEN_REQUESTS:
            raise _RefusedHead
        self._open_cycle()
        # A trailer is no header (RFC 9110, 6.5): who looked at the head must have seen all of it.
        self.headers = []
        self._owed = _Owed.BODY
        self._idle_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._owed = _Owed.NOTHING
        self._idle_bytes = 0
        if self._clock is not None:
            # The next request has a time of its own, also when its first bytes are here already.
            self._set_clock()

    def head_without_upgrade(self) -> bytes:
        """Return the head that was read, as it reads to a server that knows no other protocol."""
        first = b"%s %s HTTP/%s" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    def _open_cycle(self) -> None:
        """Do as uvicorn does, with a cycle of ours; and go on reading, so that the client is seen to go."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        version = self.parser.get_http_version()
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = unquote(path) if "%" in path else path
        self.scope["raw_path"] = url.path
        self.scope["query_string"] = url.query or b""
        self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._open_cycles.append(self.cycle)
        if len(self._open_cycles) == 1:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.pipeline.appendleft((self.cycle, self.app))

    def _check_head(self) -> None:
        """Refuse what two servers in a row could read in two ways, and what is too much."""
        version = self.parser.get_http_version()
        names = [name for name, _ in self.headers]
        host_count = names.count(b"host")
        if version == "1.1":
            is_plain = host_count == 1
        else:
            # Of HTTP/1.0 no server knows chunks.
            is_plain = version == "1.0" and host_count < 2 and b"transfer-encoding" not in names
        if not is_plain or b"#" in self.url:
            raise _RefusedHead
        if b"transfer-encoding" in names:
            # A chain of codings has to be undone to be read.
            codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
            if codings != [b"chunked"]:
                raise _RefusedHead
        # Fewer bytes have come at all, nearly always.
        if self._idle_bytes > MAX_HEAD_BYTES:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                raise _RefusedHead

    # What uvicorn does.

    def on_response_complete(self) -> None:
        self._open_cycles.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        else:
            self._set_clock()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read, in its turn, and read no more."""
        self._is_broken = True
        is_body = self._owed is _Owed.BODY
        is_next = len(self._open_cycles) == (1 if is_body else 0)
        if is_next and not (is_body and self.cycle.response_started):
            super().send_400_response(msg)
            self._watch_reader()
        elif is_body:
            # Its own answer is on its way already, or has to come after others.
            self.transport.close()
            self._watch_reader()
        else:
            # What was asked before is answered; then the connection ends.
            self.cycle.keep_alive = False

    # The clocks.

    def _set_clock(self) -> None:
        """Run the clock of what is owed; none while the client has to wait for earlier answers."""
        waits = len(self._open_cycles) > (1 if self._owed is _Owed.BODY else 0)
        owed = _Owed.NOTHING if waits else self._owed
        if owed is self._clocked:
            return
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self._clocked = owed
        if owed is not _Owed.NOTHING:
            deadlines = self.deadlines
            seconds = deadlines.head_seconds
            if owed is _Owed.BODY:
                seconds = deadlines.body_seconds + deadlines.grace_seconds
            self._clock = self.loop.call_later(seconds, self.transport.abort)

    def _watch_reader(self) -> None:
        """Cut the connection when nothing of what lies ready is taken; a slow reader may go on."""
        if self._reader_clock is None:
            self._look_again(self._unread_bytes())

    def _unread_bytes(self) -> int:
        """Return what the client has not taken: here, and in the kernel, which lets megabytes in at once."""
        here_bytes = self.transport.get_write_buffer_size()
        descriptor = self.transport.get_extra_info("socket").fileno()
        try:
            answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        except OSError:
            # It is closed, or the system does not tell.
            return here_bytes
        return here_bytes + int.from_bytes(answer, sys.byteorder)

    def _look_again(self, unread_bytes: int) -> None:
        self._reader_clock = self.loop.call_later(
            self.deadlines.unread_seconds, self._check_reader, unread_bytes
        )

    def _check_reader(self, unread_bytes: int) -> None:
        left_bytes = self._unread_bytes()
        if left_bytes >= unread_bytes:
            self.transport.abort()
        else:
            self._look_again(left_bytes)


class Cycle(RequestResponseCycle):
    """One request and its answer, whose head and body go out together.

    uvicorn writes them one after the other: two system calls, two packets, and a client that wakes up twice.
    An answer in pieces, or of a length that its head does not tell, is left to it.
    """

    _start: HTTPResponseStartEvent | None = None

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if message["type"] == "http.response.body" and _is_whole(start, message):
                await self._send_whole(start, message["body"])
                return
            await super().send(start)
        await super().send(message)

    async def _send_whole(self, start: HTTPResponseStartEvent, body: bytes) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        parts = [STATUS_LINE[start["status"]]]
        for name, value in [*self.default_headers, *start["headers"]]:
            if name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
            else:
                parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self.scope["method"] != "HEAD":
            parts.append(body)
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"".join(parts))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _is_whole(start: HTTPResponseStartEvent, message: HTTPResponseBodyEvent) -> bool:
    """Tell whether an answer is all there, and none of its headers is more than one line."""
    return (
        not message.get("more_body", False)
        and (b"content-length", b"%d" % len(message["body"])) in start["headers"]
        and HEADER_VALUE_RE.search(b"".join([value for _, value in start["headers"]])) is None
    )


class _Parser(httptools.HttpRequestParser):
    """Reads on after an offer to upgrade, which a server may pass over (RFC 9110, 7.8).

    httptools takes what follows for the other protocol; clients that offer h2c send a body there.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def feed_data(self, data: "bytes | bytearray | memoryview[int] | array[int]") -> None:
        rest = memoryview(data)
        while rest:
            try:
                super().feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                super().feed_data(self._connection.head_without_upgrade())
                rest = rest[offer.args[0] :]
