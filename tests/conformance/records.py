"""Records made by hand: what a client might have done, in a few lines."""

import json
from typing import Any

from clients.conformance.case import Case, JobPlan
from clients.conformance.record import ANSWERED, Call, Event, Item, Record

CASE = Case(
    name="by-hand",
    says="It is made by hand.",
    section="the-loop",
    worker={"concurrency": 2, "lease_seconds": 6},
    jobs={name: JobPlan(name, [{"return": 1}]) for name in "ab"},
    produce=[],
    answers=[],
    script=[],
    expect=[],
    exit="0",
    drain=True,
    within_seconds=20,
    api_key=None,
    needs=frozenset(),
)


def lease(at: float, *granted: tuple[str, int], takes: float = 0.1, **members: Any) -> Call:
    """Return a lease call; with ``outcome`` as it was answered otherwise."""
    outcome = members.pop("outcome", ANSWERED)
    body = {"worker_id": "w", "request_id": f"r{at}", "max_jobs": 1, "lease_seconds": 6, **members}
    call = _call(at, "lease", body, [], outcome)
    call.granted = list(granted)
    call.ended_at = at + takes
    return call


def told(at: float, verb: str, *items: tuple[str, int, str], outcome: str = ANSWERED, **members: Any) -> Call:
    """Return a call about leases, each item with its job, version and status."""
    made = [Item(f"id-{job}", job, version, members, status) for job, version, status in items]
    return _call(at, verb, {"items": [[item.job, item.version, members] for item in made]}, made, outcome)


def event(at: float, name: str, job: str, version: int, **members: Any) -> Event:
    return Event(at, 1, name, job, version, members)


def record(*entries: Call | Event) -> Record:
    return Record(list(entries))


def _call(at: float, verb: str, body: Any, items: list[Item], outcome: str) -> Call:
    return Call(
        at=at,
        run=1,
        verb=verb,
        target=f"/v1/{verb}",
        headers={},
        raw=json.dumps(body).encode(),
        body=body,
        items=items,
        ended_at=at + 0.01,
        outcome=outcome,
    )
