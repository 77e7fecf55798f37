"""Plain ASGI around the application: request ids, and the handler of last resort.

Plain, because Starlette's BaseHTTPMiddleware hides a client's disconnect from the routes.
"""

import logging
import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem_response

log = logging.getLogger("app.requests")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Gives every answer an X-Request-Id: the caller's when it is well-formed, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if has_started:
                raise
            response = problem_response(
                "internal_error",
                detail="The service failed; its log has this request id.",
                request_id=request_id,
            )
            await response(scope, receive, send_with_id)


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return None
