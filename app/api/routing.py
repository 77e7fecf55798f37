"""One declaration a route: what is checked before its handler runs, and what the OpenAPI document says."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import bodies, openapi
from app.api.callers import require_scope
from app.api.handlers import UnknownRoute, refusal_response
from app.api.links import Link
from app.api.parameters import read_query, refuse_idempotency_key
from app.api.service import Service
from app.api.time_limits import TimeLimit
from app.domain.caller import Scopes
from app.domain.errors import FencepostError, Unavailable

B = TypeVar("B", bound=msgspec.Struct)

Query = Mapping[str, str]
Handler = Callable[[Request, Service, Query], Awaitable[Response]]
BodyHandler = Callable[[Request, Service, B], Awaitable[Response]]

# "503 within 5 s": what has no answer by then has none soon.
ANSWER_SECONDS = 4.8
# The client has gone; the status is never seen.
_CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route.

    ``success`` is (status, view or None for no body). An API key with any one of ``scopes`` will do; None
    opens the route to reads without a key. ``errors`` are codes of api.problems, ``headers`` names of
    api.openapi.HEADERS that a success may carry, ``links`` the calls that a success leads to.
    """

    method: str
    path: str
    operation_id: str
    summary: str
    success: tuple[int, type | None]
    scopes: Scopes | None = field(kw_only=True)
    errors: Sequence[str] = ()
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    takes_idempotency_key: bool = False
    takes_trace: bool = False
    waits: bool = False
    example: Any = None
    more_successes: Mapping[int, str] = field(default_factory=dict)
    headers: Sequence[str] = ()
    links: Sequence[Link] = ()


@dataclass(frozen=True, slots=True)
class Body(Generic[B]):
    """How a route reads its body. ``list_member`` is set where the body is one list of many items."""

    struct: type[B]
    decoder: msgspec.json.Decoder[B]
    list_member: str | None = None
    is_report: bool = False

    async def read(self, request: Request, service: Service) -> B:
        """Return the struct of a request's body. Raises what ``bodies`` raises."""
        limits = service.limits
        is_list = self.list_member is not None
        text = await bodies.read_body(
            request,
            max_bytes=limits.max_batch_body_bytes if is_list else limits.max_body_bytes,
            seconds=limits.body_seconds,
        )
        if self.is_report:
            return bodies.decode_report(text, self.decoder)
        if self.list_member is not None:
            return bodies.decode_list(text, self.decoder, member=self.list_member)
        return bodies.decode(text, self.decoder)


def body(struct: type[B], *, list_member: str | None = None, is_report: bool = False) -> Body[B]:
    return Body(struct, msgspec.json.Decoder(struct), list_member, is_report)


class _JobIdConvertor(StringConvertor):
    """Any step of a path but the one that is a route of its own: PATCH /v1/jobs/batch is 405, not a job."""

    regex = "(?!batch$)[^/]+"


register_url_convertor("job_id", _JobIdConvertor())


