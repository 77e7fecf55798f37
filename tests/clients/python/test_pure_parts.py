"""The parts of the Python client that decide without a service."""

import json
import pickle
from collections.abc import Mapping
from typing import Any, cast

import httpx
import pytest
from fencepost import (
    SETTLED,
    AsyncJob,
    Complete,
    Fail,
    IdempotencyKeyReused,
    Job,
    LeaseLost,
    Problem,
    Release,
    Worker,
)
from fencepost import stops as stops_module
from fencepost.answers import Answer, read
from fencepost.errors import problem_of
from fencepost.handlers import Handlers
from fencepost.job import Desk
from fencepost.leases import Lease, granted
from fencepost.outcomes import Outcome, end_of, raised, reduced, under
from fencepost.pauses import Pauses, is_weather
from fencepost.stops import LocalExpiry, Stop, StopReason
from fencepost.worker import _new_worker_id
from hypothesis import given
from hypothesis import strategies as st

FACTS: Mapping[str, Any] = {"id": "a", "lease_version": 7, "lease_seconds": 30, "deadline_at": None}
OUTCOMES: list[Outcome] = [Complete(1), Fail("no"), Release(3), SETTLED]


def answer(status: int, **options: Any) -> Answer:
    return read(httpx.Response(status, **{"json": {}} | options))


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stops_module, "now", clock)
    return clock


def test_a_lease_counts_from_before_the_call_that_granted_it(clock: Clock) -> None:
    lease = granted(FACTS, asked_at=100.0, server_time="2026-01-01T00:00:00Z")
    clock.at = 129.9
    assert not lease.stop.is_set()
    clock.at = 130.0
    assert lease.stop.reason == "lease_lost"


def test_a_renewal_counts_from_when_it_was_sent(clock: Clock) -> None:
    lease = granted(FACTS, asked_at=100.0, server_time="2026-01-01T00:00:00Z")
    lease.renew(120.0)
    clock.at = 149.9
    assert lease.stop.reason is None
    clock.at = 150.0
    assert lease.stop.reason == "lease_lost"


def test_no_renewal_moves_a_lease_past_its_deadline(clock: Clock) -> None:
    facts = {**FACTS, "deadline_at": "2026-01-01T00:00:40Z"}
    lease = granted(facts, asked_at=100.0, server_time="2026-01-01T00:00:00Z")
    lease.renew(120.0)
    clock.at = 140.0
    assert lease.stop.reason == "lease_lost"


def test_a_lease_that_was_seen_as_lost_stays_lost(clock: Clock) -> None:
    lease = granted(FACTS, asked_at=100.0, server_time="2026-01-01T00:00:00Z")
    clock.at = 131.0
    assert lease.stop.is_set()
    lease.renew(130.0)
    assert lease.stop.reason == "lease_lost"


@pytest.mark.parametrize("second", ["cancelled", "shutdown"])
def test_the_first_reason_to_stop_counts_but_for_a_lost_lease(second: StopReason) -> None:
    stop = Stop(LocalExpiry(float("inf")))
    stop.set("shutdown" if second == "cancelled" else "cancelled")
    stop.set(second)
    assert stop.reason != second
    stop.set("lease_lost")
    assert stop.reason == "lease_lost"
    assert stop.wait(0)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_lost_lease_sends_nothing_whatever_the_handler_does(outcome: Outcome) -> None:
    assert under(outcome, "lease_lost") is None


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_without_a_stop_an_outcome_is_what_it_is(outcome: Outcome) -> None:
    assert under(outcome, None) is outcome


@pytest.mark.parametrize("reason", ["cancelled", "shutdown"])
def test_a_result_counts_after_a_stop(reason: StopReason) -> None:
    result = Complete(1)
    assert under(result, reason) is result


@pytest.mark.parametrize("error", [Fail("no"), Release(3), LookupError("no")])
def test_whoever_raises_after_a_cancel_is_cancelled(error: BaseException) -> None:
    sent = under(raised(error), "cancelled")
    assert isinstance(sent, Fail)
    assert sent.type == "cancelled"


def test_whoever_raises_on_shutdown_gives_the_job_back() -> None:
    sent, own = under(raised(LookupError()), "shutdown"), Release(3)
    assert isinstance(sent, Release)
    assert (sent.delay_seconds, under(own, "shutdown")) == (0, own)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_an_end_carries_the_result_as_it_is(result: object) -> None:
    verb, text = end_of("a", 7, Complete(result))
    assert (verb, json.loads(text)) == ("complete", {"job_id": "a", "lease_version": 7, "result": result})


def circle() -> list[object]:
    around: list[object] = []
    around.append(around)
    return around


@pytest.mark.parametrize(
    "result", [{1}, float("inf"), object(), circle(), {(1, 2): 3}], ids=lambda value: type(value).__name__
)
def test_a_result_that_is_no_json_is_a_failure_for_good(result: object) -> None:
    verb, text = end_of("a", 7, Complete(result))
    members = json.loads(text)
    assert (verb, members["error"]["type"], members["retryable"]) == ("fail", "result_refused", False)


@pytest.mark.parametrize("details", [{1}, float("nan"), object()], ids=lambda value: type(value).__name__)
def test_a_failure_lands_without_the_details_that_are_no_json(details: object) -> None:
    verb, text = end_of("a", 7, Fail("no such card", type="card", details=details))
    members = json.loads(text)
    assert (verb, members["error"]["type"], members["error"]["message"]) == ("fail", "card", "no such card")
    assert (members["retryable"], list(members["error"]["details"])) == (True, ["refused"])


LONG = "ü" * 1500


