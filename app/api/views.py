"""Domain to answers. Opaque JSON is written as the text it came in."""

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec import UNSET, Raw, UnsetType

from app.api import answers
from app.domain.calls import RenewedLease
from app.domain.errors import FencepostError, LeaseLost
from app.domain.job import DEFAULT_BACKOFF, Attempt, Backoff, HeldLease, Job, Lease, LeasedJob, Parent, Token
from app.operations.settle import Settled

_NULL = Raw(b"null")
_EMPTY_OBJECT = Raw(b"{}")

ALL = ("payload", "result")


def _opaque(text: str | None) -> Raw:
    return _NULL if text is None else Raw(text)


def job_view(job: Job, *, include: Collection[str] = ALL) -> answers.JobView:
    """Return a job's answer; ``include`` names which of payload and result are shown."""
    return answers.JobView(
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        state=job.state.value,
        priority=job.priority,
        payload=_opaque(job.payload) if "payload" in include else UNSET,
        metadata=_EMPTY_OBJECT if job.metadata is None else Raw(job.metadata),
        run_at=job.run_at,
        created_at=job.created_at,
        finished_at=job.finished_at,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        backoff=_DEFAULT_BACKOFF if job.backoff is DEFAULT_BACKOFF else _backoff_view(job.backoff),
        max_runtime_seconds=job.max_runtime_seconds,
        progress_timeout_seconds=job.progress_timeout_seconds,
        lease_version=job.lease_version,
        lease=None if job.lease is None else _lease_view(job.lease),
        result=_opaque(job.result) if "result" in include else UNSET,
        error=_opaque(job.error),
        checkpoint=_opaque(job.checkpoint),
        parent=_parent_view(job.parent),
        idempotency_key=job.idempotency_key,
    )


def _backoff_view(backoff: Backoff) -> answers.BackoffView:
    return answers.BackoffView(
        backoff.type.value, backoff.base_seconds, backoff.factor, backoff.max_seconds, backoff.jitter
    )


_DEFAULT_BACKOFF = _backoff_view(DEFAULT_BACKOFF)


def _lease_view(lease: Lease) -> answers.LeaseView:
    progress = lease.progress
    return answers.LeaseView(
        worker_id=lease.worker_id,
        lease_version=lease.lease_version,
        granted_at=lease.granted_at,
        expires_at=lease.expires_at,
        deadline_at=lease.deadline_at,
        progress=None
        if progress is None
        else answers.ProgressView(progress.seq, progress.percent, progress.message),
        cancel_requested=lease.cancel_requested,
    )


def _parent_view(parent: Parent | None) -> answers.ParentView | None:
    return None if parent is None else answers.ParentView(parent.job_id, parent.lease_version)


def leased_jobs_view(
    jobs: Sequence[LeasedJob], *, server_time: datetime, completed: list[answers.ItemView] | UnsetType
) -> answers.LeasedJobsView:
    return answers.LeasedJobsView([_leased_job_view(job) for job in jobs], server_time, completed)


def _leased_job_view(job: LeasedJob) -> answers.LeasedJobView:
    return answers.LeasedJobView(
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        payload=_opaque(job.payload),
        metadata=_EMPTY_OBJECT if job.metadata is None else Raw(job.metadata),
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        lease_version=job.lease_version,
        lease_expires_at=job.lease_expires_at,
        lease_seconds=job.lease_seconds,
        deadline_at=job.deadline_at,
        checkpoint=_opaque(job.checkpoint),
        previous=_opaque(job.previous),
        created_at=job.created_at,
        run_at=job.run_at,
        traceparent=job.traceparent,
        tracestate=job.tracestate,
        parent=_parent_view(job.parent),
    )


def attempt_view(attempt: Attempt) -> answers.AttemptView:
    return answers.AttemptView(
        attempt=attempt.attempt,
        lease_version=attempt.lease_version,
        worker_id=attempt.worker_id,
        granted_at=attempt.granted_at,
        ended_at=attempt.ended_at,
        outcome=attempt.outcome.value,
        error=_opaque(attempt.error),
    )


def held_lease_view(lease: HeldLease) -> answers.HeldLeaseView:
    return answers.HeldLeaseView(
        job_id=lease.job_id,
        lease_version=lease.lease_version,
        queue=lease.queue,
        kind=lease.kind,
        attempt=lease.attempt,
        granted_at=lease.granted_at,
        expires_at=lease.expires_at,
        deadline_at=lease.deadline_at,
        cancel_requested=lease.cancel_requested,
    )


def renewed_lease_view(lease: RenewedLease) -> answers.RenewedLeaseView:
    return answers.RenewedLeaseView(lease.lease_expires_at, lease.deadline_at, lease.cancel_requested)


def settled_item_views(
    tokens: Sequence[Token], given: Sequence[Settled | FencepostError]
) -> list[answers.ItemView]:
    """Return one result for each item that was to be settled, in their order."""
    return [_settled_item_view(token, one) for token, one in zip(tokens, given, strict=True)]


def _settled_item_view(token: Token, given: Settled | FencepostError) -> answers.ItemView:
    if isinstance(given, FencepostError):
        return refused_item_view(token, given)
    return answers.ItemView(
        job_id=token.job_id, status="replayed" if given.is_replay else "ok", state=given.state.value
    )


def refused_item_view(token: Token, refusal: FencepostError) -> answers.ItemView:
    if not isinstance(refusal, LeaseLost):
        return answers.ItemView(
            job_id=token.job_id, status="not_found", code=refusal.code, detail=refusal.detail
        )
    return answers.ItemView(
        job_id=token.job_id,
        status="lease_lost",
        code=refusal.code,
        detail=refusal.detail,
        presented_version=refusal.presented_version,
        current_version=refusal.current_version,
        job_state=refusal.job_state,
        reason=refusal.reason,
    )
