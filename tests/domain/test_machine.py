"""What follows when an attempt ends."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.job import Backoff, BackoffType, JobState, Outcome
from app.domain.machine import (
    Decision,
    Ending,
    Record,
    decide,
    is_repeat,
    refusal_reason,
    run_out_clock,
)

ENDINGS = [
    Outcome.FAILED,
    Outcome.LEASE_EXPIRED,
    Outcome.STALLED,
    Outcome.DEADLINE_EXCEEDED,
    Outcome.RELEASED,
    Outcome.CANCELLED,
]
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
FIXED_5 = Backoff(BackoffType.FIXED, base_seconds=5.0, jitter=0.0)

backoffs = st.builds(
    Backoff,
    type=st.sampled_from(BackoffType),
    base_seconds=st.floats(0, 86_400),
    factor=st.floats(1, 10),
    max_seconds=st.floats(0, 604_800),
    jitter=st.floats(0, 1),
)
endings = st.builds(
    Ending,
    outcome=st.sampled_from(ENDINGS),
    retryable=st.booleans(),
    retry_after_seconds=st.none() | st.floats(0, 31_536_000),
    delay_seconds=st.floats(0, 31_536_000),
)
rolls = st.floats(0, 1, exclude_max=True)


def decide_simply(
    ending: Ending, *, attempt: int = 1, max_attempts: int = 3, cancel: bool = False
) -> Decision:
    return decide(
        ending,
        attempt=attempt,
        max_attempts=max_attempts,
        cancel_requested=cancel,
        backoff=FIXED_5,
        roll=0.5,
    )


@given(endings, backoffs, rolls, st.booleans(), st.data())
def test_every_ending_leads_to_a_legal_state_within_the_attempts_allowed(
    ending: Ending, backoff: Backoff, roll: float, cancel_requested: bool, data: st.DataObject
) -> None:
    max_attempts = data.draw(st.integers(1, 1000))
    attempt = data.draw(st.integers(1, max_attempts))
    decision = decide(
        ending,
        attempt=attempt,
        max_attempts=max_attempts,
        cancel_requested=cancel_requested,
        backoff=backoff,
        roll=roll,
    )
    assert decision.state in (JobState.READY, JobState.SCHEDULED, JobState.DEAD, JobState.CANCELLED)
    assert 0 <= decision.attempt <= max_attempts
    assert decision.attempt == attempt - (ending.outcome is Outcome.RELEASED)
    if decision.state in (JobState.READY, JobState.SCHEDULED):
        # Who waits may run again, so an attempt must be left.
        assert decision.attempt < max_attempts
        assert not cancel_requested
    if decision.state is JobState.SCHEDULED:
        assert decision.delay_seconds is not None
        assert decision.delay_seconds > 0
    else:
        assert not decision.delay_seconds
    if cancel_requested or ending.outcome is Outcome.CANCELLED:
        assert decision.state is JobState.CANCELLED


@pytest.mark.parametrize(
    "outcome", [Outcome.FAILED, Outcome.STALLED, Outcome.DEADLINE_EXCEEDED, Outcome.LEASE_EXPIRED]
)
def test_the_last_attempt_that_ends_without_success_leaves_the_job_dead(outcome: Outcome) -> None:
    assert decide_simply(Ending(outcome), attempt=3) == Decision(JobState.DEAD, 3)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.STALLED, Outcome.DEADLINE_EXCEEDED])
def test_an_attempt_that_ends_early_is_followed_by_the_backoff(outcome: Outcome) -> None:
    assert decide_simply(Ending(outcome), attempt=2) == Decision(JobState.SCHEDULED, 2, 5.0)


def test_an_expired_lease_puts_the_job_back_at_once_with_its_old_due_time() -> None:
    assert decide_simply(Ending(Outcome.LEASE_EXPIRED), attempt=2) == Decision(JobState.READY, 2, None)


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_release_gives_the_attempt_back_even_the_last_one(attempt: int) -> None:
    assert decide_simply(Ending(Outcome.RELEASED), attempt=attempt) == Decision(JobState.READY, attempt - 1)


def test_a_release_with_a_delay_is_scheduled() -> None:
    ending = Ending(Outcome.RELEASED, delay_seconds=0.25)
    assert decide_simply(ending) == Decision(JobState.SCHEDULED, 0, 0.25)


def test_a_failure_that_is_not_retryable_leaves_the_job_dead_at_once() -> None:
    ending = Ending(Outcome.FAILED, retryable=False, retry_after_seconds=1.0)
    assert decide_simply(ending) == Decision(JobState.DEAD, 1)


def test_retry_after_replaces_the_backoff_without_jitter() -> None:
    decision = decide(
        Ending(Outcome.FAILED, retry_after_seconds=7.0),
        attempt=1,
        max_attempts=2,
        cancel_requested=False,
        backoff=Backoff(jitter=1.0),
        roll=0.999,
    )
    assert decision == Decision(JobState.SCHEDULED, 1, 7.0)


def test_retry_after_zero_is_ready_at_once_and_due_now() -> None:
    ending = Ending(Outcome.FAILED, retry_after_seconds=0.0)
    assert decide_simply(ending) == Decision(JobState.READY, 1, 0.0)


@pytest.mark.parametrize("outcome", ENDINGS)
def test_a_cancel_that_was_asked_for_wins_over_every_ending(outcome: Outcome) -> None:
    counted = 1 if outcome is Outcome.RELEASED else 2
    decision = decide_simply(Ending(outcome, delay_seconds=9.0), attempt=2, cancel=True)
    assert decision == Decision(JobState.CANCELLED, counted)


@pytest.mark.parametrize("outcome", [Outcome.RUNNING, Outcome.SUCCEEDED])
def test_an_attempt_that_runs_on_or_succeeded_is_not_decided_here(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match="does not end an attempt here"):
        decide_simply(Ending(outcome))


instants = st.integers(-100, 100).map(lambda seconds: NOW + timedelta(seconds=seconds))


@given(instants, st.none() | instants, st.none() | instants)
def test_the_clock_that_ran_out_first_is_the_cause(
    expires_at: datetime, stalls_at: datetime | None, deadline_at: datetime | None
) -> None:
    outcome = run_out_clock(now=NOW, expires_at=expires_at, stalls_at=stalls_at, deadline_at=deadline_at)
    at = {
        Outcome.LEASE_EXPIRED: expires_at,
        Outcome.STALLED: stalls_at,
        Outcome.DEADLINE_EXCEEDED: deadline_at,
    }
    known = [each for each in at.values() if each is not None]
    if outcome is None:
        assert all(each > NOW for each in known)
    else:
        assert at[outcome] == min(known)
        assert min(known) <= NOW


@pytest.mark.parametrize(
    ("stalls_at", "deadline_at", "outcome"),
    [
        (NOW, NOW, Outcome.DEADLINE_EXCEEDED),
        (NOW, None, Outcome.STALLED),
        (None, NOW, Outcome.DEADLINE_EXCEEDED),
        (None, None, Outcome.LEASE_EXPIRED),
    ],
)
def test_on_a_tie_the_deadline_is_the_cause_then_the_progress(
    stalls_at: datetime | None, deadline_at: datetime | None, outcome: Outcome
) -> None:
    assert run_out_clock(now=NOW, expires_at=NOW, stalls_at=stalls_at, deadline_at=deadline_at) is outcome


def test_a_clock_runs_out_at_its_very_instant() -> None:
    just_ahead = NOW + timedelta(microseconds=1)
    assert run_out_clock(now=NOW, expires_at=just_ahead, stalls_at=None, deadline_at=None) is None
    assert run_out_clock(now=NOW, expires_at=NOW, stalls_at=None, deadline_at=None) is Outcome.LEASE_EXPIRED


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.LEASE_EXPIRED, "expired"),
        (Outcome.STALLED, "stalled"),
        (Outcome.DEADLINE_EXCEEDED, "deadline_exceeded"),
        (Outcome.FAILED, "failed"),
        (Outcome.RELEASED, "released"),
        (Outcome.CANCELLED, "cancelled"),
        (Outcome.SUCCEEDED, "finished"),
    ],
)
def test_a_refusal_names_what_ended_the_version(outcome: Outcome, reason: str) -> None:
    assert refusal_reason(Record(outcome, None)) == reason


def test_a_version_without_a_record_is_refused_as_unknown() -> None:
    assert refusal_reason(None) == "unknown"


def test_a_running_version_has_no_refusal() -> None:
    with pytest.raises(ValueError, match="running"):
        refusal_reason(Record(Outcome.RUNNING, None))


def test_only_the_same_call_repeats_an_accepted_one() -> None:
    accepted = Record(Outcome.FAILED, b"this call")
    assert is_repeat(accepted, fingerprint=b"this call")
    assert not is_repeat(accepted, fingerprint=b"that call")


def test_nothing_repeats_an_attempt_that_a_clock_ended() -> None:
    assert not is_repeat(Record(Outcome.LEASE_EXPIRED, None), fingerprint=b"any call")
    assert not is_repeat(None, fingerprint=b"any call")
