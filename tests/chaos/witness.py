"""A reverse proxy that writes the history of a client which writes none: a program in any language.

It stands between one program and the replicas. Each POST is written down when it has been read, before it
is passed on, and its answer before that is passed back: what the service is judged by lies within what the
client saw. Reads go through unwritten; no rule judges them. When either side closes, so does the other.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import httpx

from tests.chaos.history import Answered, Asked, Log, Unanswered, now

_MOST_HEAD_BYTES = 64 * 1024
_TIMEOUT_SECONDS = 90.0
_PASSED_ON = frozenset(
    {"accept", "authorization", "content-type", "idempotency-key", "traceparent", "tracestate"}
)
_PASSED_BACK = frozenset({"content-type", "idempotent-replayed", "location", "retry-after", "x-request-id"})


class Witness:
    """Listens on ``url`` for the program called ``name``; ``replicas`` are addresses by name."""

    def __init__(self, name: str, *, replicas: Mapping[str, str], part: Path) -> None:
        self.name = name
        self.url = ""
        self._replicas = list(replicas.items())
        self._log = Log(part)
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._count = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MOST_HEAD_BYTES)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening, and break what is under way."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._http.aclose()
        self._log.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (request := await _read_request(reader)) is not None:
                answer = await self._pass_on(request, reader)
                if answer is None:
                    break
                _write_answer(writer, answer)
                await writer.drain()
        except (OSError, EOFError):
            pass  # The program was killed, or has closed its end in the middle of a request.
        finally:
            self._serving.discard(task)
            writer.close()

    async def _pass_on(self, request: httpx.Request, reader: asyncio.StreamReader) -> httpx.Response | None:
        """Return the service's answer, or None when a side has closed."""
        replica, url = self._replicas[self._turn % len(self._replicas)]
        self._count += 1
        call = f"{self.name}-{self._count}"
        is_written = request.method == "POST"
        if is_written:
            body = json.loads(request.content) if request.content else {}
            key = request.headers.get("idempotency-key")
            path = request.url.path
            self._log.write(Asked(now(), call, self.name, replica, request.method, path, body, key))
        try:
            answer = await self._ask(httpx.URL(url).join(request.url.raw_path.decode()), request, reader)
        except (httpx.TransportError, ConnectionResetError) as error:
            if is_written:
                self._log.write(Unanswered(now(), call, type(error).__name__))
            self._turn += 1
            return None
        if is_written:
            self._log.write(
                Answered(
                    now(),
                    call,
                    answer.status_code,
                    answer.json() if answer.content else None,
                    answer.headers.get("idempotent-replayed") == "true",
                    answer.headers.get("retry-after"),
                )
            )
        return answer

    async def _ask(
        self, url: httpx.URL, request: httpx.Request, reader: asyncio.StreamReader
    ) -> httpx.Response:
        """Raises httpx.TransportError, and ConnectionResetError when the program does not wait any longer."""
        asking = asyncio.create_task(
            self._http.request(request.method, url, content=request.content, headers=request.headers)
        )
        # No client here sends a second request before it has the answer to the first.
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionResetError("the program has gone")
            return await asking
        finally:
            for task in (asking, leaving):
                task.cancel()
            await asyncio.gather(asking, leaving, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> httpx.Request | None:
    """Return the next request; None when the program has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields if field)
    }
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    kept = {name: value for name, value in headers.items() if name in _PASSED_ON}
    return httpx.Request(method, f"http://service{target}", content=content, headers=kept)


def _write_answer(writer: asyncio.StreamWriter, answer: httpx.Response) -> None:
    lines = [f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items() if name in _PASSED_BACK]
    if answer.status_code != httpx.codes.NO_CONTENT:
        lines.append(f"content-length: {len(answer.content)}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.content)
