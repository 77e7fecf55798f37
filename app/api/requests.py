"""Schemas to domain: limits in bytes, defaults, fingerprints."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, UnsetType

from app.api import schemas
from app.api.parameters import in_calendar
from app.domain.caller import ANONYMOUS
from app.domain.calls import Completion, Heartbeat, LeaseRequest
from app.domain.errors import InvalidRequest, TooLarge
from app.domain.failure import dropped_details, error_text
from app.domain.idempotency import complete_fingerprint, duration, fingerprint, submit_fingerprint
from app.domain.job import DEFAULT_BACKOFF, Backoff, BackoffType, JobSpec, Outcome, Parent, Token
from app.domain.machine import Ending
from app.operations.lease import Wish
from app.operations.settle import Closing, Completing


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of JSON text as it was sent, items a call, and the seconds in which a whole body has to come."""

    max_payload_bytes: int
    max_result_bytes: int
    max_checkpoint_bytes: int
    max_metadata_bytes: int
    max_body_bytes: int
    max_batch_body_bytes: int
    max_batch_items: int
    body_seconds: float


def opaque_text(value: Raw | UnsetType, *, max_bytes: int, pointer: str) -> str | None:
    """Return the text of an opaque value, None for null and for left out. Raises TooLarge."""
    if value is UNSET:
        return None
    text = bytes(value)
    if len(text) > max_bytes:
        raise TooLarge(f"{pointer} is over the limit of {max_bytes} bytes.", pointer=pointer)
    return None if text == b"null" else text.decode()


def job_spec(
    body: schemas.FollowUpRequest,
    limits: Limits,
    *,
    pointer: str = "",
    parent: Parent | None = None,
    trace: tuple[str | None, str | None] = (None, None),
    caller: str = ANONYMOUS.name,
    idempotency_key: str | None = None,
) -> JobSpec:
    """Return what is asked for; ``pointer`` is where the body stands in the request.

    ``caller`` is the name that an idempotency key belongs to.
    """
    if body.run_at is not None and body.delay_seconds is not None:
        raise InvalidRequest("give run_at or delay_seconds, not both", pointer=f"{pointer}/delay_seconds")
    if isinstance(body, schemas.JobRequest) and body.parent is not None:
        parent = Parent(body.parent.job_id, body.parent.lease_version)
    spec = JobSpec(
        kind=body.kind,
        queue=body.queue,
        payload=opaque_text(body.payload, max_bytes=limits.max_payload_bytes, pointer=f"{pointer}/payload"),
        priority=body.priority,
        run_at=None if body.run_at is None else in_calendar(body.run_at, f"{pointer}/run_at"),
        delay_seconds=body.delay_seconds,
        max_attempts=body.max_attempts,
        backoff=_backoff(body.backoff),
        max_runtime_seconds=body.max_runtime_seconds,
        progress_timeout_seconds=body.progress_timeout_seconds,
        metadata=_metadata(body.metadata, limits, pointer=f"{pointer}/metadata"),
        parent=parent,
        traceparent=trace[0],
        tracestate=trace[1],
        caller=caller,
        idempotency_key=idempotency_key,
    )
    if idempotency_key is None:
        return spec
    return msgspec.structs.replace(spec, fingerprint=submit_fingerprint(spec))


_DEFAULT_BACKOFF_REQUEST = schemas.BackoffRequest()


def _backoff(body: schemas.BackoffRequest) -> Backoff:
    if body == _DEFAULT_BACKOFF_REQUEST:
        return DEFAULT_BACKOFF
    return Backoff(BackoffType(body.type), body.base_seconds, body.factor, body.max_seconds, body.jitter)


def _metadata(metadata: dict[str, str], limits: Limits, *, pointer: str) -> dict[str, str]:
    if metadata and len(msgspec.json.encode(metadata)) > limits.max_metadata_bytes:
        raise TooLarge(f"{pointer} is over the limit of {limits.max_metadata_bytes} bytes.", pointer=pointer)
    return metadata


def batch_specs(
    body: schemas.BatchRequest, limits: Limits, *, trace: tuple[str | None, str | None], caller: str
) -> list[JobSpec]:
    check_item_count(len(body.jobs), limits, pointer="/jobs")
    return [
        job_spec(
            job,
            limits,
            pointer=f"/jobs/{index}",
            trace=trace,
            caller=caller,
            idempotency_key=job.idempotency_key,
        )
        for index, job in enumerate(body.jobs)
    ]


def check_item_count(count: int, limits: Limits, *, pointer: str) -> None:
    if count > limits.max_batch_items:
        raise TooLarge(f"{pointer} has over {limits.max_batch_items} items.", pointer=pointer)


