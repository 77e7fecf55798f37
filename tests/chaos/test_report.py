"""The table in the end: it is good only if something was done and nothing was broken."""

from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.lease_stories import (
    a_complete_is_repeated_and_called_a_repeat,
    a_heartbeat_is_accepted_after_the_job_was_passed_on,
    stale_calls_of_every_kind_are_refused_or_in_doubt,
)
from tests.chaos.measures import Trouble
from tests.chaos.report import Outcome, Report
from tests.chaos.stories import Write
from tests.chaos.tale import Tale

HISTORY = Path("history.jsonl")


def outcome(write: Write, *, findings: list[str] | None = None, trouble: Trouble | None = None) -> Outcome:
    tale = Tale()
    write(tale)
    return Outcome("a scenario", HISTORY, check(tale.events), findings or [], trouble)


def test_a_run_in_which_nothing_is_broken_is_good() -> None:
    report = Report(7, [outcome(stale_calls_of_every_kind_are_refused_or_in_doubt)])
    assert report.is_good
    lines = list(report.lines())
    assert "| stale writes attempted | 10 | 10 |" in lines
    assert "| stale writes accepted | 0 | 0 |" in lines
    assert not [line for line in lines if "WRONG" in line]


def test_a_violation_is_shown_with_the_path_of_its_history() -> None:
    report = Report(7, [outcome(a_heartbeat_is_accepted_after_the_job_was_passed_on)])
    assert not report.is_good
    lines = list(report.lines())
    assert "| stale writes accepted | 1 | 1 |" in lines
    assert [line for line in lines if line.startswith("WRONG: a scenario: stale_calls_are_refused: job j:")]
    assert f"history of a scenario: {HISTORY}" in lines


def test_a_run_that_proves_nothing_is_not_good() -> None:
    assert not outcome(lambda _: None).is_good
    no_stale_call = Report(7, [outcome(a_complete_is_repeated_and_called_a_repeat)])
    assert no_stale_call.outcomes[0].is_good
    assert not no_stale_call.is_good
    assert "WRONG: no stale write was attempted: no proof of the fence" in list(no_stale_call.lines())


def test_what_the_doctor_finds_and_what_takes_too_long_is_wrong() -> None:
    write = stale_calls_of_every_kind_are_refused_or_in_doubt
    assert not outcome(write, findings=["job j is in more than one state"]).is_good
    assert not outcome(write, trouble=Trouble(1.0, 1.0, 1, {"SIGKILL of PostgreSQL": 20.1})).is_good
    assert outcome(write, trouble=Trouble(9.0, 5.0, 1, {"SIGKILL of PostgreSQL": 20.0})).is_good


def test_a_replica_that_ended_by_itself_is_wrong() -> None:
    report = Report(7, [outcome(stale_calls_of_every_kind_are_refused_or_in_doubt)])
    report.complaints.append("replica r0 ended by itself with 1")
    assert not report.is_good
    assert "WRONG: replica r0 ended by itself with 1" in list(report.lines())
