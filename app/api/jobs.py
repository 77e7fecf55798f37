"""Produce and operate: /v1/jobs."""

import time
from functools import partial
from typing import Any
from urllib.parse import urlencode

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from app.api import answers, requests, schemas
from app.api.callers import ANY_KEY, caller_of
from app.api.cursors import read_cursor, write_cursor
from app.api.links import JOB_OPERATIONS, to_job, to_lease, to_next_page
from app.api.openapi import schema_of
from app.api.parameters import (
    idempotency_key_of,
    in_calendar,
    instant_of,
    is_job_id,
    job_id_of,
    name_of,
    refused,
    seconds,
    trace_headers_of,
    whole_number,
)
from app.api.routing import Endpoint, Query, Routes, answer, body, gone, within_bounds
from app.api.service import Service
from app.api.views import ALL, attempt_view, job_view
from app.domain.caller import Scope
from app.domain.calls import Edit, JobFilter
from app.domain.job import Job, JobState
from app.operations.manage import cancel_job, edit_job, redrive_job
from app.operations.retries import retried
from app.operations.submit import submit_batch
from app.store.listings import list_job_ids
from app.store.reads import read_attempts, read_jobs

MAX_WAIT_SECONDS = 30.0
DEFAULT_PAGE, MAX_PAGE = 50, 200

routes = Routes()

_PAGE_QUERY: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE},
    "cursor": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "description": "next_cursor of a page"},
}
_CHANGE = {Scope.PRODUCE, Scope.OPERATE}
_SEEN_ERRORS = ("job_not_found", "unavailable")
_EXAMPLE_JOB = {"kind": "email.send", "queue": "mail", "payload": {"to": "a@example.com"}}


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/jobs",
        "submit_job",
        "Create a job",
        (201, answers.JobView),
        ("lease_lost", "idempotency_key_reused", "unavailable"),
        scopes={Scope.PRODUCE},
        takes_idempotency_key=True,
        takes_trace=True,
        headers=("Location", "Idempotent-Replayed"),
        example=_EXAMPLE_JOB,
        more_successes={200: "Replay: the idempotency key is known"},
        links=(*to_job(*JOB_OPERATIONS, "edit_job", "redrive_job"), to_lease(queue_at="/queue")),
    ),
    body(schemas.JobRequest),
)
async def submit_job(request: Request, service: Service, asked: schemas.JobRequest) -> Response:
    spec = requests.job_spec(
        asked,
        service.limits,
        trace=trace_headers_of(request),
        caller=caller_of(request).name,
        idempotency_key=idempotency_key_of(request),
    )
    submitted = await service.submit.submit(spec)
    if submitted.created:
        location = {"Location": f"/v1/jobs/{submitted.job.id}"}
        return answer(job_view(submitted.job), status=201, headers=location)
    return answer(job_view(submitted.job), headers={"Idempotent-Replayed": "true"})


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/jobs/batch",
        "submit_batch",
        "Create many jobs, all or none",
        (201, answers.BatchView),
        ("lease_lost", "idempotency_key_reused", "unavailable"),
        scopes={Scope.PRODUCE},
        takes_trace=True,
        example={"jobs": [_EXAMPLE_JOB | {"idempotency_key": "welcome-17"}]},
        links=(*to_job(*JOB_OPERATIONS, at="/jobs/0/job/id"), to_lease(queue_at="/jobs/0/job/queue")),
    ),
    body(schemas.BatchRequest, list_member="jobs"),
)
async def submit_jobs(request: Request, service: Service, asked: schemas.BatchRequest) -> Response:
    specs = requests.batch_specs(
        asked, service.limits, trace=trace_headers_of(request), caller=caller_of(request).name
    )
    submitted = await submit_batch(service.context, specs)
    entries = [answers.BatchEntryView(entry.created, job_view(entry.job)) for entry in submitted]
    return answer(answers.BatchView(entries), status=201)


