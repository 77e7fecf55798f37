"""What holds in every case, whatever it is about: each rule reads a whole record."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from clients.conformance.case import Case
from clients.conformance.record import ENDS, Call, Event, Item, Record

# What a client had under way when it was told is not held against it, on a noisy machine.
SLACK_SECONDS = 0.7

Rule = Callable[[Case, Record], Iterator[str]]


def broken(case: Case, record: Record) -> list[str]:
    """Return a sentence for every break of a standing rule."""
    return [sentence for rule in RULES for sentence in rule(case, record)]


def requests_are_well_formed(_: Case, record: Record) -> Iterator[str]:
    """Every request is one that the service would take."""
    for call in record.calls():
        if call.malformed:
            yield f"{call.verb} at {call.at:.2f} s is malformed: {call.malformed}"


def one_lease_call_at_a_time(_: Case, record: Record) -> Iterator[str]:
    """While one is open there is no other, unless it repeats the first."""
    for earlier, later in pairwise(record.calls("lease")):
        is_open = later.at < (earlier.ended_at if earlier.ended_at is not None else float("inf"))
        if is_open and earlier.run == later.run and earlier.raw != later.raw:
            yield f"a second lease call at {later.at:.2f} s, while one is open since {earlier.at:.2f} s"


def lease_calls_are_repeated_as_they_were(_: Case, record: Record) -> Iterator[str]:
    """Without an answer the same call comes again within the time of a lease; else with a new request_id."""
    began: dict[str, float] = {}
    for earlier, later in pairwise(record.calls("lease")):
        if earlier.malformed or later.malformed or earlier.run != later.run:
            continue
        began.setdefault(str(earlier.body.get("request_id")), earlier.at)
        age = later.at - began[str(earlier.body.get("request_id"))]
        is_late = age > earlier.body.get("lease_seconds", 60) - SLACK_SECONDS
        if "request_id" not in later.body:
            yield f"the lease call at {later.at:.2f} s has no request_id: it cannot be repeated"
        elif not earlier.is_answered and earlier.outcome not in ("401", "403", "422"):
            if later.raw != earlier.raw and not is_late:
                yield f"the lease call of {earlier.at:.2f} s had no answer, and changed at {later.at:.2f} s"
        elif later.body["request_id"] in began:
            yield f"the lease call at {later.at:.2f} s has the request_id of an earlier one that was answered"


def one_worker_id_a_process(_: Case, record: Record) -> Iterator[str]:
    names: dict[int, set[str]] = {}
    for call in record.calls("lease"):
        if not call.malformed:
            names.setdefault(call.run, set()).add(call.body["worker_id"])
    for run, found in names.items():
        if len(found) > 1:
            yield f"process {run} called itself {', '.join(sorted(found))}"


def never_more_than_the_free_slots(case: Case, record: Record) -> Iterator[str]:
    """A lease call asks for no more jobs than there are slots without a held lease."""
    for call in record.calls("lease"):
        if call.malformed:
            continue
        leases = [lease for run, lease in _leases(record) if run == call.run]
        held = sum(1 for lease in leases if _occupies(case, record, lease, call.at))
        free = case.worker["concurrency"] - held
        wanted = call.body.get("max_jobs", 1)
        if wanted > free:
            yield f"{wanted} jobs wanted at {call.at:.2f} s, with {free} free slots"


def tokens_are_those_of_the_grant(_: Case, record: Record) -> Iterator[str]:
    """Whatever is said of a job carries a version under which this client was granted it."""
    for call, item in _items(record, "heartbeat", "verify", *ENDS):
        granted = {
            version for lease in record.calls("lease") for job, version in lease.granted if job == item.job
        } | {None}
        if item.job is None:
            yield f"{call.verb} at {call.at:.2f} s is about a job that was never granted: {item.job_id}"
        elif item.version not in granted:
            yield f"{call.verb} of {item.job} at {call.at:.2f} s has version {item.version}, never granted"


def nothing_more_after_a_lost_lease(_: Case, record: Record) -> Iterator[str]:
    """Once a lease is known to be lost, nothing is sent under its version."""
    lost = _lost(record)
    for call, item in _items(record, "heartbeat", "verify", "submit", "submit_many", *ENDS):
        told_at = lost.get((item.job, item.version))
        if told_at is not None and call.at > told_at + SLACK_SECONDS:
            yield f"{call.verb} of {item.job} at {call.at:.2f} s; its lease was lost at {told_at:.2f} s"


def an_attempt_ends_once(_: Case, record: Record) -> Iterator[str]:
    """An end that was answered is not sent again; one that was not is repeated as it was."""
    ends: dict[tuple[str | None, int | None], list[tuple[Call, Item]]] = {}
    for call, item in _items(record, *ENDS):
        ends.setdefault((item.job, item.version), []).append((call, item))
    for (job, _version), sent in ends.items():
        for (earlier, one), (later, other) in pairwise(sent):
            where = f"{job} at {later.at:.2f} s"
            is_refused = one.status == "refused" and earlier.outcome in ("413", "422")
            if earlier.is_answered and one.status in ("ok", "replayed"):
                yield f"{later.verb} of {where}, though its {earlier.verb} was answered"
            elif earlier.verb != later.verb and not is_refused:
                yield f"{later.verb} of {where}, though a {earlier.verb} was sent and may have been accepted"
            elif earlier.verb == later.verb and one.body != other.body:
                yield f"{later.verb} of {where} is another one than before"


def ends_are_repeated_byte_for_byte(_: Case, record: Record) -> Iterator[str]:
    """The next call about an end without an answer is the same call."""
    for verb in ENDS:
        for earlier, later in pairwise(record.calls(verb)):
            again = {item.job for item in earlier.items} & {item.job for item in later.items}
            is_unanswered = (
                not earlier.is_answered and earlier.outcome not in ("413", "422") and not earlier.malformed
            )
            if again and is_unanswered and earlier.raw != later.raw:
                yield f"the {verb} of {earlier.at:.2f} s had no answer, and changed at {later.at:.2f} s"


def every_call_has_the_key(case: Case, record: Record) -> Iterator[str]:
    if case.api_key is not None:
        for call in record.calls():
            if call.headers.get("authorization") != f"Bearer {case.api_key}":
                yield f"{call.verb} at {call.at:.2f} s has no Authorization: Bearer with the API key"


def a_handler_runs_once_a_lease(_: Case, record: Record) -> Iterator[str]:
    """However often a grant is answered, its handler is started once."""
    seen: set[tuple[str | None, int | None]] = set()
    for event in record.events("started"):
        lease = (event.job, event.version)
        if lease in seen:
            yield f"the handler of {event.job} was started twice under version {event.version}"
        seen.add(lease)


RULES: list[Rule] = [
    requests_are_well_formed,
    one_lease_call_at_a_time,
    lease_calls_are_repeated_as_they_were,
    one_worker_id_a_process,
    never_more_than_the_free_slots,
    tokens_are_those_of_the_grant,
    nothing_more_after_a_lost_lease,
    an_attempt_ends_once,
    ends_are_repeated_byte_for_byte,
    every_call_has_the_key,
    a_handler_runs_once_a_lease,
]


def _items(record: Record, *verbs: str) -> Iterator[tuple[Call, Item]]:
    for call in record.calls(*verbs):
        for item in call.items:
            yield call, item


def _granted(record: Record) -> Iterator[tuple[str, int]]:
    for call in record.calls("lease"):
        yield from call.granted


Lease = tuple[str, int, float]


def _leases(record: Record) -> Iterator[tuple[int, Lease]]:
    """Yield each lease that was answered: whose it is; job, version, and when the answer went out."""
    seen = set()
    for call in record.calls("lease"):
        if call.is_answered and call.ended_at is not None:
            for job, version in call.granted:
                if (job, version) not in seen:
                    seen.add((job, version))
                    yield call.run, (job, version, call.ended_at)


def _occupies(case: Case, record: Record, lease: Lease, at: float) -> bool:
    """Whether a lease surely takes a slot at a time: it is granted, not over, and its end is not answered."""
    job, version, since = lease
    renewed_at = since
    for call in record.calls("heartbeat", *ENDS):
        if not call.is_answered or call.ended_at is None or call.ended_at > at:
            continue
        for item in call.items:
            if (item.job, item.version) == (job, version):
                if call.verb in ENDS:
                    return False
                renewed_at = max(renewed_at, call.at)
    settled = any(
        isinstance(entry, Event) and entry.name == "ended" and (entry.job, entry.version) == (job, version)
        for entry in record.entries
        if entry.at <= at + SLACK_SECONDS
    ) and any("settled" in step for step in case.jobs[job].steps)
    is_over = at > renewed_at + case.worker["lease_seconds"] - SLACK_SECONDS
    is_lost = at >= _lost(record).get((job, version), float("inf"))
    return since < at and not settled and not is_over and not is_lost


def _lost(record: Record) -> dict[tuple[str | None, int | None], float]:
    """Return when a client learnt that a lease is over: by an answer, or by its clock."""
    lost: dict[tuple[str | None, int | None], float] = {}

    def note(job: str | None, version: int | None, at: float) -> None:
        lost[job, version] = min(at, lost.get((job, version), at))

    for call in record.calls():
        if not call.is_answered or call.ended_at is None:
            continue
        for item in call.items:
            if item.status in ("lease_lost", "not_found"):
                note(item.job, item.version, call.ended_at)
        for job, version in call.granted:
            for earlier in {number for name, number in _granted(record) if name == job and number < version}:
                note(job, earlier, call.ended_at)
    for event in record.events("stopped"):
        if event.body.get("reason") == "lease_lost":
            note(event.job, event.version, event.at)
    return lost
