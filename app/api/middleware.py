"""Plain ASGI around the application: request ids, the handler of last resort, API keys.

Plain, because Starlette's BaseHTTPMiddleware hides a client's disconnect from the routes.
"""

import itertools
import logging
import os
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.callers import Keyring
from app.api.problems import failure_response, problem_response

log = logging.getLogger("app.requests")

_OPEN_METHODS = ("GET", "HEAD")
# One text, whatever was wrong: the difference is of use only to somebody who guesses.
_UNAUTHORIZED = (
    "This needs an API key: Authorization: Bearer <key>. The one shown is missing, malformed or not known."
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Gives every answer an X-Request-Id: the caller's when it is well-formed, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # No two processes have the same first half.
        self._process = os.urandom(8).hex()
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or self._new_id()
        header = (b"x-request-id", request_id.encode())
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if has_started:
                raise
            response = failure_response(request_id)
            await response(scope, receive, send_with_id)

    def _new_id(self) -> str:
        return f"{self._process}{next(self._numbers):016x}"


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return None


class Authentication:
    """Answers 401 to whoever shows no known API key, before a route is looked for or a body read.

    Closed is what nobody has opened, FastAPI's own pages, unknown paths and refused methods included:
    ``open_paths`` alone can be read without a key.
    """

    def __init__(self, app: ASGIApp, *, keyring: Keyring, open_paths: Iterable[str]) -> None:
        self._app = app
        self._keyring = keyring
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        caller = self._keyring.caller_of(shown[0]) if len(shown) == 1 else None
        if caller is not None:
            scope["state"]["caller"] = caller
            await self._app(scope, receive, send)
            return
        response = problem_response(
            "unauthorized",
            detail=_UNAUTHORIZED,
            request_id=scope["state"]["request_id"],
            headers={"WWW-Authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["path"] in self._open_paths and scope["method"] in _OPEN_METHODS
