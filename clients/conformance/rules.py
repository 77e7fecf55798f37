"""What holds in every case, whatever it is about: each rule reads a whole record."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from clients.conformance.case import Case
from clients.conformance.record import ENDS, Call, Item, Record

# What a client had under way when it was told is not held against it, on a noisy machine.
SLACK_SECONDS = 1.0

# Answers that are about one item of a call, not about the weather.
REFUSALS = ("400", "413", "422")

# Calls that are made under a lease; a submit is one when it has a parent.
HOLDER_CALLS = ("heartbeat", "verify", "submit", "submit_many", *ENDS)

# A job and the version under which it was granted.
Lease = tuple[str | None, int | None]
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
        elif not earlier.is_answered and earlier.outcome not in (*REFUSALS, "401", "403", "404", "415"):
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
    spans = list(_spans(case, record))
    for call in record.calls("lease"):
        if call.malformed:
            continue
        held = sum(1 for run, start, end in spans if run == call.run and start < call.at < end)
        free = case.worker["concurrency"] - held
        wanted = call.body.get("max_jobs", 1)
        if wanted > free:
            yield f"{wanted} jobs wanted at {call.at:.2f} s, with {free} free slots"


def tokens_are_those_of_the_grant(_: Case, record: Record) -> Iterator[str]:
    """Whatever is said of a job carries a version under which this client was granted it."""
    granted = set(_granted(record))
    for call, item in _items(record, "heartbeat", "verify", *ENDS):
        if item.job is None:
            yield f"{call.verb} at {call.at:.2f} s is about a job that was never granted: {item.job_id}"
        elif (item.job, item.version) not in granted:
            yield f"{call.verb} of {item.job} at {call.at:.2f} s has version {item.version}, never granted"


def nothing_more_after_a_lost_lease(_: Case, record: Record) -> Iterator[str]:
    """Once a lease is known to be lost nothing begins under its version; an end under way goes on."""
    lost = _lost(record)
    begun: dict[Lease, float] = {}
    for call, item in _items(record, *HOLDER_CALLS):
        lease = (item.job, item.version)
        at = begun.setdefault(lease, call.at) if call.verb in ENDS else call.at
        told_at = lost.get(lease)
        if told_at is not None and at > told_at + SLACK_SECONDS:
            yield f"{call.verb} of {item.job} at {call.at:.2f} s; its lease was lost at {told_at:.2f} s"


def an_attempt_ends_once(_: Case, record: Record) -> Iterator[str]:
    """An end is not sent again once it was answered, and changes only when it was refused."""
    ends: dict[Lease, list[tuple[Call, Item]]] = {}
    for call, item in _items(record, *ENDS):
        ends.setdefault((item.job, item.version), []).append((call, item))
    for (job, _version), sent in ends.items():
        for (earlier, one), (later, other) in pairwise(sent):
            where = f"{job} at {later.at:.2f} s"
            is_refused = one.status == "refused" and earlier.outcome in REFUSALS
            if earlier.is_answered:
                yield f"{later.verb} of {where}, though its {earlier.verb} was answered"
            elif earlier.verb != later.verb and not is_refused:
                yield f"{later.verb} of {where}, though a {earlier.verb} was sent and may have been accepted"
            elif earlier.verb == later.verb and one.body != other.body and not is_refused:
                yield f"{later.verb} of {where} is another one than before"


def ends_are_repeated_byte_for_byte(_: Case, record: Record) -> Iterator[str]:
    """The next call about an end without an answer is the same call."""
    for verb in ENDS:
        for earlier, later in pairwise(record.calls(verb)):
            again = {item.job for item in earlier.items} & {item.job for item in later.items}
            is_unanswered = (
                not earlier.is_answered and earlier.outcome not in REFUSALS and not earlier.malformed
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
    seen: set[Lease] = set()
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


def _spans(case: Case, record: Record) -> Iterator[tuple[int, float, float]]:
    """Yield for each lease the process that has it, and the time in which it surely takes a slot.

    That is from the answer that granted it, until its end is answered or it is over in any other way.
    """
    over = _over(case, record)
    renewed: dict[Lease, list[float]] = {}
    for call, item in _items(record, "heartbeat"):
        if call.is_answered and item.status == "ok":
            renewed.setdefault((item.job, item.version), []).append(call.at)
    seen: set[Lease] = set()
    length = case.worker["lease_seconds"] - SLACK_SECONDS
    for call in record.calls("lease"):
        for lease in call.granted if call.is_answered else ():
            if lease in seen or call.ended_at is None:
                continue
            seen.add(lease)
            # Counted from the call, as the client has to.
            end = call.at + length
            for at in renewed.get(lease, ()):
                end = at + length if at <= end else end
            yield call.run, call.ended_at, min(end, over.get(lease, end))


def _over(case: Case, record: Record) -> dict[Lease, float]:
    """Return when each lease was over for its client, its clock aside."""
    over = _lost(record)
    given_up: dict[Lease, float] = {}
    for call, item in _items(record, *ENDS):
        lease = (item.job, item.version)
        if call.is_answered and call.ended_at is not None:
            over[lease] = min(call.ended_at, over.get(lease, call.ended_at))
        given_up.pop(lease, None)
        if call.verb != "complete" and call.outcome in REFUSALS and call.ended_at is not None:
            # Whether this was the time to give up is for the cases to say.
            given_up[lease] = call.ended_at
    over = given_up | over
    for event in record.events("ended"):
        plan = case.jobs.get(event.job or "")
        if plan is not None and any("settled" in step for step in plan.steps):
            # The event is read a little after it was written.
            over[event.job, event.version] = event.at - SLACK_SECONDS
    return over


def _lost(record: Record) -> dict[Lease, float]:
    """Return when a client learnt that a lease is over: by an answer, or by its clock."""
    lost: dict[Lease, float] = {}
    for job, version, at in (*_refused(record), *_passed_on(record), *_stopped(record)):
        lost[job, version] = min(at, lost.get((job, version), at))
    return lost


def _stopped(record: Record) -> Iterator[tuple[str | None, int | None, float]]:
    """Yield the leases whose handlers were told that they are lost, and when."""
    for event in record.events("stopped"):
        if event.body.get("reason") == "lease_lost":
            yield event.job, event.version, event.at


def _refused(record: Record) -> Iterator[tuple[str | None, int | None, float]]:
    """Yield what an answer called lease_lost or not_found, and when."""
    for call, item in _items(record, *HOLDER_CALLS):
        if call.is_answered and call.ended_at is not None and item.status in ("lease_lost", "not_found"):
            yield item.job, item.version, call.ended_at


def _passed_on(record: Record) -> Iterator[tuple[str, int, float]]:
    """Yield the leases of jobs that were granted again to this client, and when."""
    granted = set(_granted(record))
    for call in record.calls("lease"):
        if call.is_answered and call.ended_at is not None:
            for job, version in call.granted:
                for name, earlier in granted:
                    if name == job and earlier < version:
                        yield job, earlier, call.ended_at