@routes.without_body(
    Endpoint(
        "GET",
        "/v1/jobs/{job_id}",
        "get_job",
        "Read a job, or wait for its end",
        (200, answers.JobView),
        _SEEN_ERRORS,
        scopes=ANY_KEY,
        query={"wait_seconds": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0}},
        waits=True,
        links=to_job("list_attempts", "cancel_job"),
    )
)
async def get_job(request: Request, service: Service, query: Query) -> Response:
    job_id = job_id_of(request)
    wait_seconds = seconds(query, "wait_seconds", high=MAX_WAIT_SECONDS)
    return await within_bounds(
        _read_when_finished(request, service, job_id, wait_seconds), wait_seconds=wait_seconds
    )


async def _read_when_finished(
    request: Request, service: Service, job_id: str, wait_seconds: float
) -> Response:
    ends_at = time.monotonic() + wait_seconds
    job: Job = await service.read.submit(job_id)
    while not job.state.is_terminal and (left := ends_at - time.monotonic()) > 0:
        is_there = await service.finishes.wait(job_id, wait_seconds=left, disconnected=partial(gone, request))
        if not is_there:
            break
        job = await service.read.submit(job_id)
        if service.finishes.is_draining:
            break
    return answer(job_view(job))


@routes.without_body(
    Endpoint(
        "GET",
        "/v1/jobs",
        "list_jobs",
        "List jobs, newest first",
        (200, answers.JobPageView),
        ("invalid_cursor", "unavailable"),
        scopes=ANY_KEY,
        query={
            "state": {"enum": [state.value for state in JobState]},
            "queue": schema_of(schemas.Name),
            "kind": schema_of(schemas.Name),
            "parent_id": schema_of(schemas.JobId),
            "created_after": schema_of(schemas.Instant),
            "created_before": schema_of(schemas.Instant),
            # With a comma between them.
            "include": {"type": "array", "items": {"enum": [*ALL]}, "minItems": 1, "explode": False},
            **_PAGE_QUERY,
        },
        headers=("Link",),
        links=(to_next_page("list_jobs"), *to_job(*JOB_OPERATIONS, at="/jobs/0/id")),
    )
)
async def list_jobs(request: Request, service: Service, query: Query) -> Response:
    limit = whole_number(query, "limit", default=DEFAULT_PAGE, low=1, high=MAX_PAGE)
    include = _include(query)
    filters = _filters(query)
    before_id = read_cursor(query, "jobs")
    ids, jobs = await _read_page(service, filters, include=include, max_rows=limit + 1, before_id=before_id)
    # The list takes a young job for one within its retention, without looking. Where the database's clock was
    # set back between creation and finish, as a failover may, the look at the job knows better.
    page = [job_view(jobs[job_id], include=include) for job_id in ids[:limit] if job_id in jobs]
    cursor = write_cursor(query, "jobs", ids[limit - 1]) if len(ids) > limit else None
    return answer(answers.JobPageView(page, cursor), headers=_next_link(request, query, cursor))


@retried
async def _read_page(
    service: Service, filters: JobFilter, *, include: frozenset[str], max_rows: int, before_id: str | None
) -> tuple[list[str], dict[str, Job]]:
    """Read a page's ids and jobs from one snapshot, so that a job that moves meanwhile stays in it."""
    retention = service.context.retention
    async with service.context.database.snapshot() as conn:
        ids = await list_job_ids(conn, filters, retention=retention, max_rows=max_rows, before_id=before_id)
        jobs = await read_jobs(
            conn,
            ids,
            retention=retention,
            with_payload="payload" in include,
            with_result="result" in include,
        )
    return ids, jobs


def _include(query: Query) -> frozenset[str]:
    names = frozenset(query["include"].split(",")) if "include" in query else frozenset()
    if not names <= set(ALL):
        raise refused("include", "may name payload and result")
    return names


def _filters(query: Query) -> JobFilter:
    state, parent_id = query.get("state"), query.get("parent_id")
    if state is not None and state not in list(JobState):
        raise refused("state", "must be one of " + ", ".join(JobState))
    if parent_id is not None and not is_job_id(parent_id):
        raise refused("parent_id", "must be a canonical lower-case UUID")
    return JobFilter(
        state=None if state is None else JobState(state),
        queue=name_of(query, "queue"),
        kind=name_of(query, "kind"),
        parent_id=parent_id,
        created_after=instant_of(query, "created_after"),
        created_before=instant_of(query, "created_before"),
    )


