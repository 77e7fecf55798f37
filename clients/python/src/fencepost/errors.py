"""What can go wrong, as exceptions.

FencepostError
├── Problem                    the service answered with a refusal
│   ├── LeaseLost              the lease is over; nothing was changed
│   ├── JobNotFound
│   └── IdempotencyKeyReused   the key belongs to another request
└── Unavailable                there was no answer in time
"""

from collections.abc import Mapping
from typing import Any

from fencepost.answers import Answer


class FencepostError(Exception):
    """Anything that this client raises by itself."""


class Unavailable(FencepostError):
    """No answer came in time, or none but 5xx, 408 and 429.

    It says nothing about whether the call was done. The last failure is the ``__cause__``.
    """


class Problem(FencepostError):
    """The service refused a call. ``members`` is the whole problem document."""

    def __init__(self, status: int, members: Mapping[str, Any]) -> None:
        self.status = status
        self.members = members
        self.code = str(members.get("code", f"http_{status}"))
        self.detail = str(members.get("detail", ""))
        self.request_id: str | None = members.get("request_id")
        self.errors: list[dict[str, Any]] = members.get("errors") or []
        super().__init__(f"{status} {self.code}: {self.detail}")

    def __reduce__(self) -> tuple[object, ...]:
        # It crosses from the worker into a handler's process, with the parts and not with the sentence.
        return type(self), (self.status, self.members)


class LeaseLost(Problem):
    """The lease is over, and whatever was asked for under it has not been done."""

    @property
    def presented_version(self) -> int | None:
        """The version that the call carried."""
        return self.members.get("presented_version")

    @property
    def current_version(self) -> int | None:
        """The job's version now; None when only the local clock, or the database, has spoken."""
        return self.members.get("current_version")

    @property
    def job_state(self) -> str | None:
        """The job's state now, as far as it was told."""
        return self.members.get("job_state")

    @property
    def reason(self) -> str:
        """What ended the lease.

        One of expired, stalled, deadline_exceeded, failed, released, cancelled, finished and unknown.
        """
        return str(self.members.get("reason", "unknown"))


class JobNotFound(Problem):
    """No job has this id, or it is past its retention."""


class IdempotencyKeyReused(Problem):
    """The idempotency key was used before, with another request."""

    @property
    def job_id(self) -> str | None:
        """The job that the key made."""
        return self.members.get("job_id")


_BY_CODE: dict[str, type[Problem]] = {
    "lease_lost": LeaseLost,
    "job_not_found": JobNotFound,
    "not_found": JobNotFound,
    "idempotency_key_reused": IdempotencyKeyReused,
}


def problem_of(answer: Answer) -> Problem:
    """Return a refusal as an exception."""
    return problem_from(answer.status, answer.members)


def problem_from(status: int, members: Mapping[str, Any]) -> Problem:
    """Make the exception that the document's code names."""
    # An unknown route is "not_found" as well: only a document that names a job is about a job.
    code = str(members.get("code"))
    if code == "not_found" and "job_id" not in members:
        return Problem(status, members)
    return _BY_CODE.get(code, Problem)(status, members)


def lease_lost(lease_version: int, *, reason: str, detail: str) -> LeaseLost:
    """Make a LeaseLost that somebody else than the service's HTTP side has found."""
    return LeaseLost(
        409,
        {"code": "lease_lost", "detail": detail, "presented_version": lease_version, "reason": reason},
    )
