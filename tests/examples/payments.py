"""A small payment service over HTTP that keeps idempotency keys, as the IETF draft of that header describes.

The first request with a key is done, and its answer kept. A repeat gets that answer; one that comes while the
first is still being done gets 409; one with another body 422. A request without a key is 400.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class _Known:
    body: bytes
    # None while it is still being done.
    answer: dict[str, Any] | None = None


@dataclass
class Payments:
    """The service behind the address. ``charges`` are the amounts that were really charged."""

    charges: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    # How many of the next requests are done and get no answer, or half of one; how many get 503 before.
    lost_answers: int = 0
    half_answers: int = 0
    outages: int = 0
    # Cleared by a test to have requests take until it is set again.
    may_finish: threading.Event = field(default_factory=threading.Event)
    has_conflict: threading.Event = field(default_factory=threading.Event)
    address: str = ""
    _known: dict[str, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, key: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        if key is None:
            return 400, {"error": "Idempotency-Key is missing"}
        with self._lock:
            if self.outages:
                self.outages -= 1
                return 503, {"error": "try again"}
            known = self._known.get(key)
            if known is not None:
                return self._repeat(known, body)
            mine = self._known[key] = _Known(body)
        self.may_finish.wait()
        with self._lock:
            self.charges.append(json.loads(body)["amount"])
            mine.answer = {"charge": len(self.charges)}
            return 201, mine.answer

    def _repeat(self, known: _Known, body: bytes) -> tuple[int, dict[str, Any]]:
        if known.body != body:
            return 422, {"error": "the key belongs to another request"}
        if known.answer is None:
            self.has_conflict.set()
            return 409, {"error": "the first request is still being worked on"}
        return 201, known.answer

    def passed_on(self, content: bytes) -> bytes:
        """Return what of an answer's content reaches the client; nothing: the connection ends before it."""
        with self._lock:
            if self.lost_answers:
                self.lost_answers -= 1
                return b""
            if self.half_answers:
                self.half_answers -= 1
                return content[: len(content) // 2]
            return content


@contextmanager
def payments() -> Iterator[Payments]:
    """Serve on a free port of loopback."""
    service = Payments()
    service.may_finish.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = service.respond(self.headers["Idempotency-Key"], body)
            service.statuses.append(status)
            content = json.dumps(answer).encode()
            passed_on = service.passed_on(content)
            if not passed_on:
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(passed_on)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is given
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}/charges"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            service.may_finish.set()
            server.shutdown()
            thread.join()
