"""Proves from a history alone that the service kept its promises: ``check`` returns what it did not keep.

    job_rules      promised jobs exist, once, and end as somebody asked
    lease_rules    one holder at a time, rising versions, no gap in the fence
    attempt_rules  how many attempts, and how they are counted
    answer_rules   which answers there may be

What is in doubt accuses nobody: a call without an answer, or with a 5xx, may have been done or not. The
history must hold the final list of all jobs. Redrives and edits are not judged, and refused as a history.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.answer_rules import answers_are_of_the_contract
from tests.chaos.attempt_rules import attempts_are_counted, attempts_stay_within_the_limit
from tests.chaos.facts import Facts, Verdict, gather
from tests.chaos.history import Event, Struck
from tests.chaos.job_rules import (
    acknowledged_jobs_exist,
    completes_stand,
    endings_have_a_cause,
    finished_jobs_stay,
    follow_ups_come_with_their_complete,
    jobs_are_listed_once,
    jobs_end,
    jobs_were_asked_for,
    keys_name_one_job,
    refused_completes_do_nothing,
)
from tests.chaos.lease_rules import (
    accepted_calls_were_granted,
    nothing_follows_the_end,
    repeats_are_answered,
    stale_calls_are_refused,
    stale_words,
    versions_are_granted_once,
    versions_end_once,
    versions_rise,
    versions_take_turns,
)
from tests.chaos.rules import Rule

RULES: tuple[Rule, ...] = (
    acknowledged_jobs_exist,
    jobs_end,
    jobs_are_listed_once,
    keys_name_one_job,
    jobs_were_asked_for,
    follow_ups_come_with_their_complete,
    completes_stand,
    refused_completes_do_nothing,
    endings_have_a_cause,
    finished_jobs_stay,
    versions_rise,
    versions_are_granted_once,
    accepted_calls_were_granted,
    stale_calls_are_refused,
    versions_take_turns,
    versions_end_once,
    nothing_follows_the_end,
    repeats_are_answered,
    attempts_stay_within_the_limit,
    attempts_are_counted,
    answers_are_of_the_contract,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise; ``events`` are the lines of the history that show it."""

    rule: str
    job_id: str | None
    events: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.events))
        return f"{self.rule}: job {self.job_id}: {self.sentence} (lines {lines})"


@dataclass(frozen=True, slots=True)
class Account:
    """What was counted on the way; ``doubled_runs`` are grants of a job after its first."""

    violations: tuple[Violation, ...]
    faults: Counter[str]
    calls: int
    calls_in_doubt: int
    jobs_acknowledged: int
    jobs_lost: int
    jobs_in_doubt: int
    completes_accepted: int
    stale_writes_attempted: int
    stale_writes_accepted: int
    doubled_runs: int


def check(events: Sequence[Event]) -> Account:
    """Judge a whole history. Raises HistoryError for one that the rules do not cover."""
    facts = gather(events)
    violations = [
        Violation(rule.__name__, found.job_id, found.events, found.sentence)
        for rule in RULES
        for found in rule(facts)
    ]
    broken = Counter(violation.rule for violation in violations)
    return Account(
        violations=tuple(violations),
        faults=Counter(event.fault for event in events if isinstance(event, Struck)),
        calls=len(facts.calls),
        calls_in_doubt=sum(call.is_in_doubt for call in facts.calls),
        jobs_acknowledged=sum(1 for job in facts.jobs.values() if job.wishes),
        jobs_lost=broken[acknowledged_jobs_exist.__name__],
        jobs_in_doubt=_wishes_in_doubt(facts),
        completes_accepted=len(
            {word.token for job in facts.jobs.values() for word in job.completes if word.verdict.is_success}
        ),
        stale_writes_attempted=sum(1 for job in facts.jobs.values() for _ in stale_words(job)),
        stale_writes_accepted=broken[stale_calls_are_refused.__name__],
        doubled_runs=sum(
            max(0, len({grant.token for grant in job.grants}) - 1) for job in facts.jobs.values()
        ),
    )


def _wishes_in_doubt(facts: Facts) -> int:
    """Count the jobs that may or may not exist: every call that asked for them was in doubt."""
    return sum(
        all(wish.verdict is Verdict.DOUBT for wish in wishes) for wishes in facts.wishes_by_mark.values()
    )
