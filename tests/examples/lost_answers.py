"""A proxy in front of the service that does what it is asked to, and then loses the answer."""

import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit


class LostAnswers:
    """Passes calls on; the first answer of each kind that matters is lost: a grant, a heartbeat, an end.

    ``calls`` are the bodies that arrived, by the last part of their paths. ``instead`` of the lost answers
    another one may be given: a status, and when to come again.
    """

    def __init__(self, url: str, *, instead: tuple[int, str] | None = None) -> None:
        self._instead = instead
        self.calls: dict[str, list[bytes]] = {}
        self._service = urlsplit(url).netloc
        self._lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _is_lost(self, verb: str, body: bytes, answer: bytes) -> bool:
        with self._lock:
            known = self.calls.setdefault(verb, [])
            if verb == "leases" and not json.loads(answer)["jobs"]:
                return False
            known.append(body)
            return len(known) == 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service = http.client.HTTPConnection(proxy._service, timeout=60)
                service.request("POST", self.path, body, {"Content-Type": "application/json"})
                response = service.getresponse()
                answer = response.read()
                service.close()
                self.close_connection = True
                if not proxy._is_lost(self.path.rpartition("/")[2], body, answer):
                    self._answer(response.status, answer)
                elif proxy._instead is not None:
                    status, retry_after = proxy._instead
                    self._answer(status, b"", ("Retry-After", retry_after))

            def _answer(self, status: int, content: bytes, *headers: tuple[str, str]) -> None:
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", str(len(content))), ("Connection", "close")):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing on standard error."""

        return Handler
