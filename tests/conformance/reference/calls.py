"""HTTP calls of the reference client, by the standard library alone."""

import http.client
import json
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class NoAnswer(Exception):
    """The call may or may not have been done."""


@dataclass(frozen=True)
class Reply:
    """An answer of the service."""

    status: int
    body: Any
    retry_after: float

    @property
    def is_weather(self) -> bool:
        """Whether the same call may be answered otherwise a little later."""
        return self.status >= 500 or self.status in (401, 403, 408, 429)


class Caller:
    """Sends calls, each on a connection of its own."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=timeout)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float = 15,
        idempotency_key: str | None = None,
        on: http.client.HTTPConnection | None = None,
        with_key: bool = True,
    ) -> Reply:
        """Return the answer; raise NoAnswer without one."""
        connection = on or self.connection(timeout)
        headers = dict(self._headers) if with_key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException, AttributeError) as error:
            # AttributeError: another thread has closed the connection of this call.
            raise NoAnswer(str(error)) from error
        finally:
            connection.close()
        return Reply(
            answer.status, json.loads(raw) if raw else None, float(answer.headers.get("Retry-After", 0))
        )


def hang_up(connection: http.client.HTTPConnection) -> None:
    """Close a connection on which another thread waits for an answer."""
    if isinstance(connection.sock, socket.socket):
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def pauses() -> Iterator[float]:
    """Yield the pauses between tries: doubled from 0.1 to 10 seconds, each drawn from its upper half."""
    longest = 0.1
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(10.0, longest * 2)


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()
