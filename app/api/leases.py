"""Work: lease jobs, and read what a worker holds."""

from functools import partial

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from app.api import answers, requests, schemas
from app.api.links import Link, to_holder, to_job
from app.api.openapi import schema_of
from app.api.parameters import name_of, refused, trace_headers_of
from app.api.routing import Endpoint, Query, Routes, answer, body, gone, within_bounds
from app.api.service import Service
from app.api.views import held_lease_view, leased_jobs_view, settled_item_views
from app.domain.caller import Scope
from app.operations.patience import answer_all
from app.operations.retries import retried
from app.store.reads import read_leases

routes = Routes()


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/leases",
        "lease_jobs",
        "Lease ready jobs, or wait for some",
        (200, answers.LeasedJobsView),
        ("unavailable",),
        scopes={Scope.WORK},
        example={"worker_id": "w1", "queues": ["mail"], "wait_seconds": 20, "lease_seconds": 30},
        takes_trace=True,
        waits=True,
        headers=("Retry-After",),
        links=(
            *to_holder(id_at="/jobs/0/id", version_at="/jobs/0/lease_version"),
            *to_job("get_job", "cancel_job", at="/jobs/0/id"),
            Link("list_leases", {"worker_id": "$request.body#/worker_id"}),
        ),
    ),
    body(schemas.LeaseJobsRequest, list_member="complete"),
)
async def lease_jobs(request: Request, service: Service, asked: schemas.LeaseJobsRequest) -> Response:
    return await within_bounds(_lease(request, service, asked), wait_seconds=asked.wait_seconds)


async def _lease(request: Request, service: Service, asked: schemas.LeaseJobsRequest) -> Response:
    completings = requests.completing_many(
        asked.complete or [], service.limits, pointer="/complete", trace=trace_headers_of(request)
    )
    wish = requests.wish(asked, completings)
    completed: list[answers.ItemView] | UnsetType = UNSET
    if asked.complete is not None:
        # A request_id that was used with another body is refused before anything is changed.
        await service.polls.check(wish)
        given = await answer_all(service.complete_calls.submit, completings) if completings else []
        completed = settled_item_views([item.token for item in completings], given)
    jobs = await service.polls.lease(
        wish, wait_seconds=asked.wait_seconds, disconnected=partial(gone, request)
    )
    # A client that is told nothing because this process shuts down comes back to another one.
    headers = {"Retry-After": "1"} if service.polls.is_draining and not jobs else None
    return answer(
        leased_jobs_view(jobs, server_time=service.clock.now(), completed=completed), headers=headers
    )


@routes.without_body(
    Endpoint(
        "GET",
        "/v1/leases",
        "list_leases",
        "Read what a worker holds",
        (200, answers.HeldLeasesView),
        ("unavailable",),
        scopes={Scope.WORK, Scope.OPERATE},
        query={"worker_id": schema_of(schemas.Name) | {"required": True}},
        links=to_holder(id_at="/leases/0/job_id", version_at="/leases/0/lease_version"),
    )
)
@retried
async def list_leases(_request: Request, service: Service, query: Query) -> Response:
    worker_id = name_of(query, "worker_id")
    if worker_id is None:
        raise refused("worker_id", "is required")
    async with service.context.database.one_statement() as conn:
        leases = await read_leases(conn, worker_id)
    return answer(answers.HeldLeasesView([held_lease_view(lease) for lease in leases]))
