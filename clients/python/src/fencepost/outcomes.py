"""How an attempt ends: what handlers return or raise, and what is sent for it."""

import json
import traceback
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, assert_never

from fencepost import wire
from fencepost.jobs import NewJob
from fencepost.stops import StopReason

Verb = Literal["complete", "fail", "release"]

# The service cuts a message here; of 256 KiB of details a traceback's end is what helps.
_MESSAGE_CHARACTERS = 16_384
_TRACEBACK_CHARACTERS = 8_000
# What is left of the message of a failure that was refused.
_REDUCED_CHARACTERS = 1_000
# The contract's limit for a delay: a year.
_LONGEST_SECONDS = 31_536_000


class Complete:
    """Success with a result and follow-up jobs, which are made in the same transaction as the success."""

    __slots__ = ("enqueue", "result")

    def __init__(self, result: object = None, *, enqueue: Sequence[NewJob] = ()) -> None:
        self.result = result
        self.enqueue = enqueue


class Fail(Exception):
    """Failure, returned or raised. Without ``retry_after_seconds`` the job's own backoff counts."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        retry_after_seconds: float | None = None,
        type: str = "Fail",  # noqa: A002 - the contract's word
        details: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.retry_after_seconds = None if retry_after_seconds is None else _delay(retry_after_seconds)
        self.type = type
        self.details = details


class Release(Exception):
    """Give the job back, returned or raised: the attempt does not count. The delay is a year at most."""

    def __init__(self, delay_seconds: float = 0.0, reason: str | None = None) -> None:
        super().__init__(reason or "released")
        self.delay_seconds = _delay(delay_seconds)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        # It crosses from a handler's process with what it was made of.
        return type(self), (self.delay_seconds, self.reason)


class Settled:
    """The type of SETTLED."""


SETTLED = Settled()
"""Returned by a handler that completed the job in its own SQL transaction: nothing is sent."""

Outcome = Complete | Fail | Release | Settled


class End(NamedTuple):
    """One item of a call that ends attempts: the verb, and the item as JSON."""

    verb: Verb
    text: str


def returned(value: object) -> Outcome:
    """Read what a handler returned."""
    if isinstance(value, Complete | Fail | Release | Settled):
        return value
    return Complete(value)


def raised(error: BaseException) -> Outcome:
    """Read what a handler raised."""
    if isinstance(error, Fail | Release):
        return error
    trace = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS:]
    message = _sentence(error)[:_MESSAGE_CHARACTERS]
    return Fail(message, type=type(error).__name__, details={"traceback": trace})


def under(outcome: Outcome, reason: StopReason | None) -> Outcome | None:
    """Return what an outcome means for a handler that was told to stop; None: nothing may be sent."""
    match reason:
        case None:
            return outcome
        case "lease_lost":
            return None
        case "cancelled":
            if isinstance(outcome, Complete | Settled):
                return outcome
            details = outcome.details if isinstance(outcome, Fail) else None
            return Fail(_sentence(outcome), type="cancelled", details=details)
        case "shutdown":
            return Release(reason="shutdown") if isinstance(outcome, Fail) else outcome
        case _:
            assert_never(reason)


def end_of(job_id: str, lease_version: int, outcome: Complete | Fail | Release) -> End:
    """Return what is sent for an outcome; a result that is no JSON is a failure of its own."""
    pair = {"job_id": job_id, "lease_version": lease_version}
    try:
        return _end(pair, outcome)
    except Exception as error:  # noqa: BLE001 - the values are the handler's, and may do anything
        if isinstance(outcome, Fail):
            # A failure report lands: without what cannot be sent.
            said = Fail(
                _text(outcome.message)[:_MESSAGE_CHARACTERS],
                type=_text(outcome.type),
                retryable=outcome.retryable,
                retry_after_seconds=outcome.retry_after_seconds,
                details={"refused": _sentence(error)},
            )
        else:
            said = result_refused(_sentence(error))
        return _end(pair, said)


def plain(outcome: Outcome) -> Outcome:
    """Return what would be sent for an outcome, in our own classes and JSON, as any process can read it."""
    if isinstance(outcome, Settled):
        return outcome
    end = end_of("", 0, outcome)
    members = json.loads(end.text)
    match end.verb:
        case "complete":
            return Complete(
                members["result"], enqueue=[NewJob(**body) for body in members.get("enqueue", [])]
            )
        case "fail":
            error = members["error"]
            return Fail(
                error["message"],
                retryable=members["retryable"],
                retry_after_seconds=members.get("retry_after_seconds"),
                type=error["type"],
                details=error.get("details"),
            )
        case "release":
            return Release(members["delay_seconds"], members.get("reason"))
        case _:
            assert_never(end.verb)


def result_refused(detail: str) -> Fail:
    """The failure of a handler whose result nobody takes: another try would give the same."""
    return Fail(detail, type="result_refused", retryable=False)


def reduced(end: End, detail: str) -> End:
    """Return what is sent instead of an end that was refused alone; the same end when nothing is left.

    For a result that is a failure with the refusal's detail, for a report the same one without what may be
    too much of it.
    """
    members = json.loads(end.text)
    match end.verb:
        case "complete":
            refused = result_refused(detail[:_REDUCED_CHARACTERS])
            return end_of(members["job_id"], members["lease_version"], refused)
        case "fail":
            error = members["error"]
            members["error"] = {"type": error["type"], "message": error["message"][:_REDUCED_CHARACTERS]}
        case "release":
            members.pop("reason", None)
        case _:
            assert_never(end.verb)
    return End(end.verb, wire.text_of(members))


def _sentence(error: object) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an exception that cannot say what it is
        return type(error).__name__


def _text(value: object) -> str:
    # A message is often an error, or its first argument, which is anything.
    return value if isinstance(value, str) else _sentence(value)


def _delay(seconds: float) -> float:
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"the delay is {seconds} s, not within 0 and {_LONGEST_SECONDS}")
    return float(seconds)


def _end(pair: dict[str, Any], outcome: Complete | Fail | Release) -> End:
    verb, members = _members(outcome)
    return End(verb, wire.text_of(pair | members))


def _members(outcome: Complete | Fail | Release) -> tuple[Verb, dict[str, Any]]:
    match outcome:
        case Complete():
            enqueue = {"enqueue": [job.body() for job in outcome.enqueue]} if outcome.enqueue else {}
            return "complete", {"result": outcome.result, **enqueue}
        case Fail():
            error: dict[str, Any] = {"type": _text(outcome.type), "message": _text(outcome.message)}
            if outcome.details is not None:
                error["details"] = outcome.details
            members: dict[str, Any] = {"error": error, "retryable": bool(outcome.retryable)}
            if outcome.retry_after_seconds is not None:
                members["retry_after_seconds"] = outcome.retry_after_seconds
            return "fail", members
        case Release():
            members = {"delay_seconds": outcome.delay_seconds}
            if outcome.reason is not None:
                members["reason"] = outcome.reason
            return "release", members
        case _:
            assert_never(outcome)
