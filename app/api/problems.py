"""Every refusal as application/problem+json (RFC 9457), one shape on every route."""

from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from app.domain.errors import FencepostError, InvalidRequest

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    title: str
    meaning: str


PROBLEMS: dict[str, Problem] = {
    "malformed_json": Problem(400, "Malformed JSON", "The body is not JSON in UTF-8."),
    "invalid_cursor": Problem(
        400, "Invalid cursor", "The cursor is broken, or was made for other filters. Start without one."
    ),
    "unauthorized": Problem(401, "Unauthorized", "An API key is missing or wrong."),
    "forbidden": Problem(403, "Forbidden", "The API key lacks the scope of this route."),
    "not_found": Problem(404, "Not found", "There is no such route."),
    "job_not_found": Problem(404, "Job not found", "No job has this id, or its retention is over."),
    "method_not_allowed": Problem(405, "Method not allowed", "The route exists, but not for this method."),
    "request_timeout": Problem(
        408, "Request timeout", "The body did not arrive in time. Nothing was changed; send the call again."
    ),
    "lease_lost": Problem(
        409,
        "Lease lost",
        "The job is not running under the presented lease_version: it expired, was cancelled or settled, or"
        " belongs to another worker now. Nothing was changed. Stop the work on it.",
    ),
    "already_finished": Problem(409, "Already finished", "A succeeded or dead job cannot be cancelled."),
    "not_redrivable": Problem(409, "Not redrivable", "Only a dead or cancelled job can be redriven."),
    "not_editable": Problem(409, "Not editable", "Only a scheduled or ready job can be edited."),
    "too_large": Problem(413, "Too large", "A limit was passed; the text names it."),
    "unsupported_media_type": Problem(
        415, "Unsupported media type", "The Content-Type must be application/json, without an encoding."
    ),
    "invalid_request": Problem(
        422, "Invalid request", "A member, parameter or header is not acceptable; `errors` points at it."
    ),
    "idempotency_key_reused": Problem(
        422, "Idempotency key reused", "The key belongs to another request, whose job is named."
    ),
    "internal_error": Problem(500, "Internal error", "A fault of this service; the log has the request id."),
    "unavailable": Problem(
        503,
        "Unavailable",
        "The database does not answer. Whether the call was done is unknown: repeat it with the same key,"
        " version or request_id.",
    ),
}


def problem_response(
    code: str,
    *,
    detail: str,
    request_id: str,
    members: dict[str, object] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the answer for a code of PROBLEMS; ``members`` are added to the common ones."""
    problem = PROBLEMS[code]
    body = {
        "type": f"/problems/{code}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "code": code,
        "request_id": request_id,
        **(members or {}),
    }
    all_headers = dict(headers or {})
    if problem.status == 503:
        all_headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return Response(
        msgspec.json.encode(body), status_code=problem.status, media_type=MEDIA_TYPE, headers=all_headers
    )


def failure_response(request_id: str) -> Response:
    """Return the answer for a fault of ours."""
    return problem_response(
        "internal_error", detail="The service failed; its log has this request id.", request_id=request_id
    )


def refusal_members(refusal: FencepostError) -> dict[str, object]:
    """Return what a refusal adds to the common members."""
    members = dict(refusal.members)
    if isinstance(refusal, InvalidRequest):
        members["errors"] = [{"pointer": refusal.pointer, "message": refusal.message}]
    elif refusal.pointer is not None:
        members["errors"] = [{"pointer": refusal.pointer, "message": refusal.detail}]
        # A conflict or a limit concerns one place: a caller should not have to search a list for it.
        members["pointer"] = refusal.pointer
    return members
