"""The words of the service as frozen values.

JSON that belongs to the caller (payload, result, checkpoint, error details) travels as its own text
and is never decoded on the way, so that numbers keep their digits. ``None`` for such a text means
JSON ``null`` unless the field says otherwise.

They are msgspec structs: a frozen dataclass of twenty members takes ten times as long to make, and every
job passes through several of them.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from app.domain.caller import ANONYMOUS


class JobState(StrEnum):
    """Where a job is; one table of the schema for each unfinished state."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED)


class Outcome(StrEnum):
    """How an attempt ended, or that it has not."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LEASE_EXPIRED = "lease_expired"
    STALLED = "stalled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    RELEASED = "released"
    CANCELLED = "cancelled"


class BackoffType(StrEnum):
    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    FIXED = "fixed"


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait after a failed attempt; ``jitter`` is a share of the wait, 0 to 1."""

    type: BackoffType = BackoffType.EXPONENTIAL
    base_seconds: float = 5.0
    factor: float = 2.0
    max_seconds: float = 3600.0
    jitter: float = 0.1


# The contract's; one object, so that the many jobs that have it are told by identity.
DEFAULT_BACKOFF = Backoff()


class Parent(msgspec.Struct, frozen=True):
    """The lease under which a job was created; both members together are the fence."""

    job_id: str
    lease_version: int


class JobSpec(msgspec.Struct, frozen=True):
    """One job as it was asked for, validated, defaults filled in.

    At most one of ``run_at`` (an instant) and ``delay_seconds`` is given; neither means now.
    ``idempotency_key`` and ``fingerprint`` are given together or not at all.
    """

    kind: str
    queue: str = "default"
    payload: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int = 10
    backoff: Backoff = DEFAULT_BACKOFF
    max_runtime_seconds: float | None = None
    progress_timeout_seconds: float | None = None
    metadata: dict[str, str] = {}
    parent: Parent | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    caller: str = ANONYMOUS.name
    idempotency_key: str | None = None
    fingerprint: bytes | None = None


class Progress(msgspec.Struct, frozen=True):
    """The last progress a holder reported; a higher ``seq`` restarts the progress clock."""

    seq: int
    percent: float | None
    message: str | None


class Lease(msgspec.Struct, frozen=True):
    """A grant: ``lease_version`` is the fencing token, no clock but the database's wrote the times."""

    worker_id: str
    lease_version: int
    granted_at: datetime
    expires_at: datetime
    deadline_at: datetime | None
    progress: Progress | None
    cancel_requested: bool


class Job(msgspec.Struct, frozen=True):
    """A job as it is now. ``payload`` and ``result`` are also None where a list left them out."""

    id: str
    queue: str
    kind: str
    state: JobState
    priority: int
    payload: str | None
    metadata: str | None
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    attempt: int
    max_attempts: int
    backoff: Backoff
    max_runtime_seconds: float | None
    progress_timeout_seconds: float | None
    lease_version: int
    lease: Lease | None
    result: str | None
    error: str | None
    checkpoint: str | None
    parent: Parent | None
    idempotency_key: str | None


class LeasedJob(msgspec.Struct, frozen=True):
    """What a worker is handed: the job, and the token it must show from now on."""

    lease_version: int
    id: str
    queue: str
    kind: str
    payload: str | None
    metadata: str | None
    priority: int
    attempt: int
    max_attempts: int
    lease_expires_at: datetime
    lease_seconds: float
    deadline_at: datetime | None
    checkpoint: str | None
    previous: str | None
    created_at: datetime
    run_at: datetime
    traceparent: str | None
    tracestate: str | None
    parent: Parent | None


class HeldLease(msgspec.Struct, frozen=True):
    """One row of what a worker holds."""

    job_id: str
    lease_version: int
    queue: str
    kind: str
    attempt: int
    granted_at: datetime
    expires_at: datetime
    deadline_at: datetime | None
    cancel_requested: bool


class Attempt(msgspec.Struct, frozen=True):
    """One grant of a job; ``ended_at`` is None while it runs."""

    attempt: int
    lease_version: int
    worker_id: str
    granted_at: datetime
    ended_at: datetime | None
    outcome: Outcome
    error: str | None


class Token(msgspec.Struct, frozen=True):
    """What every holder call presents: the job, and the fencing token it was handed."""

    job_id: str
    lease_version: int
