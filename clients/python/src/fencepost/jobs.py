"""Jobs as a producer writes them (``NewJob``) and as the service shows them (``JobRecord``).

The members are those of the HTTP contract, by the same names; the service validates them and fills in
defaults.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict, Unpack

JobState = Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]
FINISHED: frozenset[str] = frozenset({"succeeded", "dead", "cancelled"})


class Backoff(TypedDict, total=False):
    """How long a job waits after a failure."""

    type: Literal["exponential", "linear", "fixed"]
    base_seconds: float
    factor: float
    max_seconds: float
    jitter: float


class Parent(TypedDict):
    """The lease that a job is made under: without it the job is refused."""

    job_id: str
    lease_version: int


class JobOptions(TypedDict, total=False):
    """All that can be said of a new job beside its kind and payload."""

    queue: str
    priority: int
    run_at: datetime | str
    delay_seconds: float
    max_attempts: int
    backoff: Backoff
    max_runtime_seconds: float
    progress_timeout_seconds: float
    metadata: Mapping[str, str]
    parent: Parent
    idempotency_key: str


class LeaseRecord(TypedDict):
    """Who runs a job."""

    worker_id: str
    lease_version: int
    granted_at: str
    expires_at: str
    deadline_at: str | None
    progress: dict[str, Any] | None
    cancel_requested: bool


class JobRecord(TypedDict):
    """A job as the service shows it. Times are RFC 3339 text in UTC."""

    id: str
    queue: str
    kind: str
    state: JobState
    priority: int
    payload: Any
    metadata: dict[str, str]
    run_at: str
    created_at: str
    finished_at: str | None
    attempt: int
    max_attempts: int
    backoff: dict[str, Any]
    max_runtime_seconds: float | None
    progress_timeout_seconds: float | None
    lease_version: int
    lease: LeaseRecord | None
    result: Any
    error: dict[str, Any] | None
    checkpoint: Any
    parent: Parent | None
    idempotency_key: str | None
    cancel_requested: NotRequired[bool]


class NewJob:
    """A job that is to be made: ``NewJob("email.send", {"to": "a@example.org"}, queue="mail")``."""

    __slots__ = ("kind", "options", "payload")

    def __init__(self, kind: str, payload: object = None, **options: Unpack[JobOptions]) -> None:
        self.kind = kind
        self.payload = payload
        self.options = options

    def body(self) -> dict[str, Any]:
        """Return the job as the contract has it."""
        body: dict[str, Any] = {"kind": self.kind, "payload": self.payload, **self.options}
        run_at = self.options.get("run_at")
        if isinstance(run_at, datetime):
            if run_at.tzinfo is None:
                raise ValueError("run_at needs a time zone")
            body["run_at"] = run_at.isoformat()
        return body


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submit. ``created`` is false when the idempotency key had made the job before."""

    job: JobRecord
    created: bool

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job["id"]


def new_key() -> str:
    """Return an idempotency key that nobody else has."""
    return str(uuid.uuid4())
