"""What an answer looks like. Opaque JSON is written as it is stored; its types are for the document alone."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Time = Annotated[datetime, Meta(tz=True, description="RFC 3339, in UTC with Z.")]
_FAILURE: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {"type": {"type": ["string", "null"]}, "message": {"type": "string"}, "details": {}},
    "required": ["type", "message", "details"],
}
_PREVIOUS: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {"attempt": {"type": "integer"}, "outcome": {"type": "string"}, "error": _FAILURE},
    "required": ["attempt", "outcome", "error"],
}
Metadata = Annotated[
    Raw, Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}})
]
Failure = Annotated[Raw, Meta(extra_json_schema=_FAILURE)]
Previous = Annotated[Raw, Meta(extra_json_schema=_PREVIOUS)]


class BackoffView(Struct, frozen=True):
    type: str
    base_seconds: float
    factor: float
    max_seconds: float
    jitter: float


class ParentView(Struct, frozen=True):
    job_id: str
    lease_version: int


class ProgressView(Struct, frozen=True):
    seq: int
    percent: float | None
    message: str | None


class LeaseView(Struct, frozen=True):
    worker_id: str
    lease_version: int
    granted_at: Time
    expires_at: Time
    deadline_at: Time | None
    progress: ProgressView | None
    cancel_requested: bool


class JobView(Struct, frozen=True, kw_only=True):
    """A job as it is now. In a list, payload and result are left out unless they are asked for."""

    id: str
    queue: str
    kind: str
    state: Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]
    priority: int
    payload: Raw | UnsetType = UNSET
    metadata: Metadata
    run_at: Time
    created_at: Time
    finished_at: Time | None
    attempt: int
    max_attempts: int
    backoff: BackoffView
    max_runtime_seconds: float | None
    progress_timeout_seconds: float | None
    lease_version: int
    lease: LeaseView | None
    result: Raw | UnsetType = UNSET
    error: Failure
    checkpoint: Raw
    parent: ParentView | None
    idempotency_key: str | None


class BatchEntryView(Struct, frozen=True):
    created: bool
    job: JobView


class BatchView(Struct, frozen=True):
    jobs: list[BatchEntryView]


class JobPageView(Struct, frozen=True):
    jobs: list[JobView]
    next_cursor: str | None


class AttemptView(Struct, frozen=True):
    attempt: int
    lease_version: int
    worker_id: str
    granted_at: Time
    ended_at: Time | None
    outcome: Literal[
        "running",
        "succeeded",
        "failed",
        "lease_expired",
        "stalled",
        "deadline_exceeded",
        "released",
        "cancelled",
    ]
    error: Failure


class AttemptPageView(Struct, frozen=True):
    attempts: list[AttemptView]
    next_cursor: str | None


class LeasedJobView(Struct, frozen=True):
    """What a worker is handed. It shows lease_version with everything it does from now on."""

    id: str
    queue: str
    kind: str
    payload: Raw
    metadata: Metadata
    priority: int
    attempt: int
    max_attempts: int
    lease_version: int
    lease_expires_at: Time
    lease_seconds: float
    deadline_at: Time | None
    checkpoint: Raw
    previous: Previous
    created_at: Time
    run_at: Time
    traceparent: str | None
    tracestate: str | None
    parent: ParentView | None


class HeldLeaseView(Struct, frozen=True):
    job_id: str
    lease_version: int
    queue: str
    kind: str
    attempt: int
    granted_at: Time
    expires_at: Time
    deadline_at: Time | None
    cancel_requested: bool


class HeldLeasesView(Struct, frozen=True):
    leases: list[HeldLeaseView]


class RenewedLeaseView(Struct, frozen=True):
    lease_expires_at: Time
    deadline_at: Time | None
    cancel_requested: bool


class ItemView(Struct, frozen=True, kw_only=True):
    """One of many: what the single call answers, or what it would refuse."""

    job_id: str
    status: Literal["ok", "replayed", "lease_lost", "not_found"]
    state: Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"] | UnsetType = UNSET
    lease_expires_at: Time | UnsetType = UNSET
    deadline_at: Time | None | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    presented_version: int | UnsetType = UNSET
    current_version: int | None | UnsetType = UNSET
    job_state: str | None | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ManyView(Struct, frozen=True):
    """One result an item, in the order of the items."""

    results: list[ItemView]


class LeasedJobsView(Struct, frozen=True):
    """``completed`` has one result for each item of ``complete``, in their order."""

    jobs: list[LeasedJobView]
    server_time: Time
    completed: list[ItemView] | UnsetType = UNSET


class LoopView(Struct, frozen=True):
    ok: bool
    last_success_at: Time | None


class ReadyView(Struct, frozen=True):
    """``failing`` names the parts that are not well; an empty list is ready."""

    ready: bool
    failing: list[str]
    loops: dict[str, LoopView]


class LiveView(Struct, frozen=True):
    alive: bool


class ProblemMeaningView(Struct, frozen=True):
    code: str
    status: int
    title: str
    meaning: str


class PointedErrorView(Struct, frozen=True):
    """``pointer`` is a JSON pointer into the request; an empty one is the whole body."""

    pointer: str
    message: str


class ProblemView(Struct, frozen=True, kw_only=True):
    """RFC 9457; the members that may be missing belong to some codes only."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[PointedErrorView] | UnsetType = UNSET
    pointer: str | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    job_state: str | None | UnsetType = UNSET
    presented_version: int | UnsetType = UNSET
    current_version: int | None | UnsetType = UNSET
    reason: str | UnsetType = UNSET
