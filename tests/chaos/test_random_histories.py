"""The checker against random histories: silent on every legal one, and it sees what is planted into them."""

import copy
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.chaos.checker import check
from tests.chaos.facts import Verdict, gather
from tests.chaos.history import Answered, Asked, Event, Listed
from tests.chaos.lease_rules import stale_words
from tests.chaos.model_service import STEP_SECONDS, Fate, ModelService, Timing

PROFILE = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

# Twice a step and more: many calls overlap.
SECONDS = st.floats(0.1, 2.5 * STEP_SECONDS)
FATES = st.sampled_from([Fate.ANSWERED] * 6 + [Fate.DONE_UNANSWERED, Fate.NOT_DONE, Fate.FAILED])
TIMINGS = st.builds(Timing, SECONDS, SECONDS, FATES)
VERBS = st.sampled_from(["complete", "complete", "fail", "release", "heartbeat"])
RESULTS = st.sampled_from([{"result": "a"}, {"result": "b"}])


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Draw a legal history of up to 40 steps."""
    service = ModelService()
    for step in range(draw(st.integers(1, 40))):
        deed = draw(st.sampled_from(["submit", "lease", "say", "say", "say", "cancel", "expire", "expire"]))
        if deed == "submit" or not service.job_ids:
            key = draw(st.sampled_from([None, "k1", "k2"]))
            # The same key asks for the same job.
            mark, attempts = (f"m{step}", draw(st.integers(1, 4))) if key is None else (key, 3)
            service.submit(mark, key, attempts, draw(TIMINGS))
        elif deed == "expire":
            service.expire(draw(st.sampled_from(service.job_ids)))
        elif deed == "cancel":
            service.cancel(draw(st.sampled_from(service.job_ids)), draw(TIMINGS), force=draw(st.booleans()))
        elif deed == "lease" or not service.told:
            worker = draw(st.sampled_from(["w1", "w2"]))
            service.lease(worker, draw(st.sampled_from(["r1", "r2", f"r{step}"])), draw(TIMINGS))
        else:
            job_id, version = draw(st.sampled_from(service.told))
            service.say(draw(VERBS), job_id, version, draw(RESULTS), draw(TIMINGS))
    return service.finish()


@PROFILE
@given(histories())
def test_no_legal_history_is_accused(events: list[Event]) -> None:
    assert check(events).violations == ()


Plant = Callable[[list[Event]], Iterator[list[Event]]]


def a_job_vanishes(events: list[Event]) -> Iterator[list[Event]]:
    """Take a job out of the lists, once for each that was acknowledged."""
    for job in gather(events).jobs.values():
        if job.wishes:
            yield [
                Listed(event.at, event.state, [row for row in event.jobs if row["id"] != job.job_id])
                if isinstance(event, Listed)
                else event
                for event in events
            ]


def a_stale_call_is_accepted(events: list[Event]) -> Iterator[list[Event]]:
    for job in gather(events).jobs.values():
        for word, _ in stale_words(job):
            if word.verdict is Verdict.REFUSED and word.verb == "heartbeat":
                yield _with_answer(events, word.call.asked.call, status=200, body={})


def an_accepted_complete_is_undone(events: list[Event]) -> Iterator[list[Event]]:
    for job in gather(events).jobs.values():
        for word in job.completes:
            if word.verdict.is_success:
                changed = copy.deepcopy(events)
                for event in changed:
                    for row in event.jobs if isinstance(event, Listed) else []:
                        if row["id"] == job.job_id:
                            row["result"] = "another"
                yield changed


def a_version_is_granted_twice(events: list[Event]) -> Iterator[list[Event]]:
    for job in gather(events).jobs.values():
        for grant in job.grants:
            body = {"worker_id": "thief", "request_id": "theirs"}
            asked = Asked(grant.call.began_at, "theft", "thief", "r0", "POST", "/v1/leases", body)
            answer = grant.call.answer
            assert answer is not None
            index = events.index(answer) + 1
            yield [*events[:index], asked, Answered(answer.at, "theft", 200, answer.body), *events[index:]]


def _with_answer(events: list[Event], call: str, *, status: int, body: object) -> list[Event]:
    return [
        Answered(event.at, call, status, body)
        if isinstance(event, Answered) and event.call == call
        else event
        for event in events
    ]


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (a_job_vanishes, "acknowledged_jobs_exist"),
        (a_stale_call_is_accepted, "stale_calls_are_refused"),
        (an_accepted_complete_is_undone, "completes_stand"),
        (a_version_is_granted_twice, "versions_are_granted_once"),
    ],
)
def test_what_is_planted_into_a_random_history_is_seen(plant: Plant, rule: str) -> None:
    planted_count = 0

    @PROFILE
    @given(histories())
    def is_seen(events: list[Event]) -> None:
        nonlocal planted_count
        planted = list(plant(events))
        assume(planted)
        for changed in planted:
            planted_count += 1
            assert rule in {violation.rule for violation in check(changed).violations}

    is_seen()
    assert planted_count > 0
