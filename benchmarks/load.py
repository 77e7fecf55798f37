"""A small keep-alive HTTP/1.1 client: one request at a time on each connection, bodies as bytes."""

import asyncio
import json
from typing import Any


class Connection:
    """One connection to a loopback server; ``call`` sends and waits for the whole answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024))

    async def call(
        self, path: str, body: bytes = b"", *, method: str = "POST", key: str | None = None
    ) -> tuple[int, bytes]:
        """Send a JSON body, with an idempotency key if need be; return status and answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if key is not None:
            head += f"Idempotency-Key: {key}\r\n"
        self._writer.write(f"{head}\r\n".encode() + body)
        answer_head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer_head[9:12])
        lowered = answer_head.lower()
        start = lowered.find(b"content-length: ")
        length = int(lowered[start + 16 : lowered.index(b"\r\n", start)]) if start >= 0 else 0
        return status, await self._reader.readexactly(length) if length else b""

    async def call_json(self, path: str, body: object, *, expect: int) -> Any:
        """POST a value and return the answer's value; any other status is an error."""
        status, answer = await self.call(path, json.dumps(body).encode())
        if status != expect:
            raise RuntimeError(f"POST {path} was answered {status}: {answer[:300]!r}")
        return json.loads(answer)

    def close(self) -> None:
        self._writer.close()
