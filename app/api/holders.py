"""What a holder says, one job or many at once. Every call shows lease_version, the fencing token."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from app.api import answers, requests, schemas
from app.api.links import to_job
from app.api.parameters import job_id_of, trace_headers_of
from app.api.routing import Endpoint, Routes, answer, body
from app.api.service import Service
from app.api.views import job_view, refused_item_view, renewed_lease_view, settled_item_views
from app.domain.caller import Scope
from app.domain.calls import RenewedLease
from app.domain.errors import FencepostError
from app.domain.job import Token
from app.operations.heartbeat import heartbeat_leases
from app.operations.patience import answer_all
from app.operations.settle import Settled, complete_leases, end_leases

routes = Routes()

_SCOPES = {Scope.WORK}
_HOLDER_ERRORS = ("job_not_found", "lease_lost", "unavailable")
_REPLAYED = {"Idempotent-Replayed": "true"}
_TOKEN = {"job_id": "0193a3f0-5c00-7000-8000-000000000000", "lease_version": 1}


def _holder_call(verb: str, summary: str, example: dict[str, object], view: type) -> Endpoint:
    is_settling = view is answers.JobView
    return Endpoint(
        "POST",
        f"/v1/jobs/{{job_id}}/{verb}",
        f"{verb}_job",
        summary,
        (200, view),
        _HOLDER_ERRORS,
        scopes=_SCOPES,
        takes_trace=verb == "complete",
        example={"lease_version": 1} | example,
        headers=("Idempotent-Replayed",) if is_settling else (),
        links=to_job("get_job", "list_attempts", "redrive_job") if is_settling else (),
    )


def _many_call(verb: str, summary: str, example: dict[str, object]) -> Endpoint:
    return Endpoint(
        "POST",
        f"/v1/leases/{verb}",
        f"{verb}_leases",
        summary,
        (200, answers.ManyView),
        ("unavailable",),
        scopes=_SCOPES,
        takes_trace=verb == "complete",
        example={"items": [_TOKEN | example]},
    )


@routes.with_body(
    _holder_call(
        "heartbeat", "Extend a lease, report progress", {"progress": {"seq": 3}}, answers.RenewedLeaseView
    ),
    body(schemas.HeartbeatRequest),
)
async def heartbeat(request: Request, service: Service, asked: schemas.HeartbeatRequest) -> Response:
    beat = requests.heartbeat(job_id_of(request), asked, service.limits)
    return answer(renewed_lease_view(await service.heartbeat.submit(beat)))


@routes.with_body(
    _holder_call("complete", "Record success", {"result": {"sent": True}}, answers.JobView),
    body(schemas.CompleteRequest),
)
async def complete(request: Request, service: Service, asked: schemas.CompleteRequest) -> Response:
    completing = requests.completing(
        job_id_of(request), asked, service.limits, trace=trace_headers_of(request)
    )
    return _settled_answer(await service.complete.submit(completing))


@routes.with_body(
    _holder_call(
        "fail", "Report a failure", {"error": {"type": "Timeout", "message": "no answer"}}, answers.JobView
    ),
    body(schemas.FailRequest, is_report=True),
)
async def fail(request: Request, service: Service, asked: schemas.FailRequest) -> Response:
    return _settled_answer(
        await service.end.submit(requests.failing(job_id_of(request), asked, service.limits))
    )


@routes.with_body(
    _holder_call("release", "Give a job back, its attempt too", {"delay_seconds": 5}, answers.JobView),
    body(schemas.ReleaseRequest),
)
async def release(request: Request, service: Service, asked: schemas.ReleaseRequest) -> Response:
    return _settled_answer(await service.end.submit(requests.releasing(job_id_of(request), asked)))


def _settled_answer(settled: Settled) -> Response:
    if settled.job is None:
        raise ValueError("the job was not read")
    return answer(job_view(settled.job), headers=_REPLAYED if settled.is_replay else None)


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/jobs/{job_id}/verify",
        "verify_job",
        "Ask whether a lease is held",
        (204, None),
        _HOLDER_ERRORS,
        scopes=_SCOPES,
        example={"lease_version": 1},
    ),
    body(schemas.TokenRequest),
)
async def verify(request: Request, service: Service, asked: schemas.TokenRequest) -> Response:
    await service.verify.submit(Token(job_id_of(request), asked.lease_version))
    return Response(status_code=204)


@routes.with_body(
    _many_call("heartbeat", "Extend many leases", {}),
    body(schemas.HeartbeatManyRequest, list_member="items"),
)
async def heartbeat_many(
    _request: Request, service: Service, asked: schemas.HeartbeatManyRequest
) -> Response:
    limits = service.limits
    requests.check_item_count(len(asked.items), limits, pointer="/items")
    beats = [
        requests.heartbeat(item.job_id, item, limits, pointer=f"/items/{index}")
        for index, item in enumerate(asked.items)
    ]
    given = await answer_all(partial(heartbeat_leases, service.context), beats)
    results = [_renewed_item(beat.token, one) for beat, one in zip(beats, given, strict=True)]
    return answer(answers.ManyView(results))


@routes.with_body(
    _many_call("complete", "Record many successes", {"result": None}),
    body(schemas.CompleteManyRequest, list_member="items"),
)
async def complete_many(request: Request, service: Service, asked: schemas.CompleteManyRequest) -> Response:
    items = requests.completing_many(
        asked.items, service.limits, pointer="/items", trace=trace_headers_of(request)
    )
    given = await answer_all(partial(complete_leases, service.context, with_jobs=False), items)
    return _settled_many([item.token for item in items], given)


@routes.with_body(
    _many_call("fail", "Report many failures", {"error": {"message": "no answer"}}),
    body(schemas.FailManyRequest, list_member="items", is_report=True),
)
async def fail_many(_request: Request, service: Service, asked: schemas.FailManyRequest) -> Response:
    requests.check_item_count(len(asked.items), service.limits, pointer="/items")
    items = [requests.failing(item.job_id, item, service.limits) for item in asked.items]
    given = await answer_all(partial(end_leases, service.context, with_jobs=False), items)
    return _settled_many([item.token for item in items], given)


@routes.with_body(
    _many_call("release", "Give many jobs back", {}),
    body(schemas.ReleaseManyRequest, list_member="items"),
)
async def release_many(_request: Request, service: Service, asked: schemas.ReleaseManyRequest) -> Response:
    requests.check_item_count(len(asked.items), service.limits, pointer="/items")
    items = [requests.releasing(item.job_id, item) for item in asked.items]
    given = await answer_all(partial(end_leases, service.context, with_jobs=False), items)
    return _settled_many([item.token for item in items], given)


def _renewed_item(token: Token, given: RenewedLease | FencepostError) -> answers.ItemView:
    if isinstance(given, FencepostError):
        return refused_item_view(token, given)
    return answers.ItemView(
        job_id=token.job_id,
        status="ok",
        lease_expires_at=given.lease_expires_at,
        deadline_at=given.deadline_at,
        cancel_requested=given.cancel_requested,
    )


def _settled_many(tokens: Sequence[Token], given: Sequence[Settled | FencepostError]) -> Response:
    return answer(answers.ManyView(settled_item_views(tokens, given)))
