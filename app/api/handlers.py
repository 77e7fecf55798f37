"""Turns what is raised on the way into problems."""

import logging
import time

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from app.api.problems import failure_response, problem_response, refusal_members
from app.domain.errors import FencepostError, Misconfigured, Unavailable

log = logging.getLogger("app.requests")

_BY_STATUS = {404: "not_found", 405: "method_not_allowed"}
_NO_ROUTE = "There is no such route; /docs and /openapi.json show all."


class _Trouble:
    """Warns of what thousands may run into at once; some of each second are told, the rest counted."""

    EACH_COUNT = 20

    def __init__(self) -> None:
        self._told_at = float("-inf")
        self._told_count = 0
        self._untold_count = 0

    def tell(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._told_at >= 1:
            self._told_count = 0
        if self._told_count >= self.EACH_COUNT:
            self._untold_count += 1
            return
        self._told_count += 1
        self._told_at = now
        if self._untold_count:
            log.warning("%d more requests ran into the same", self._untold_count)
            self._untold_count = 0
        log.warning(message, *values)


_trouble = _Trouble()


class UnknownRoute(FencepostError):
    code = "not_found"

    def __init__(self) -> None:
        super().__init__(_NO_ROUTE)


def refusal_response(request: Request, error: FencepostError) -> Response:
    """Return the answer for a refusal of a route of ours; what is no fault of the caller's is logged."""
    if isinstance(error, (Unavailable, Misconfigured)):
        _trouble.tell(
            "request %s: %s %s: %s (%s)",
            request.state.request_id,
            request.method,
            request.url.path,
            error,
            _cause(error),
        )
    response = problem_response(
        error.code,
        detail=error.detail,
        request_id=request.state.request_id,
        members=refusal_members(error),
    )
    if error.code in ("too_large", "request_timeout"):
        # The rest of the body may still be on its way.
        response.headers["Connection"] = "close"
    return response


def _cause(error: BaseException) -> str:
    """Name what the database said, without its text: that may quote a statement or a value."""
    cause = error.__cause__
    original = getattr(cause, "orig", None) or cause
    sqlstate = getattr(original, "sqlstate", None)
    return " ".join(filter(None, [type(original).__name__, sqlstate]))


def install(app: FastAPI) -> None:
    """Give FastAPI the answers for what has no route of ours."""
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(Exception, _fail)


async def _refuse_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _BY_STATUS.get(error.status_code, "invalid_request")
    detail = str(error.detail)
    headers = dict(error.headers or {})
    if code == "not_found":
        detail = _NO_ROUTE
    elif code == "method_not_allowed":
        headers["Allow"] = _allowed_methods(request)
        detail = f"This route takes {headers['Allow']}."
    return problem_response(code, detail=detail, request_id=request.state.request_id, headers=headers)


def _allowed_methods(request: Request) -> str:
    """Name every method of a path; Starlette looks at the first of its routes alone."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


async def _fail(request: Request, _error: Exception) -> Response:
    return failure_response(request.state.request_id)
