"""Every refusal this service can give, without a word of HTTP.

    FencepostError
    ├── InvalidRequest        invalid_request
    │   └── NotStrictJson     (the same code; the body's JSON itself)
    ├── MalformedJson         malformed_json
    ├── TooLarge              too_large
    ├── InvalidCursor         invalid_cursor
    ├── JobNotFound           job_not_found
    ├── LeaseLost             lease_lost
    ├── IdempotencyKeyReused  idempotency_key_reused
    ├── AlreadyFinished       already_finished
    ├── NotRedrivable         not_redrivable
    ├── NotEditable           not_editable
    ├── Unavailable           unavailable
    │   └── RolledBack        (the same code; nothing was kept, so it is run again first)
    └── Misconfigured         internal_error (mostly before the service starts)

The code is stable, the sentence may change. ``pointer`` is a JSON pointer into the request, or None.
"""


class FencepostError(Exception):
    code = "internal_error"

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer

    @property
    def members(self) -> dict[str, object]:
        """Extra members of the answer, by name."""
        return {}


class InvalidRequest(FencepostError):
    """``message`` says what is wrong with the place that ``pointer`` names; "" is the whole request."""

    code = "invalid_request"

    def __init__(self, message: str, *, pointer: str) -> None:
        super().__init__(f"{pointer or 'The request'}: {message}.", pointer=pointer)
        self.message = message


class NotStrictJson(InvalidRequest):
    """JSON that parses, yet could be confused or altered on its way: NaN, lone surrogates, depth, doubles."""


class MalformedJson(FencepostError):
    code = "malformed_json"


class TooLarge(FencepostError):
    code = "too_large"


class InvalidCursor(FencepostError):
    code = "invalid_cursor"


class JobNotFound(FencepostError):
    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__("No job has this id, or its retention is over.")
        self.job_id = job_id

    @property
    def members(self) -> dict[str, object]:
        return {"job_id": self.job_id}


class LeaseLost(FencepostError):
    """The presented (job_id, lease_version) is not held; nothing was changed."""

    code = "lease_lost"

    def __init__(
        self,
        *,
        job_id: str,
        presented_version: int,
        current_version: int | None,
        job_state: str | None,
        reason: str,
        pointer: str | None = None,
    ) -> None:
        super().__init__(
            f"The job is not running under lease_version {presented_version}; nothing was changed.",
            pointer=pointer,
        )
        self.job_id = job_id
        self.presented_version = presented_version
        self.current_version = current_version
        self.job_state = job_state
        self.reason = reason

    @property
    def members(self) -> dict[str, object]:
        return {
            "job_id": self.job_id,
            "presented_version": self.presented_version,
            "current_version": self.current_version,
            "job_state": self.job_state,
            "reason": self.reason,
        }


class IdempotencyKeyReused(FencepostError):
    code = "idempotency_key_reused"

    def __init__(self, *, job_id: str, pointer: str | None = None) -> None:
        super().__init__("This idempotency key belongs to another request.", pointer=pointer)
        self.job_id = job_id

    @property
    def members(self) -> dict[str, object]:
        return {"job_id": self.job_id}


class _StateConflict(FencepostError):
    sentence = ""

    def __init__(self, *, job_id: str, job_state: str) -> None:
        super().__init__(self.sentence.format(job_state))
        self.job_id = job_id
        self.job_state = job_state

    @property
    def members(self) -> dict[str, object]:
        return {"job_id": self.job_id, "job_state": self.job_state}


class AlreadyFinished(_StateConflict):
    code = "already_finished"
    sentence = "The job is {} and cannot be cancelled."


class NotRedrivable(_StateConflict):
    code = "not_redrivable"
    sentence = "Only a dead or cancelled job can be redriven; this one is {}."


class NotEditable(_StateConflict):
    code = "not_editable"
    sentence = "Only a scheduled or ready job can be edited; this one is {}."


class Unavailable(FencepostError):
    """The database does not answer; whether the call was done is unknown, repeat it."""

    code = "unavailable"


class RolledBack(Unavailable):
    """The database undid the transaction, or lost it before its commit: nothing was kept, run it again."""


class Misconfigured(FencepostError):
    """A setting cannot be used; the sentence never quotes a value that may hold a password."""
