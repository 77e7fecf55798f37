"""Is the process up (livez), can it serve (readyz), and what do the problem addresses mean."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.api import answers
from app.api.callers import ANY_KEY, NO_KEY
from app.api.problems import PROBLEMS, problem_response
from app.api.routing import Endpoint, Query, Routes, answer
from app.api.service import Service
from app.domain.errors import FencepostError, Misconfigured, Unavailable

CHECK_SECONDS = 2.0

routes = Routes()


@routes.without_body(
    Endpoint("GET", "/livez", "get_liveness", "Is the process up", (200, answers.LiveView), scopes=NO_KEY)
)
async def get_liveness(_request: Request, _service: Service, _query: Query) -> Response:
    return answer(answers.LiveView(alive=True))


@routes.without_body(
    Endpoint(
        "GET",
        "/readyz",
        "get_readiness",
        "Can it serve",
        (200, answers.ReadyView),
        ("unavailable",),
        scopes=NO_KEY,
    )
)
async def get_readiness(request: Request, service: Service, _query: Query) -> Response:
    loops = {loop.name: answers.LoopView(loop.is_alive, loop.last_success_at) for loop in service.loops}
    failing = [f"loop {name}" for name, loop in loops.items() if not loop.ok]
    if service.polls.is_draining:
        failing.append("draining")
    failing += await _failing_database(service)
    if not failing:
        return answer(answers.ReadyView(ready=True, failing=[], loops=loops))
    return problem_response(
        "unavailable",
        detail="Not ready: " + ", ".join(failing) + ".",
        request_id=request.state.request_id,
        members=msgspec.to_builtins(answers.ReadyView(ready=False, failing=failing, loops=loops)),
    )


async def _failing_database(service: Service) -> list[str]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            version = await service.read_version.submit(None)
    except (Unavailable, TimeoutError):
        return ["database"]
    except Misconfigured:
        return ["schema"]
    return [] if version == service.schema_version else [f"schema version {version}"]


@routes.without_body(
    Endpoint(
        "GET",
        "/problems/{code}",
        "get_problem",
        "What a problem's type means",
        (200, answers.ProblemMeaningView),
        ("not_found",),
        scopes=ANY_KEY,
    )
)
async def get_problem(request: Request, _service: Service, _query: Query) -> Response:
    code = request.path_params["code"]
    if code not in PROBLEMS:
        raise UnknownProblem("There is no problem of this name.")
    problem = PROBLEMS[code]
    return answer(answers.ProblemMeaningView(code, problem.status, problem.title, problem.meaning))


class UnknownProblem(FencepostError):
    code = "not_found"
