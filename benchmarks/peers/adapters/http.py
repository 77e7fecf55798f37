"""A keep-alive HTTP/1.1 client on a bare protocol, so that the client is little of what is measured."""

import asyncio
from typing import cast
from urllib.parse import urlsplit


class CallRefused(Exception):
    """The service gave another status than the call must get, or hung up."""


class Connection(asyncio.Protocol):
    """One connection; one call at a time on it."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._missing = 0
        self._waiter: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect to the host and port of url."""
        address, loop = urlsplit(url), asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.hostname or "", address.port or 80)
        return connection

    async def post(self, path: str, body: bytes, *, expect: int) -> bytes:
        """Send a JSON body and return the body of the answer; raises CallRefused for any other status."""
        if self._transport is None or self._waiter is not None:
            raise RuntimeError("the connection is closed, or another call is under way on it")
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._waiter
        head_end = answer.index(b"\r\n\r\n") + 4
        if int(answer[9:12]) != expect:
            raise CallRefused(f"POST {path}: {answer[:300]!r}")
        return answer[head_end:]

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports fit the interface and are none of its instances.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        # An answer of a thousand jobs comes in many pieces; its head is looked for once.
        if self._missing == 0:
            self._missing = _whole_length(self._received)
        if self._missing and len(self._received) >= self._missing and self._waiter is not None:
            answer, waiter = bytes(self._received), self._waiter
            self._received.clear()
            self._missing, self._waiter = 0, None
            if not waiter.cancelled():
                waiter.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(CallRefused(f"the connection was closed: {error!r}"))


def _whole_length(received: bytearray) -> int:
    """Return the length of head and body together, 0 while the head is not complete."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return 0
    head = bytes(received[:head_end]).lower()
    start = head.index(b"content-length:") + 15
    line_end = head.find(b"\r\n", start)
    return head_end + 4 + int(head[start : line_end if line_end >= 0 else None])