@pytest.mark.parametrize(
    ("outcome", "verb", "members"),
    [
        (
            Complete("too large"),
            "fail",
            {"error": {"type": "result_refused", "message": LONG[:1000]}, "retryable": False},
        ),
        (
            Fail(LONG, type="card", details=[1], retry_after_seconds=9),
            "fail",
            {
                "error": {"type": "card", "message": LONG[:1000]},
                "retryable": True,
                "retry_after_seconds": 9,
            },
        ),
        (Release(60, "busy"), "release", {"delay_seconds": 60}),
    ],
    ids=["result", "failure", "release"],
)
def test_a_refused_end_is_reduced_once_and_then_nothing_is_left_to_send(
    outcome: Complete | Fail | Release, verb: str, members: dict[str, object]
) -> None:
    sent = reduced(end_of("a", 7, outcome), LONG)
    assert (sent.verb, json.loads(sent.text)) == (verb, {"job_id": "a", "lease_version": 7, **members})
    assert reduced(sent, "still") == sent


class SilentError(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("not this one either")


def test_an_exception_that_cannot_be_printed_is_a_failure_all_the_same() -> None:
    outcome = raised(SilentError())
    assert isinstance(outcome, Fail)
    assert (outcome.type, outcome.message) == ("SilentError", "SilentError")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_pauses_grow_from_a_tenth_to_ten_seconds_within_half_and_whole(chances: list[float]) -> None:
    draws = iter(chances)
    pauses = Pauses(lambda low, high: low + (high - low) * next(draws))
    for number in range(len(chances)):
        whole = min(0.1 * 2**number, 10.0)
        assert whole / 2 <= pauses.next() <= whole


def test_retry_after_is_the_least_pause() -> None:
    assert Pauses().next(answer(503, headers={"Retry-After": "4"})) == 4.0
    assert Pauses().next(answer(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})) <= 0.1


@pytest.mark.parametrize(
    ("status", "is_so"), [(200, False), (404, False), (409, False), (408, True), (429, True), (503, True)]
)
def test_only_5xx_408_and_429_are_repeated(status: int, is_so: bool) -> None:
    assert is_weather(answer(status)) is is_so


def test_a_refusal_is_read_by_its_code() -> None:
    lost = problem_of(answer(409, json={"code": "lease_lost", "current_version": 9, "reason": "stalled"}))
    assert isinstance(lost, LeaseLost)
    assert (lost.status, lost.current_version, lost.reason) == (409, 9, "stalled")
    reused = problem_of(answer(422, json={"code": "idempotency_key_reused", "job_id": "b"}))
    assert isinstance(reused, IdempotencyKeyReused)
    assert reused.job_id == "b"


def test_what_a_proxy_answers_is_a_problem_as_well() -> None:
    problem = problem_of(answer(403, json=None, text="<html>go away</html>"))
    assert type(problem) is Problem
    assert (problem.status, problem.code) == (403, "http_403")


@pytest.mark.parametrize(
    "error",
    [
        Fail("no", type="card", details=[1], retryable=False),
        Release(3, "later"),
        LeaseLost(409, {"reason": "stalled"}),
    ],
)
def test_what_crosses_to_a_process_comes_back_whole(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - it is our own
    assert (type(copy), copy.__dict__, str(copy)) == (type(error), error.__dict__, str(error))


def in_a_module(job: Job) -> None:
    pass


async def in_a_loop(job: AsyncJob) -> None:
    pass


class AsyncCallable:
    async def __call__(self, job: AsyncJob) -> None:
        pass


def test_a_handler_runs_where_it_belongs() -> None:
    handlers = Handlers()
    handlers.add("a", in_a_module, process=False)
    handlers.add("b", in_a_loop, process=False)
    handlers.add("c", in_a_module, process=True)
    handlers.add("d", AsyncCallable(), process=False)
    rooms = [handler.room for kind in "abcd" if (handler := handlers.find(kind)) is not None]
    assert rooms == ["thread", "loop", "process", "loop"]
    assert handlers.find("e") is None


def test_a_handler_in_a_process_can_be_found_by_its_name() -> None:
    with pytest.raises(ValueError, match="define it in a module"):
        Handlers().add("a", lambda _: None, process=True)
    with pytest.raises(ValueError, match="plain function"):
        Handlers().add("a", in_a_loop, process=True)


@pytest.mark.parametrize("kind", ["a", None])
def test_a_kind_has_one_handler(kind: str | None) -> None:
    handlers = Handlers()
    handlers.add(kind, in_a_module, process=False)
    with pytest.raises(ValueError, match="already"):
        handlers.add(kind, in_a_module, process=False)


def test_a_worker_refuses_options_that_cannot_be() -> None:
    with pytest.raises(TypeError, match="list of names"):
        Worker(queues="mail")
    with pytest.raises(ValueError, match="concurrency"):
        Worker(queues=["mail"], concurrency=1001)
    with pytest.raises(RuntimeError, match="no handler"):
        Worker(queues=["mail"]).run(handle_signals=False)


@pytest.mark.parametrize("host", ["mail-1.example.org", "_büro 7", "", "x" * 300])
def test_a_worker_has_a_name_that_the_service_takes(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    names = {_new_worker_id() for _ in range(2)}
    assert len(names) == 2
    for name in names:
        assert len(name) <= 128
        assert name[0].isascii()
        assert name[0].isalnum()
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.:ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def test_progress_is_checked_where_it_is_said() -> None:
    lease = Lease(FACTS, stop=Stop(LocalExpiry(float("inf"))), deadline=float("inf"), asked_at=0.0)
    job = Job(lease, cast("Desk", None))
    with pytest.raises(ValueError, match="percent"):
        job.progress(101)
    with pytest.raises(ValueError, match="characters"):
        job.progress(message="x" * 1025)
