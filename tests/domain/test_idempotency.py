"""Two requests are one when they mean the same."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.idempotency import complete_fingerprint, fingerprint, submit_fingerprint
from app.domain.job import Backoff, BackoffType, JobSpec, Parent

BASE = JobSpec(kind="email")
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def changed(**members: Any) -> bytes:
    return submit_fingerprint(msgspec.structs.replace(BASE, **members))


def test_a_default_that_is_written_out_is_the_same_request() -> None:
    spelled_out = JobSpec(
        kind="email",
        queue="default",
        payload="null",
        priority=0,
        max_attempts=10,
        backoff=Backoff(BackoffType.EXPONENTIAL, 5.0, 2.0, 3600.0, 0.1),
        metadata={},
    )
    assert submit_fingerprint(spelled_out) == submit_fingerprint(BASE)


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "sms"},
        {"queue": "other"},
        {"payload": "0"},
        {"priority": 1},
        {"run_at": NOON},
        {"delay_seconds": 0.0},
        {"delay_seconds": 5.0},
        {"max_attempts": 9},
        {"backoff": Backoff(BackoffType.LINEAR)},
        {"backoff": Backoff(base_seconds=6.0)},
        {"backoff": Backoff(factor=3.0)},
        {"backoff": Backoff(max_seconds=60.0)},
        {"backoff": Backoff(jitter=0.0)},
        {"max_runtime_seconds": 5.0},
        {"progress_timeout_seconds": 5.0},
        {"metadata": {"a": "b"}},
        {"parent": Parent("p", 1)},
    ],
    ids="-".join,
)
def test_every_member_of_a_job_counts(members: dict[str, Any]) -> None:
    assert changed(**members) != submit_fingerprint(BASE)


@pytest.mark.parametrize(
    "members",
    [
        {"caller": "somebody"},
        {"idempotency_key": "k"},
        {"traceparent": "00-x"},
        {"tracestate": "a=b"},
        {"fingerprint": b"old"},
    ],
    ids="-".join,
)
def test_who_asks_and_how_often_does_not_count(members: dict[str, Any]) -> None:
    assert changed(**members) == submit_fingerprint(BASE)


@pytest.mark.parametrize(
    "member",
    ["delay_seconds", "max_runtime_seconds", "progress_timeout_seconds", "base_seconds", "max_seconds"],
)
def test_a_duration_that_another_language_computes_is_the_same_to_the_microsecond(member: str) -> None:
    def asked(seconds: float) -> bytes:
        if member in {"base_seconds", "max_seconds"}:
            return changed(backoff=msgspec.structs.replace(Backoff(), **{member: seconds}))
        return changed(**{member: seconds})

    assert asked(1.9409999999999998) == asked(1.941)
    assert asked(1.941001) != asked(1.941)


def test_the_parent_job_counts_and_its_lease_version_does_not() -> None:
    assert changed(parent=Parent("p", 1)) == changed(parent=Parent("p", 2))
    assert changed(parent=Parent("p", 1)) != changed(parent=Parent("q", 1))


def test_a_delay_is_never_the_same_as_a_time() -> None:
    # Both are text in the end: neither may be mistaken for the other.
    assert changed(delay_seconds=60.0) != changed(run_at=NOON + timedelta(seconds=60))
    assert changed(delay_seconds=60.0) == changed(delay_seconds=60.0)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1)),  # noqa: DTZ001
    st.integers(-23 * 60, 23 * 60),
)
def test_one_instant_is_one_request_whatever_its_offset(naive: datetime, offset_minutes: int) -> None:
    at = naive.replace(tzinfo=UTC)
    elsewhere = at.astimezone(timezone(timedelta(minutes=offset_minutes)))
    assert changed(run_at=elsewhere) == changed(run_at=at)
    assert changed(run_at=at + timedelta(microseconds=1)) != changed(run_at=at)


def test_white_space_and_member_order_of_a_payload_do_not_count() -> None:
    assert changed(payload='{"a": 1, "b":\n[2]}') == changed(payload='{"b":[2],"a":1}')


def test_lookalike_payloads_are_different_requests() -> None:
    payloads = ["1", "1.0", "true", '"1"', "[1]", "null", '{"a":null}', "{}", '""', "false", "0"]
    assert len({changed(payload=payload) for payload in payloads}) == len(payloads)


def test_metadata_order_does_not_count() -> None:
    assert changed(metadata={"a": "1", "b": "2"}) == changed(metadata={"b": "2", "a": "1"})


def test_the_verb_counts() -> None:
    assert fingerprint("fail", {"a": 1}, opaque={}) != fingerprint("release", {"a": 1}, opaque={})


@given(st.text(max_size=20), st.text(max_size=20))
def test_text_cannot_pose_as_structure(one: str, other: str) -> None:
    split = fingerprint("v", {"a": one, "b": other}, opaque={})
    assert split != fingerprint("v", {"a": one + other, "b": ""}, opaque={}) or other == ""


def test_an_opaque_null_is_the_same_as_none_and_as_its_text() -> None:
    assert fingerprint("v", {}, opaque={"result": None}) == fingerprint("v", {}, opaque={"result": " null"})


def test_a_completion_that_says_nothing_else_has_the_fingerprint_of_its_members() -> None:
    assert complete_fingerprint(None, ()) == fingerprint("complete", {"enqueue": []}, opaque={"result": None})
    assert complete_fingerprint("1", ()) != complete_fingerprint(None, ())
