"""Every case can be failed: a client that breaks what it is about does not pass it.

The client is the one in ``reference``, with one mistake at a time; without a mistake it passes everything.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from clients.conformance import report, suite
from clients.conformance.adapters import Adapter
from clients.conformance.case import Case, load
from clients.conformance.stage import Verdict

CASES = {case.name: case for case in load()}
# What waits in vain need not wait as long as a client on a busy machine may.
WAITS_SECONDS = 12

MISTAKES = {
    "drops_result": ["one-job"],
    "rounds_tokens": ["great-token"],
    "leases_ahead": ["free-slots", "many-jobs"],
    "polls_twice": ["long-poll"],
    "frees_slot_on_return": ["slot-is-free-when-the-end-is-answered"],
    "one_queue": ["several-queues"],
    "short_polls": ["long-poll"],
    "waits_on": ["waits-for-a-third"],
    "short_timeout": ["patient-client"],
    "one_request_id": ["empty-answers"],
    "ignores_retry_after": ["empty-answer-with-retry-after", "retry-after", "submit-retry-after"],
    "no_unknown_kind": ["unknown-kind"],
    "one_name_for_all": ["a-name-for-each-process"],
    "no_key_on_heartbeats": ["api-key"],
    "ignores_401": ["unauthorized"],
    "exits_at_once": ["set-up-refused-later", "drain-finishes"],
    "no_heartbeat": ["heartbeat-at-a-third"],
    "beats_rarely": ["heartbeat-at-a-third"],
    "beats_often": ["heartbeat-at-a-third"],
    "beats_one_by_one": ["one-heartbeat-for-all"],
    "no_heartbeat_for_ends": ["heartbeat-until-the-end-is-answered"],
    "drops_on_failed_heartbeat": ["failed-heartbeats", "heartbeat-met-by-a-wrong-key"],
    "waits_for_heartbeats": ["heartbeat-without-end"],
    "progress_waits": ["progress"],
    "same_seq": ["progress"],
    "a_call_for_each_report": ["progress-gathers"],
    "counts_in_the_timer": ["progress-is-the-handlers", "no-progress-without-the-handler"],
    "checkpoint_without_waiting": ["checkpoint", "checkpoint-answer-lost", "checkpoint-of-a-lost-lease"],
    "repeats_refused_checkpoint": ["checkpoint-refused"],
    "ignores_loss": ["lost-by-heartbeat"],
    "loses_all": ["lost-by-heartbeat"],
    "sends_after_loss": ["lost-and-returned", "paused-process", "lost-after-a-cancel"],
    "ignores_not_found": ["lost-by-not-found"],
    "repeats_lost_ends": ["lost-by-its-end"],
    "never_verifies": ["lost-by-verify"],
    "ignores_refused_steps": ["lost-by-verify", "child-refused"],
    "ignores_regrant": ["lost-by-another-grant"],
    "no_clock": [
        "lost-by-the-clock", "lost-by-the-clock-while-heartbeats-hang", "paused-process-knows-by-itself",
    ],
    "counts_from_the_answer": ["lease-counts-from-the-call"],
    "clock_runs_fast": ["short-pause"],
    "no_deadline": ["deadline"],
    "clock_stops_ends": ["end-outlives-the-clock", "lost-answer-and-lost-lease"],
    "ignores_cancel": ["cancel"],
    "releases_cancelled": ["cancel"],
    "fails_cancelled_return": ["cancel-too-late"],
    "no_heartbeat_once_told": ["cancel-too-late", "drain-takes-a-late-result"],
    "no_error_type": ["raise", "fail-with-a-type"],
    "no_error_details": ["fail-with-details"],
    "drops_retryable": ["fail-for-good"],
    "drops_retry_after": ["fail-and-try-later"],
    "drops_delay": ["release"],
    "completes_settled": ["settled"],
    "drops_enqueue": ["follow-ups"],
    "chance_child_key": ["child"],
    "no_parent": ["child"],
    "ends_one_by_one": ["ends-gather"],
    "blames_all": ["one-result-refused"],
    "no_result_refused": ["result-is-no-json"],
    "drops_refused": ["result-is-no-json", "fail-refused", "release-refused"],
    "fails_refused_reports": ["fail-refused", "release-refused"],
    "insists_on_reports": ["report-refused-for-good"],
    "new_request_id": ["lease-answer-lost"],
    "old_request_id": ["request-id-does-not-outlive-the-lease"],
    "fails_lost_complete": ["complete-answer-lost"],
    "rewrites_ends": ["complete-answer-lost"],
    "sends_ends_once": [
        "complete-broken-off", "end-met-by-a-wrong-key", "fail-and-release-answers-lost",
        "drain-repeats-ends",
    ],
    "hammers": ["service-away", "submit-in-growing-pauses"],
    "same_pauses": ["service-away"],
    "gives_up": ["connections-refused"],
    "waits_for_poll": ["drain-while-parked", "drain-while-pausing"],
    "ignores_sigint": ["drain-on-sigint"],
    "leases_on": ["drain-finishes"],
    "no_release": ["drain-releases-the-stubborn"],
    "fails_at_shutdown": ["drain-releases"],
    "fails_as_it_likes": ["cancel-and-fail", "drain-releases-what-failed-then"],
    "drops_late_result": ["drain-takes-a-late-result"],
    "leaves_unread": ["drain-releases-an-unread-answer"],
    "ignores_second_signal": ["second-signal"],
    "drains_for_ever": ["drain-without-the-service"],
    "no_idempotency_key": ["submit"],
    "ignores_given_key": ["submit-with-a-key"],
    "rounds_durations": ["durations-as-given"],
    "one_key_for_all": ["a-key-for-each-job"],
    "batch_without_keys": ["a-key-for-each-job"],
    "new_key_each_try": ["submit-answer-lost", "batch-answer-lost"],
    "gives_up_submitting": ["submit-answer-lost"],
    "retries_422": ["submit-refused"],
    "no_key_on_submits": ["submit-with-a-key-of-the-service"],
}  # fmt: skip
PAIRS = [(mistake, name) for mistake, names in MISTAKES.items() for name in names]


def client(*mistakes: str) -> Adapter:
    return Adapter(
        "+".join(mistakes) or "reference", [sys.executable, "-m", "tests.conformance.reference", *mistakes]
    )


def test_every_case_has_a_client_that_fails_it() -> None:
    assert {name for names in MISTAKES.values() for name in names} == set(CASES)


@pytest.mark.slow
async def test_client_without_mistakes_passes_every_case(tell: Callable[[object], None]) -> None:
    verdicts = await suite.run_twice(
        suite.pairs_of(list(CASES.values()), [client()]), doubt=lambda verdict: tell(once_only(verdict))
    )
    stories = ["\n".join(report.story(verdict)) for verdict in verdicts if not verdict.passed]
    assert not stories, "\n\n".join(stories)


@pytest.mark.slow
async def test_client_with_a_mistake_fails_the_case_that_is_about_it(
    tell: Callable[[object], None],
) -> None:
    pairs = [(hurried(CASES[name]), client(mistake)) for mistake, name in PAIRS]
    verdicts = await suite.run_twice(pairs, expected=False, doubt=lambda verdict: tell(once_only(verdict)))
    assert not [f"{verdict.adapter} passes {verdict.case.name}" for verdict in verdicts if verdict.passed]


def once_only(verdict: Verdict) -> str:
    return f"conformance: once only, {verdict.adapter}, {verdict.case.name}: {verdict.failures}"


def hurried(case: Case) -> Case:
    return replace(case, within_seconds=min(case.within_seconds, WAITS_SECONDS))
