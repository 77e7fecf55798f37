"""What handlers return, raise and say that is not quite what it should be."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from decimal import Decimal
from typing import Any, cast

import pytest
from fencepost import Client, Complete, Fail, Job, Problem, Release, Worker
from fencepost.job import Desk
from fencepost.jobs import NewJob
from fencepost.leases import Lease
from fencepost.outcomes import end_of, raised, reduced
from fencepost.stops import LocalExpiry, Stop

from tests.clients.python.running import running

# ruff: noqa: ARG002 - a Desk is given more than this one looks at

MOST_BYTES = 16 << 20
FACTS: dict[str, Any] = {"id": "a", "lease_version": 7, "lease_seconds": 30, "deadline_at": None}


class Told:
    """A Desk that notes what it is told."""

    def __init__(self) -> None:
        self.progressed: list[tuple[float | None, str | None]] = []

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:
        self.progressed.append((percent, message))

    def checkpoint(self, lease: Lease, text: str) -> "Future[None]":
        raise AssertionError("nothing is stored")

    def verify(self, lease: Lease) -> "Future[None]":
        raise AssertionError("nothing is asked")

    def submit(self, lease: Lease, job: NewJob) -> Any:
        raise AssertionError("nothing is made")


@pytest.fixture
def desk() -> Told:
    return Told()


@pytest.fixture
def job(desk: Desk) -> Job:
    return Job(Lease(FACTS, stop=Stop(LocalExpiry(float("inf"))), deadline=float("inf"), asked_at=0.0), desk)


class SilentError(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("not this one either")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (404, "404"),
        (None, "None"),
        (LookupError("gone"), "gone"),
        (["a"], "['a']"),
        (SilentError(), "SilentError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_takes_any_message_and_can_be_reduced(message: object, text: str) -> None:
    end = end_of("a", 7, Fail(cast("str", message), details=[1]))
    assert json.loads(end.text)["error"]["message"] == text
    assert json.loads(reduced(end, "refused").text)["error"]["message"] == text


def test_a_failure_without_its_details_keeps_its_delay() -> None:
    members = json.loads(end_of("a", 7, Fail("no", details={1}, retry_after_seconds=9)).text)
    assert (members["retry_after_seconds"], list(members["error"]["details"])) == (9, ["refused"])


@pytest.mark.parametrize("seconds", [-1, 31_536_001, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [Release, lambda seconds: Fail("no", retry_after_seconds=seconds)])
def test_a_delay_that_the_service_refuses_is_an_error_where_it_is_said(
    make: Callable[[float], object], seconds: float
) -> None:
    with pytest.raises(ValueError, match="not within 0 and 31536000"):
        make(seconds)


def test_a_number_that_is_no_json_is_said_as_one_that_is(job: Job, desk: Told) -> None:
    job.progress(cast("float", Decimal("12.5")), "an eighth")
    assert desk.progressed == [(12.5, "an eighth")]
    assert type(desk.progressed[0][0]) is float


@pytest.mark.parametrize("message", [b"bytes", ["list"]])
def test_a_progress_message_that_is_no_text_is_an_error_where_it_is_said(job: Job, message: object) -> None:
    with pytest.raises(TypeError, match="not text"):
        job.progress(5, cast("str", message))


def test_a_checkpoint_that_no_call_can_carry_is_refused_where_it_is_given(job: Job) -> None:
    with pytest.raises(Problem) as refusal:
        job.save_checkpoint("x" * MOST_BYTES)
    assert (refusal.value.status, refusal.value.code) == (413, "too_large")


def test_the_report_of_an_exception_is_as_long_as_the_service_keeps_it() -> None:
    failure = raised(ValueError("x" * MOST_BYTES))
    assert isinstance(failure, Fail)
    error = json.loads(end_of("a", 7, failure).text)["error"]
    assert error["message"] == "x" * 16_384


def test_what_no_call_can_carry_ends_its_job(url: str, producer: Client, queue: str) -> None:
    # The service closes the connection on such a body: a worker that sends it never has an answer.
    worker = Worker(url, queues=[queue])

    @worker.handler()
    def give(job: Job) -> object:
        much = "x" * 2 * MOST_BYTES
        match job.kind:
            case "result":
                return Complete(much)
            case "message":
                raise Fail(much, retryable=False)
            case _:
                raise Fail("no", details=much, retryable=False)

    made = producer.submit_many([NewJob(kind, queue=queue) for kind in ("result", "message", "details")])
    with running(worker):
        errors = [producer.wait(each.id, 60)["error"] or {} for each in made]
    assert [error["type"] for error in errors] == ["result_refused", "Fail", "Fail"]
    assert errors[1]["message"].startswith("xxx")
    assert errors[2]["message"] == "no"
