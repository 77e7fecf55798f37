"""Each standing rule, with records that keep it and one that breaks it."""

from dataclasses import replace

import pytest

from clients.conformance import rules
from clients.conformance.record import Record
from tests.conformance.records import CASE, event, lease, record, told

GRANT = lease(1, ("a", 5))
DONE = told(3, "complete", ("a", 5, "ok"), result=1)

KEPT = {
    "a job from its grant to its end": record(GRANT, told(2, "heartbeat", ("a", 5, "ok")), DONE, lease(4)),
    "a parked call is repeated as it was": record(
        lease(1, request_id="r", takes=5, outcome="closed"), lease(2, request_id="r")
    ),
    "a lost answer is repeated": record(
        lease(1, ("a", 5), request_id="r", outcome="lost"), lease(2, ("a", 5), request_id="r"), DONE
    ),
    "a call that is older than a lease starts anew": record(
        lease(1, request_id="r", outcome="503"), lease(8, request_id="s")
    ),
    "all slots are free again": record(GRANT, DONE, lease(4, max_jobs=2)),
    "a lost lease takes no slot": record(
        GRANT, told(2, "heartbeat", ("a", 5, "lease_lost")), lease(4, max_jobs=2)
    ),
    "a lease that ran out takes no slot": record(GRANT, lease(7.5, max_jobs=2)),
    "what was under way when the lease was lost": record(
        GRANT, told(2, "heartbeat", ("a", 5, "lease_lost")), told(2.1, "complete", ("a", 5, "lease_lost"))
    ),
    "an end under way outlives the lease": record(
        GRANT,
        told(2, "complete", ("a", 5, "ok"), outcome="lost"),
        told(3, "heartbeat", ("a", 5, "lease_lost")),
        told(6, "complete", ("a", 5, "replayed")),
    ),
    "an end is repeated as it was": record(
        GRANT, told(2, "complete", ("a", 5, "ok"), outcome="lost"), told(3, "complete", ("a", 5, "replayed"))
    ),
    "a refused result becomes a fail": record(
        GRANT, told(2, "complete", ("a", 5, "refused"), outcome="413"), told(3, "fail", ("a", 5, "ok"))
    ),
    "a refused report is reduced": record(
        GRANT,
        told(2, "fail", ("a", 5, "refused"), outcome="413", error={"message": "1", "details": 2}),
        told(3, "fail", ("a", 5, "ok"), error={"message": "1"}),
    ),
    "a report that was given up takes no slot": record(
        GRANT, told(2, "release", ("a", 5, "refused"), outcome="422"), lease(4, max_jobs=2)
    ),
}

BROKEN = {
    "is malformed": record(replace(GRANT, malformed="no JSON")),
    "a second lease call": record(lease(1, takes=5), lease(2, takes=1)),
    "has no request_id": record(lease(1), replace(lease(2), body={"worker_id": "w"})),
    "had no answer, and changed": record(lease(1, outcome="503"), lease(2)),
    "has the request_id of an earlier one": record(lease(1, request_id="r"), lease(2, request_id="r")),
    "called itself": record(lease(1, worker_id="v"), lease(2, worker_id="w")),
    "2 jobs wanted at 2.00 s, with 1 free slots": record(GRANT, lease(2, max_jobs=2)),
    "2 jobs wanted at 4.50 s, with 1 free slots": record(
        GRANT,
        told(2, "fail", ("a", 5, "refused"), outcome="422"),
        told(3, "fail", ("a", 5, "ok"), outcome="503"),
        lease(4.5, max_jobs=2),
    ),
    "1 jobs wanted at 7.00 s, with 0 free slots": record(
        lease(1, ("a", 5), ("b", 6), max_jobs=2),
        told(3, "heartbeat", ("a", 5, "ok"), ("b", 6, "ok")),
        told(5, "heartbeat", ("a", 5, "ok"), ("b", 6, "ok")),
        lease(7),
    ),
    "never granted": record(GRANT, told(2, "heartbeat", ("a", 4, "lease_lost"))),
    "heartbeat of a at 4.00 s; its lease was lost": record(
        GRANT, told(2, "heartbeat", ("a", 5, "lease_lost")), told(4, "heartbeat", ("a", 5, "lease_lost"))
    ),
    "complete of a at 4.00 s; its lease was lost": record(
        GRANT, lease(2, ("a", 7)), told(4, "complete", ("a", 5, "lease_lost"))
    ),
    "submit of a at 4.00 s; its lease was lost": record(
        GRANT, event(2, "stopped", "a", 5, reason="lease_lost"), told(4, "submit", ("a", 5, "lease_lost"))
    ),
    "though its complete was answered": record(
        GRANT, DONE, told(4, "complete", ("a", 5, "replayed"), result=1)
    ),
    "complete of a at 4.00 s, though its complete was answered": record(
        GRANT, told(3, "complete", ("a", 5, "lease_lost")), told(4, "complete", ("a", 5, "lease_lost"))
    ),
    "though a complete was sent": record(
        GRANT, told(2, "complete", ("a", 5, "ok"), outcome="lost"), told(3, "fail", ("a", 5, "lease_lost"))
    ),
    "is another one than before": record(
        GRANT,
        told(2, "fail", ("a", 5, "ok"), outcome="lost", error={"message": "1"}),
        told(3, "fail", ("a", 5, "lease_lost"), error={"message": "2"}),
    ),
    "the complete of 2.00 s had no answer, and changed": record(
        lease(1, ("a", 5), ("b", 6), max_jobs=2),
        told(2, "complete", ("a", 5, "ok"), outcome="503"),
        told(3, "complete", ("a", 5, "ok"), ("b", 6, "ok")),
    ),
    "started twice": record(GRANT, event(1.2, "started", "a", 5), event(1.3, "started", "a", 5)),
}


@pytest.mark.parametrize("story", KEPT.values(), ids=KEPT)
def test_rules_find_nothing_in_what_is_right(story: Record) -> None:
    assert rules.broken(CASE, story) == []


@pytest.mark.parametrize(("sentence", "story"), BROKEN.items(), ids=BROKEN)
def test_rules_say_what_is_wrong(sentence: str, story: Record) -> None:
    assert [found for found in rules.broken(CASE, story) if sentence in found]


def test_call_without_the_key_is_found() -> None:
    case = replace(CASE, api_key="secret")
    shown = replace(GRANT, headers={"authorization": "Bearer secret"})
    assert rules.broken(case, record(shown)) == []
    assert "no Authorization" in rules.broken(case, record(GRANT))[0]
