"""Each rule of the checker has a history that breaks it alone, and twins that look alike and are legal."""

import pytest

from tests.chaos import job_stories, lease_stories
from tests.chaos.checker import RULES, check
from tests.chaos.history import Listed
from tests.chaos.stories import BROKEN, LEGAL, Write
from tests.chaos.tale import Tale, job


@pytest.mark.parametrize(("rule", "write"), [pytest.param(*each, id=each[1].__name__) for each in BROKEN])
def test_a_history_that_breaks_one_rule_breaks_that_rule_alone(rule: str, write: Write) -> None:
    tale = Tale()
    write(tale)
    violations = check(tale.events).violations
    assert {violation.rule for violation in violations} == {rule}
    assert all(1 <= number <= len(tale.events) for each in violations for number in each.events)


@pytest.mark.parametrize("write", [pytest.param(each, id=each.__name__) for each in LEGAL])
def test_a_legal_history_breaks_no_rule(write: Write) -> None:
    tale = Tale()
    write(tale)
    assert check(tale.events).violations == ()


def test_every_rule_is_broken_by_a_history() -> None:
    # Importing the two modules has filled the lists.
    assert {write.__module__ for write in LEGAL} == {job_stories.__name__, lease_stories.__name__}
    assert {rule for rule, _ in BROKEN} == {rule.__name__ for rule in RULES}


def test_a_job_in_the_list_of_another_state_is_in_two_states() -> None:
    tale = Tale()
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1))
    events = [*tale.events, Listed(99.0, "dead", [job(version=1)])]
    assert {violation.rule for violation in check(events).violations} == {"jobs_are_listed_once"}