# One statement writes the follow-up jobs of a whole call.
MAX_FOLLOW_UPS = 10_000


def wish(body: schemas.LeaseJobsRequest, completings: Sequence[Completing]) -> Wish:
    """Return what a lease call asks for; a queue that is named twice counts once."""
    queues = tuple(dict.fromkeys(body.queues))
    request = None
    if body.request_id is not None:
        members = {
            "queues": sorted(queues),
            "max_jobs": body.max_jobs,
            "wait_seconds": body.wait_seconds,
            "lease_seconds": body.lease_seconds,
        }
        if completings:
            members["complete"] = [
                (item.token.job_id, item.token.lease_version, item.fingerprint.hex()) for item in completings
            ]
        request = LeaseRequest(
            body.worker_id, body.request_id, fingerprint("lease", members, opaque={}), body.lease_seconds
        )
    return Wish(body.worker_id, queues, body.max_jobs, body.lease_seconds, request)


def heartbeat(job_id: str, body: schemas.HeartbeatRequest, limits: Limits, *, pointer: str = "") -> Heartbeat:
    progress = body.progress
    return Heartbeat(
        token=Token(job_id, body.lease_version),
        extend_seconds=body.extend_seconds,
        seq=None if progress is None else progress.seq,
        percent=None if progress is None else progress.percent,
        message=None if progress is None else progress.message,
        with_checkpoint=body.checkpoint is not UNSET,
        checkpoint=opaque_text(
            body.checkpoint, max_bytes=limits.max_checkpoint_bytes, pointer=f"{pointer}/checkpoint"
        ),
    )


def completing(
    job_id: str,
    body: schemas.CompleteRequest,
    limits: Limits,
    *,
    pointer: str = "",
    trace: tuple[str | None, str | None],
) -> Completing:
    """Return a completion; its follow-up jobs carry the trace of the call that completes."""
    result = opaque_text(body.result, max_bytes=limits.max_result_bytes, pointer=f"{pointer}/result")
    parent = Parent(job_id, body.lease_version)
    follow_ups = tuple(
        job_spec(job, limits, pointer=f"{pointer}/enqueue/{index}", parent=parent, trace=trace)
        for index, job in enumerate(body.enqueue)
    )
    meaning = complete_fingerprint(result, follow_ups)
    return Completing(Completion(Token(job_id, body.lease_version), result, meaning), follow_ups)


def completing_many(
    items: Sequence[schemas.CompleteItem],
    limits: Limits,
    *,
    pointer: str,
    trace: tuple[str | None, str | None],
) -> list[Completing]:
    """Return the completions of one call; ``pointer`` is where their list stands in the request."""
    check_item_count(len(items), limits, pointer=pointer)
    if sum(len(item.enqueue) for item in items) > MAX_FOLLOW_UPS:
        raise TooLarge(f"{pointer} has over {MAX_FOLLOW_UPS} jobs to enqueue in all.", pointer=pointer)
    return [
        completing(item.job_id, item, limits, pointer=f"{pointer}/{index}", trace=trace)
        for index, item in enumerate(items)
    ]


def failing(job_id: str, body: schemas.FailRequest, limits: Limits) -> Closing:
    """Return a failure report that can be stored, whatever the worker sent."""
    error = body.error
    details = None if error.details is UNSET else bytes(error.details).decode()
    if details is not None and len(details.encode()) > limits.max_result_bytes:
        details = dropped_details(f"over the limit of {limits.max_result_bytes} bytes")
    text = error_text(type=error.type, message=error.message, details=details)
    ending = Ending(
        Outcome.FAILED,
        error=text,
        retryable=body.retryable,
        retry_after_seconds=body.retry_after_seconds,
    )
    meaning = fingerprint(
        "fail",
        {"retryable": body.retryable, "retry_after_seconds": duration(body.retry_after_seconds)},
        opaque={"error": text},
    )
    return Closing(Token(job_id, body.lease_version), ending, meaning)


def releasing(job_id: str, body: schemas.ReleaseRequest) -> Closing:
    """Return a release; its reason becomes the attempt's error, not the job's."""
    text = None
    if body.reason is not None:
        text = error_text(type="released", message=body.reason, details=None)
    ending = Ending(Outcome.RELEASED, error=text, delay_seconds=body.delay_seconds)
    meaning = fingerprint(
        "release", {"delay_seconds": duration(body.delay_seconds), "reason": body.reason}, opaque={}
    )
    return Closing(Token(job_id, body.lease_version), ending, meaning)