def _next_link(request: Request, query: Query, cursor: str | None) -> dict[str, str]:
    if cursor is None:
        return {}
    return {"Link": f'<{request.url.path}?{urlencode({**query, "cursor": cursor})}>; rel="next"'}


@routes.without_body(
    Endpoint(
        "GET",
        "/v1/jobs/{job_id}/attempts",
        "list_attempts",
        "List the grants of a job, by lease_version",
        (200, answers.AttemptPageView),
        (*_SEEN_ERRORS, "invalid_cursor"),
        scopes=ANY_KEY,
        query=_PAGE_QUERY,
        headers=("Link",),
        links=(to_next_page("list_attempts", job_id="$request.path.job_id"),),
    )
)
@retried
async def list_attempts(request: Request, service: Service, query: Query) -> Response:
    job_id = job_id_of(request)
    limit = whole_number(query, "limit", default=DEFAULT_PAGE, low=1, high=MAX_PAGE)
    after_version = read_cursor(query, job_id)
    await service.read.submit(job_id)
    async with service.context.database.one_statement() as conn:
        attempts = await read_attempts(
            conn, job_id, after_version=int(after_version or -1), max_rows=limit + 1
        )
    page = [attempt_view(attempt) for attempt in attempts[:limit]]
    cursor = None
    if len(attempts) > limit:
        cursor = write_cursor(query, job_id, str(attempts[limit - 1].lease_version))
    return answer(answers.AttemptPageView(page, cursor), headers=_next_link(request, query, cursor))


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/jobs/{job_id}/cancel",
        "cancel_job",
        "Cancel a job, or ask its holder to stop",
        (200, answers.JobView),
        (*_SEEN_ERRORS, "already_finished"),
        scopes=_CHANGE,
        example={"reason": "sent twice by mistake"},
        more_successes={202: "Running: its holder is told with the next heartbeat"},
        links=to_job("get_job", "redrive_job"),
    ),
    body(schemas.CancelRequest),
)
async def cancel(request: Request, service: Service, asked: schemas.CancelRequest) -> Response:
    cancelled = await cancel_job(service.context, job_id_of(request), reason=asked.reason, force=asked.force)
    return answer(job_view(cancelled.job), status=202 if cancelled.is_requested else 200)


@routes.with_body(
    Endpoint(
        "POST",
        "/v1/jobs/{job_id}/redrive",
        "redrive_job",
        "Bring a dead or cancelled job back",
        (200, answers.JobView),
        (*_SEEN_ERRORS, "not_redrivable"),
        scopes=_CHANGE,
        example={},
        links=(*to_job(*JOB_OPERATIONS, "edit_job"), to_lease(queue_at="/queue")),
    ),
    body(schemas.RedriveRequest),
)
async def redrive(request: Request, service: Service, asked: schemas.RedriveRequest) -> Response:
    run_at = None if asked.run_at is None else in_calendar(asked.run_at, "/run_at")
    return answer(job_view(await redrive_job(service.context, job_id_of(request), run_at=run_at)))


@routes.with_body(
    Endpoint(
        "PATCH",
        "/v1/jobs/{job_id}",
        "edit_job",
        "Change a job that waits",
        (200, answers.JobView),
        (*_SEEN_ERRORS, "not_editable"),
        scopes=_CHANGE,
        example={"priority": -10},
        links=to_job("get_job", "cancel_job"),
    ),
    body(schemas.EditRequest),
)
async def edit(request: Request, service: Service, asked: schemas.EditRequest) -> Response:
    change = Edit(
        priority=None if asked.priority is UNSET else asked.priority,
        run_at=None if asked.run_at is UNSET else in_calendar(asked.run_at, "/run_at"),
        max_attempts=None if asked.max_attempts is UNSET else asked.max_attempts,
    )
    return answer(job_view(await edit_job(service.context, job_id_of(request), change)))
