"""The cases are ones that can be judged, say what they demand, and where it is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.conformance import judge
from clients.conformance.adapters import declared
from clients.conformance.case import FINAL_STEPS, Case, CaseError, load, read
from clients.conformance.faults import read_fault
from clients.conformance.record import Record
from tests.docs.documents import ROOT, anchor, headings
from tests.docs.documents import read as read_page

CASES = load()
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
SECTIONS = [anchor(heading) for heading in headings(read_page(ROOT / "docs" / "worker-protocol.md"))]


@EVERY_CASE
def test_case_names_a_section_of_the_protocol(case: Case) -> None:
    assert case.section in SECTIONS


@EVERY_CASE
def test_case_says_in_a_sentence_what_it_demands(case: Case) -> None:
    assert case.says.endswith(".")
    assert len(case.says) <= 130


@EVERY_CASE
def test_case_is_failed_by_a_client_that_does_nothing(case: Case) -> None:
    assert judge.failures(Record(), case.expect)


@EVERY_CASE
def test_answers_of_a_case_are_faults_that_the_server_knows(case: Case) -> None:
    assert all(read_fault(entry).to for entry in case.answers)


@EVERY_CASE
def test_nothing_comes_after_the_step_that_ends_a_handler(case: Case) -> None:
    for job in case.jobs.values():
        assert not any(set(step) & set(FINAL_STEPS) for step in job.steps[:-1])


def test_every_section_that_demands_something_of_a_client_has_cases() -> None:
    assert set(SECTIONS) - {case.section for case in CASES} == {"how-to-write-a-worker"}


MINIMAL: dict[str, Any] = {
    "case": "one",
    "says": "It says.",
    "section": "the-loop",
    "jobs": {"a": [{"return": 1}]},
    "expect": [{"seen": {"call": "lease"}}],
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"expects": []}, "unknown: expects"),
        ({"worker": {"slots": 3}}, "unknown: slots"),
        ({"expect": []}, "it expects nothing"),
        ({"jobs": {"a": [{"retrun": 1}]}}, "unknown step"),
        ({"says": None, "section": None, "jobs": {"a": {"kind": "x"}}}, "steps"),
    ],
)
def test_case_with_a_slip_of_the_pen_is_refused(change: dict[str, Any], complaint: str) -> None:
    read(MINIMAL)
    with pytest.raises(CaseError, match=complaint):
        read({**MINIMAL, **change})


@pytest.mark.parametrize(
    "expectation",
    [
        {"sene": {"call": "lease"}},
        {"seen": {"call": "lease", "jobs": "a"}},
        {"seen": {"job": "a"}},
        {"never": {"call": "lease"}, "times": 1},
    ],
)
def test_expectation_with_a_slip_of_the_pen_is_refused(expectation: dict[str, Any]) -> None:
    case = replace(read(MINIMAL), expect=[expectation])
    with pytest.raises(CaseError):
        judge.failures(Record(), case.expect)


def test_case_needs_what_its_jobs_use() -> None:
    steps = [{"progress": {"percent": 1}}, {"complete": {"enqueue": [{"kind": "x"}]}}]
    assert read({**MINIMAL, "jobs": {"a": steps}}).needs == {"progress", "enqueue"}


def test_adapters_cannot_do_without_what_every_client_must(tmp_path: Path) -> None:
    path = tmp_path / "adapters.yaml"
    path.write_text("- {name: x, run: [x], cannot: [heartbeat]}")
    with pytest.raises(CaseError, match="heartbeat"):
        declared(path)
