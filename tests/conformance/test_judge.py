"""Each kind of expectation, met and unmet, on one record."""

from typing import Any

import pytest

from clients.conformance import judge
from clients.conformance.record import Act
from tests.conformance.records import event, lease, record, told

RECORD = record(
    lease(1, ("a", 5), ("b", 9), max_jobs=2),
    event(1.1, "started", "a", 5),
    told(2, "heartbeat", ("a", 5, "ok"), ("b", 9, "ok"), progress={"seq": 1}),
    told(3, "heartbeat", ("a", 5, "ok"), ("b", 9, "ok"), progress={"seq": 2}),
    told(5, "complete", ("a", 5, "ok"), result={"n": 1, "more": 2}),
    told(6, "fail", ("b", 9, "ok"), outcome="503"),
    told(6.1, "fail", ("b", 9, "ok"), outcome="503"),
    told(6.4, "fail", ("b", 9, "ok"), outcome="503"),
    told(7, "fail", ("b", 9, "ok")),
)
RECORD.add(Act(8, 1, "exit"))
RECORD.job_ids = {"a": "id-a"}

BEAT = {"call": "heartbeat", "job": "a"}
FAIL = {"call": "fail", "job": "b"}
DONE = {"call": "complete", "job": "a"}

MET: list[dict[str, Any]] = [
    {"seen": BEAT, "times": 2},
    {"seen": BEAT, "times": [1, None], "after": {**BEAT, "nth": 1}},
    {"seen": {"call": "end"}, "times": 5},
    {"seen": {**DONE, "with": {"result": {"n": 1}}, "answer": "ok", "version": 1}, "times": 1},
    {"seen": {"call": "heartbeat", "items": True}, "times": 4},
    {"never": {**DONE, "without": ["result"]}},
    {"never": BEAT, "after": DONE},
    {"never": FAIL, "before": DONE},
    {"never": {**FAIL, "answer": "ok"}, "after": DONE, "before": {**FAIL, "nth": -1}},
    {"order": [{"event": "started", "job": "a"}, BEAT, DONE, {"act": "exit"}]},
    {"time": [BEAT, {**BEAT, "nth": 2}], "at_least": 0.9, "at_most": 1.1},
    {"gaps": BEAT, "at_least": 0.9, "at_most": 1.1},
    {"pauses_grow": FAIL},
    {"same": "raw", "of": FAIL},
    {"different": "progress.seq", "of": BEAT},
    {"growing": "progress.seq", "of": [BEAT, {**BEAT, "nth": 2}]},
    {"every": {"call": "heartbeat"}, "has": ["b", "a"]},
]
UNMET: list[dict[str, Any]] = [
    {"seen": BEAT, "times": 3},
    {"seen": BEAT, "times": [0, 1]},
    {"seen": {**DONE, "with": {"result": {"n": True}}}},
    {"seen": {**DONE, "with": {"result": {"n": 2}}}},
    {"seen": {**DONE, "version": 2}},
    {"seen": {**DONE, "run": 2}},
    {"seen": BEAT, "after": {"event": "stopped"}},
    {"never": BEAT},
    {"never": {**DONE, "without": ["enqueue"]}},
    {"order": [DONE, BEAT]},
    {"time": [BEAT, {**BEAT, "nth": 2}], "at_least": 1.1},
    {"time": [BEAT, {**BEAT, "nth": 2}], "at_most": 0.9},
    {"time": [BEAT, {**BEAT, "nth": 3}]},
    {"gaps": BEAT, "at_most": 0.9},
    {"pauses_grow": BEAT},
    {"pauses_grow": FAIL, "before": {**FAIL, "nth": 4}},
    {"same": "progress.seq", "of": BEAT},
    {"same": "raw", "of": {"call": "release"}},
    {"different": "raw", "of": FAIL},
    {"different": "raw", "of": DONE},
    {"growing": "progress.seq", "of": [{**BEAT, "nth": 2}, BEAT]},
    {"growing": "progress.percent", "of": BEAT},
    {"every": {"call": "heartbeat"}, "has": ["a"]},
    {"every": {"call": "release"}, "has": ["a"]},
]


@pytest.mark.parametrize("expectation", MET, ids=str)
def test_expectation_is_met(expectation: dict[str, Any]) -> None:
    assert judge.failures(RECORD, [expectation]) == []


@pytest.mark.parametrize("expectation", UNMET, ids=str)
def test_expectation_is_not_met(expectation: dict[str, Any]) -> None:
    assert len(judge.failures(RECORD, [expectation])) == 1


def test_ids_and_versions_of_the_run_can_be_named() -> None:
    named = {"seen": {"call": "complete", "job": "a", "with": {"result": {"n": "<a.version>"}}}}
    assert judge.failures(RECORD, [named])
    story = record(
        lease(1, ("a", 5)), told(2, "submit", ("a", 5, "ok"), parent={"job_id": "id-a", "lease_version": 5})
    )
    story.job_ids = {"a": "id-a"}
    wanted = {
        "call": "submit",
        "job": "a",
        "with": {"parent": {"job_id": "<a.id>", "lease_version": "<a.version>"}},
    }
    assert judge.failures(story, [{"seen": wanted}]) == []


def test_failure_carries_its_reason() -> None:
    [sentence] = judge.failures(RECORD, [{"seen": BEAT, "times": 3, "why": "one is missing"}])
    assert sentence == "happened 2 times, not 3 times: call heartbeat (job a) (one is missing)"
