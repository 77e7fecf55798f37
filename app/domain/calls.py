"""What callers ask for, as frozen values, validated and with defaults filled in."""

from datetime import datetime

import msgspec

from app.domain.job import JobState, Token


class Heartbeat(msgspec.Struct, frozen=True):
    """``seq`` None reports no progress; ``with_checkpoint`` False keeps the stored checkpoint."""

    token: Token
    extend_seconds: float | None = None
    seq: int | None = None
    percent: float | None = None
    message: str | None = None
    with_checkpoint: bool = False
    checkpoint: str | None = None


class RenewedLease(msgspec.Struct, frozen=True):
    lease_expires_at: datetime
    deadline_at: datetime | None
    cancel_requested: bool


class Completion(msgspec.Struct, frozen=True):
    token: Token
    result: str | None
    fingerprint: bytes


class LeaseRequest(msgspec.Struct, frozen=True):
    """The identity of a repeatable lease call; ``fingerprint`` stands for the rest of its body."""

    worker_id: str
    request_id: str
    fingerprint: bytes
    lease_seconds: float

    @property
    def identity(self) -> tuple[str, str]:
        """What the repeats of a call have in common, whatever their body says."""
        return (self.worker_id, self.request_id)


class Edit(msgspec.Struct, frozen=True):
    """None keeps what is stored."""

    priority: int | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None


class JobFilter(msgspec.Struct, frozen=True):
    """None does not filter. ``created_after`` is inclusive, ``created_before`` exclusive."""

    state: JobState | None = None
    queue: str | None = None
    kind: str | None = None
    parent_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
