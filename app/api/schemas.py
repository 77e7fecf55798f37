"""What a request may say: the source of validation and of OpenAPI.

``msgspec.Raw`` holds opaque JSON as its own text. Whole numbers are strict (true, "5" and 5.0 are
refused), unknown members are refused. A member whose type allows null means the same when it is left out.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

MAX_LEASE_VERSION = 2**53 - 1
# Opaque JSON; left out means null, but in a heartbeat it means "as it was".
Opaque = Raw | UnsetType

# Nothing follows; `$` alone would let a trailing line break through.
END = r"(?![\s\S])"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:-]*" + END
_JOB_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}" + END
_STORABLE = r"^[^\x00]*" + END
_KEY = r"^ *[!-~][ -~]*" + END

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=_NAME,
        description="1 to 128 characters of A-Z a-z 0-9 _ . : -, the first a letter or digit.",
    ),
]
Priority = Annotated[int, Meta(ge=-32768, le=32767, description="Lower numbers first.")]
MaxAttempts = Annotated[int, Meta(ge=1, le=1000)]
Delay = Annotated[float, Meta(ge=0, le=31_536_000)]
Clock = Annotated[float, Meta(ge=1, le=604_800)]
LeaseSeconds = Annotated[float, Meta(ge=1, le=3600)]
LeaseVersion = Annotated[
    int, Meta(ge=0, le=MAX_LEASE_VERSION, description="The fencing token that the lease call handed out.")
]
JobId = Annotated[str, Meta(pattern=_JOB_ID, description="A canonical lower-case UUID.")]
Instant = Annotated[
    datetime,
    Meta(
        tz=True,
        description="RFC 3339 with an offset; the years 1970 to 9999, in UTC.",
        # The few hours around both ends, where the offset decides, are left to the service.
        extra_json_schema={"pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-"},
    ),
]
Reason = Annotated[str, Meta(max_length=1024, pattern=_STORABLE)]
KeyText = Annotated[str, Meta(min_length=1, max_length=255, pattern=_KEY)]
# Null means left out, so that only two values contradict each other.
RUN_AT_OR_DELAY = {
    "not": {
        "required": ["run_at", "delay_seconds"],
        "properties": {"run_at": {"type": "string"}, "delay_seconds": {"type": "number"}},
    }
}


# What the patterns mean, in words.
RULES = {
    _NAME: "1 to 128 characters of A-Z a-z 0-9 _ . : -, the first a letter or digit",
    _JOB_ID: "a canonical lower-case UUID",
    _STORABLE: "a text without U+0000",
    _KEY: "1 to 255 printable ASCII characters, not all blank",
}


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """The base of every request body."""


class BackoffRequest(Request, kw_only=True, frozen=True):
    type: Literal["exponential", "linear", "fixed"] = "exponential"
    base_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 5.0
    factor: Annotated[float, Meta(ge=1, le=10)] = 2.0
    max_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 3600.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1


class ParentRequest(Request, kw_only=True, frozen=True):
    job_id: JobId
    lease_version: LeaseVersion


class FollowUpRequest(Request, kw_only=True, frozen=True):
    """A job to be created; at most one of run_at and delay_seconds.

    As a follow-up of a completion it gets its parent from the service.
    """

    kind: Name
    queue: Name = "default"
    payload: Opaque = UNSET
    priority: Priority = 0
    run_at: Instant | None = None
    delay_seconds: Delay | None = None
    max_attempts: MaxAttempts = 10
    backoff: BackoffRequest = BackoffRequest()
    max_runtime_seconds: Clock | None = None
    progress_timeout_seconds: Clock | None = None
    metadata: dict[str, str] = {}


class JobRequest(FollowUpRequest, kw_only=True, frozen=True):
    """A job to be created; with a parent, only while that lease is held."""

    parent: ParentRequest | None = None


class BatchJobRequest(JobRequest, kw_only=True, frozen=True):
    idempotency_key: KeyText | None = None


class BatchRequest(Request, kw_only=True, frozen=True):
    jobs: list[BatchJobRequest]


class CancelRequest(Request, kw_only=True, frozen=True):
    reason: Reason | None = None
    force: bool = False


class RedriveRequest(Request, kw_only=True, frozen=True):
    run_at: Instant | None = None


class EditRequest(Request, kw_only=True, frozen=True):
    """What is left out stays as it is."""

    priority: Priority | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET


class TokenRequest(Request, kw_only=True, frozen=True):
    lease_version: LeaseVersion


class ProgressRequest(Request, kw_only=True, frozen=True):
    seq: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: Reason | None = None


class HeartbeatRequest(TokenRequest, kw_only=True, frozen=True):
    extend_seconds: LeaseSeconds | None = None
    progress: ProgressRequest | None = None
    checkpoint: Opaque = UNSET


class CompleteRequest(TokenRequest, kw_only=True, frozen=True):
    result: Opaque = UNSET
    enqueue: Annotated[list[FollowUpRequest], Meta(max_length=100)] = []


class ErrorRequest(Request, kw_only=True, frozen=True):
    message: str
    type: str | None = None
    details: Opaque = UNSET


class FailRequest(TokenRequest, kw_only=True, frozen=True):
    error: ErrorRequest
    retryable: bool = True
    retry_after_seconds: Delay | None = None


class ReleaseRequest(TokenRequest, kw_only=True, frozen=True):
    delay_seconds: Delay = 0.0
    reason: Reason | None = None


class HeartbeatItem(HeartbeatRequest, kw_only=True, frozen=True):
    job_id: JobId


class CompleteItem(CompleteRequest, kw_only=True, frozen=True):
    job_id: JobId


class LeaseJobsRequest(Request, kw_only=True, frozen=True):
    """``complete`` is done first, at once, whether or not there is anything to lease."""

    worker_id: Name
    queues: Annotated[list[Name], Meta(min_length=1, max_length=32)]
    max_jobs: Annotated[int, Meta(ge=1, le=1000)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 0.0
    lease_seconds: LeaseSeconds = 60.0
    request_id: Annotated[str, Meta(min_length=1, max_length=64, pattern=_STORABLE)] | None = None
    complete: list[CompleteItem] | None = None


class FailItem(FailRequest, kw_only=True, frozen=True):
    job_id: JobId


class ReleaseItem(ReleaseRequest, kw_only=True, frozen=True):
    job_id: JobId


class HeartbeatManyRequest(Request, kw_only=True, frozen=True):
    items: list[HeartbeatItem]


class CompleteManyRequest(Request, kw_only=True, frozen=True):
    items: list[CompleteItem]


class FailManyRequest(Request, kw_only=True, frozen=True):
    items: list[FailItem]


class ReleaseManyRequest(Request, kw_only=True, frozen=True):
    items: list[ReleaseItem]
