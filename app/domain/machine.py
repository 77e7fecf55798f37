"""What follows when an attempt ends, and why a stale fencing token is refused.

    running ── complete ──▶ succeeded
       ├─ failed / stalled / deadline_exceeded ──▶ scheduled (backoff; ready when it is 0) or dead
       ├─ lease_expired ──▶ ready at once, or dead
       ├─ released ──▶ ready or scheduled; the attempt is given back
       └─ any of these after a cancel was asked for ──▶ cancelled

Everything here is decided from values that were read under a row lock; the store writes the decision
with ``job_id AND lease_version`` in its WHERE, so a decision taken for a lost lease writes nothing.
"""

from datetime import datetime
from typing import assert_never

import msgspec

from app.domain.job import Backoff, JobState, Outcome
from app.domain.retry import backoff_seconds


class Ending(msgspec.Struct, frozen=True):
    """Why an attempt ends.

    ``retry_after_seconds`` (failed) replaces the backoff, without jitter. ``delay_seconds`` is for
    released only. ``error`` is the JSON text of an error object, or None.
    """

    outcome: Outcome
    error: str | None = None
    retryable: bool = True
    retry_after_seconds: float | None = None
    delay_seconds: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """Where the job goes. ``delay_seconds`` None keeps the time at which it was due before."""

    state: JobState
    attempt: int
    delay_seconds: float | None = None


def decide(
    ending: Ending,
    *,
    attempt: int,
    max_attempts: int,
    cancel_requested: bool,
    backoff: Backoff,
    roll: float,
) -> Decision:
    """Return what becomes of a running job whose attempt number ``attempt`` (from 1) ends now.

    Completion is not decided here: a complete under the held version always wins. ``roll`` is the
    caller's random number in [0, 1) for the jitter.
    """
    counted = attempt - 1 if ending.outcome is Outcome.RELEASED else attempt
    if cancel_requested or ending.outcome is Outcome.CANCELLED:
        return Decision(JobState.CANCELLED, counted)
    match ending.outcome:
        case Outcome.RELEASED:
            return _after_wait(ending.delay_seconds or None, attempt=counted)
        case Outcome.LEASE_EXPIRED:
            if attempt >= max_attempts:
                return Decision(JobState.DEAD, attempt)
            return Decision(JobState.READY, attempt)
        case Outcome.FAILED | Outcome.STALLED | Outcome.DEADLINE_EXCEEDED:
            if attempt >= max_attempts or not ending.retryable:
                return Decision(JobState.DEAD, attempt)
            wait = ending.retry_after_seconds
            if wait is None:
                wait = backoff_seconds(backoff, failed_count=attempt, roll=roll)
            return _after_wait(wait, attempt=attempt)
        case Outcome.RUNNING | Outcome.SUCCEEDED:
            raise ValueError(f"{ending.outcome} does not end an attempt here")
        case _:
            assert_never(ending.outcome)


def _after_wait(wait_seconds: float | None, *, attempt: int) -> Decision:
    if wait_seconds is not None and wait_seconds > 0:
        return Decision(JobState.SCHEDULED, attempt, wait_seconds)
    return Decision(JobState.READY, attempt, wait_seconds)


def run_out_clock(
    *, now: datetime, expires_at: datetime, stalls_at: datetime | None, deadline_at: datetime | None
) -> Outcome | None:
    """Return which of the three clocks ended the attempt: the one that ran out first, None if none did.

    An expiry is never later than the deadline, so on a tie the deadline is the cause, then the
    missing progress, then the lease.
    """
    clocks = (
        (deadline_at, Outcome.DEADLINE_EXCEEDED),
        (stalls_at, Outcome.STALLED),
        (expires_at, Outcome.LEASE_EXPIRED),
    )
    run_out = [(at, outcome) for at, outcome in clocks if at is not None and at <= now]
    return min(run_out, key=lambda clock: clock[0])[1] if run_out else None


class Record(msgspec.Struct, frozen=True):
    """What is known of a presented version: its outcome, and the fingerprint of what settled it.

    ``fingerprint`` is None when no holder call ended the attempt (a clock, a forced cancel).
    """

    outcome: Outcome
    fingerprint: bytes | None


def is_repeat(record: Record | None, *, fingerprint: bytes | None) -> bool:
    """Tell whether a settling call repeats the accepted one, so that it is answered, not refused."""
    return record is not None and fingerprint is not None and record.fingerprint == fingerprint


def refusal_reason(record: Record | None) -> str:
    """Return the ``reason`` of a ``lease_lost`` refusal: what ended the presented version.

    None (no record) is ``unknown``: never granted, or the record is past its retention.
    """
    if record is None:
        return "unknown"
    match record.outcome:
        case Outcome.LEASE_EXPIRED:
            return "expired"
        case Outcome.SUCCEEDED:
            return "finished"
        case (
            Outcome.STALLED
            | Outcome.DEADLINE_EXCEEDED
            | Outcome.FAILED
            | Outcome.RELEASED
            | Outcome.CANCELLED
        ):
            return record.outcome.value
        case Outcome.RUNNING:
            raise ValueError("a running version is not refused")
        case _:
            assert_never(record.outcome)