class Routes:
    """Collects the routes of one module.

    ``apps`` are what answers, by method and path; ``install`` makes the routes known to FastAPI.
    """

    def __init__(self) -> None:
        self._router = APIRouter()
        self.endpoints: list[Endpoint] = []
        self.apps: list[tuple[str, str, ASGIApp]] = []

    def without_body(self, endpoint: Endpoint) -> Callable[[Handler], Handler]:
        """Declare a route without a body."""

        def declare(handler: Handler) -> Handler:
            async def handle(request: Request) -> Response:
                service: Service = request.app.state.service
                query = _check(request, endpoint)
                return await _bounded(endpoint, handler(request, service, query))

            self._add(endpoint, handle, body_type=None)
            return handler

        return declare

    def with_body(self, endpoint: Endpoint, reader: Body[B]) -> Callable[[BodyHandler[B]], BodyHandler[B]]:
        """Declare a route with a body."""

        def declare(handler: BodyHandler[B]) -> BodyHandler[B]:
            async def handle(request: Request) -> Response:
                service: Service = request.app.state.service
                _check(request, endpoint)
                # A large body on a slow line has a time of its own; the answer's begins after it.
                asked = await reader.read(request, service)
                return await _bounded(endpoint, handler(request, service, asked))

            self._add(endpoint, handle, body_type=reader.struct)
            return handler

        return declare

    def install(self, app: FastAPI) -> None:
        # Side by side in one list: a refused method is answered from it (see handlers).
        app.router.routes.extend(self._router.routes)

    def _add(
        self, endpoint: Endpoint, handle: Callable[[Request], Awaitable[Response]], *, body_type: type | None
    ) -> None:
        self.endpoints.append(endpoint)
        # Probes and load balancers ask with HEAD; the server leaves the body out.
        methods = ["GET", "HEAD"] if endpoint.method == "GET" else [endpoint.method]
        self.apps += ((method, endpoint.path, _app(handle)) for method in methods)
        path = endpoint.path.replace("{job_id}", "{job_id:job_id}")
        self._router.add_api_route(
            path,
            handle,
            methods=[endpoint.method],
            operation_id=endpoint.operation_id,
            summary=endpoint.summary,
            status_code=endpoint.success[0],
            response_class=Response,
            responses=openapi.responses(
                endpoint.success,
                endpoint.errors,
                more=endpoint.more_successes,
                headers=endpoint.headers,
                body=body_type is not None,
                needs_key=endpoint.scopes is not None,
                leads_to=endpoint.links,
            ),
            openapi_extra=openapi.extra(
                path=endpoint.path,
                scopes=endpoint.scopes,
                query=endpoint.query,
                body_type=body_type,
                takes_idempotency_key=endpoint.takes_idempotency_key,
                takes_trace=endpoint.takes_trace,
                example=endpoint.example,
            ),
        )
        if endpoint.method == "GET":
            self._router.add_api_route(
                path, handle, methods=["HEAD"], response_class=Response, include_in_schema=False
            )


def _app(handle: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return a handler as an ASGI application, its refusals answered."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except FencepostError as refusal:
            response = refusal_response(request, refusal)
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_CLOSED_REQUEST)
        await response(scope, receive, send)

    return call


def _check(request: Request, endpoint: Endpoint) -> Query:
    # Once decoded it would part the path like any other slash; before that, it reads as part of a name.
    if b"%2f" in request.scope["raw_path"].lower():
        raise UnknownRoute
    if endpoint.scopes is not None:
        require_scope(request, endpoint.scopes)
    query = read_query(request, allowed=endpoint.query)
    if endpoint.path.startswith("/v1/") and not endpoint.takes_idempotency_key:
        refuse_idempotency_key(request)
    return query


async def _bounded(endpoint: Endpoint, answer: Awaitable[Response]) -> Response:
    return await (answer if endpoint.waits else within_bounds(answer))


async def within_bounds(answer: Awaitable[Response], *, wait_seconds: float = 0.0) -> Response:
    """Return the answer, or raise Unavailable when it has not come ANSWER_SECONDS after the wait."""
    try:
        with TimeLimit(wait_seconds + ANSWER_SECONDS):
            return await answer
    except TimeoutError as error:
        raise Unavailable(
            "The database gave no answer in time; whether the call was done is unknown."
        ) from error


async def gone(request: Request) -> None:
    """Return when the client has gone; what is left of the request's body is passed over."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


_encode = msgspec.json.Encoder().encode


class _JsonAnswer(Response):
    """A response whose headers are written as they go out, and not asked for one by one."""

    def __init__(self, body: bytes, *, status: int, headers: Mapping[str, str]) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ]


_NO_HEADERS: Mapping[str, str] = {}


def answer(view: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a view as JSON."""
    return _JsonAnswer(_encode(view), status=status, headers=headers or _NO_HEADERS)
