"""HTTP calls over a socket of their own, which can be cut at any moment."""

import asyncio
import json
from typing import Any, Self
from urllib.parse import urlsplit


class RawCall:
    """One POST whose answer is read when the test wants it, or never."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def post(cls, url: str, path: str, body: dict[str, Any]) -> Self:
        """Send the whole request."""
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        return cls(reader, writer)

    @classmethod
    async def lease(cls, url: str, **members: Any) -> Self:
        """Send a lease call."""
        return await cls.post(url, "/v1/leases", {"worker_id": "raw", "queues": ["default"], **members})

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body. Raises IncompleteReadError when the answer is not whole."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(head[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        content = await self._reader.readexactly(int(headers.get("content-length", "0")))
        self.cut()
        return status, headers, json.loads(content)

    def cut(self) -> None:
        """Close the connection at once, answered or not."""
        self._writer.transport.abort()
