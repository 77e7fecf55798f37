"""What a history says about each job, without judging it.

    Call      a request with its answer, if there was one
    Wish      somebody asked for a job
    Grant     a lease call was answered with a job
    Word      a holder spoke under a version: heartbeat, complete, fail, release, verify, or a child job
    Cancel    somebody asked for an end
    Sighting  an answer showed a version, and maybe a state, of a job
    JobFacts  all of these about one job, and where the final list has it

A call without an answer, or with a 5xx, is in doubt: it may have been done, at any time since it began.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.chaos.history import Answered, Asked, Event, Json, Listed, Unanswered

SETTLING = frozenset({"complete", "fail", "release"})
HOLDER_VERBS = SETTLING | {"heartbeat", "verify"}
TERMINAL = frozenset({"succeeded", "dead", "cancelled"})
CHILD = "child"
DEFAULT_MAX_ATTEMPTS = 10


class HistoryError(Exception):
    """The history holds something that no rule judges, so that silence would be no proof."""


class Verdict(Enum):
    """What became of a call; ``DOUBT`` means that nobody knows."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    REFUSED = "refused"
    DOUBT = "doubt"

    @property
    def is_success(self) -> bool:
        return self in (Verdict.ACCEPTED, Verdict.REPLAYED)


@dataclass(frozen=True, slots=True)
class Call:
    """``ended_at`` is infinite while the call is in doubt: it may still be done."""

    number: int
    asked: Asked
    answer: Answered | None
    answer_number: int | None

    @property
    def is_in_doubt(self) -> bool:
        return self.answer is None or self.answer.status >= 500

    @property
    def began_at(self) -> float:
        return self.asked.at

    @property
    def ended_at(self) -> float:
        return math.inf if self.answer is None or self.is_in_doubt else self.answer.at

    @property
    def events(self) -> tuple[int, ...]:
        return (self.number,) if self.answer_number is None else (self.number, self.answer_number)

    @property
    def verdict(self) -> Verdict:
        """Judge a call that stands for one thing only."""
        if self.answer is None or self.is_in_doubt:
            return Verdict.DOUBT
        if self.answer.status >= 400:
            return Verdict.REFUSED
        return Verdict.REPLAYED if self.answer.is_replay else Verdict.ACCEPTED

    @property
    def answer_jobs(self) -> list[Json]:
        """The jobs that a lease call or a batch was answered with."""
        jobs: list[Json] = [] if self.answer is None else self.answer.body["jobs"]
        return jobs


@dataclass(frozen=True, slots=True)
class Token:
    job_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Wish:
    """``mark`` is the one name that a job has before it has an id; ``job_id`` is None without an answer."""

    call: Call
    mark: str
    key: str | None
    max_attempts: int
    verdict: Verdict
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Grant:
    """``began_at`` is when the first call with this request_id began: it may be the one that was granted."""

    call: Call
    token: Token
    attempt: int
    requester: tuple[str, str]
    began_at: float
    has_doubtful_twin: bool


@dataclass(frozen=True, slots=True)
class Word:
    """``said`` is what was said under the version, in one spelling, so that repeats are equal."""

    call: Call
    token: Token
    verb: str
    said: str
    body: Json
    verdict: Verdict

    @property
    def identity(self) -> tuple[Token, str, str]:
        return (self.token, self.verb, self.said)

    @property
    def result(self) -> str:
        return spell(self.body.get("result"))

    @property
    def follow_up_marks(self) -> list[str]:
        return [job["metadata"]["mark"] for job in self.body.get("enqueue", [])]


@dataclass(frozen=True, slots=True)
class Cancel:
    call: Call
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sighting:
    """``state`` is None where the answer does not show it."""

    at: float
    events: tuple[int, ...]
    version: int
    state: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the final list."""

    number: int
    job: Json

    @property
    def mark(self) -> str:
        mark: str = self.job["metadata"]["mark"]
        return mark

    @property
    def ending(self) -> tuple[str, int, str]:
        return (self.job["state"], self.job["lease_version"], spell(self.job["result"]))


@dataclass(slots=True)
class JobFacts:
    """``rows`` are those of the list of all, ``rows_by_state`` those of the lists of one state each."""

    job_id: str
    wishes: list[Wish] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    rows_by_state: list[tuple[str, Row]] = field(default_factory=list)

    @property
    def settling(self) -> Iterator[Word]:
        return (word for word in self.words if word.verb in SETTLING)

    @property
    def completes(self) -> Iterator[Word]:
        return (word for word in self.words if word.verb == "complete")


@dataclass(slots=True)
class Facts:
    jobs: dict[str, JobFacts] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    wishes_by_mark: dict[str, list[Wish]] = field(default_factory=lambda: defaultdict(list))
    wishes_by_key: dict[str, list[Wish]] = field(default_factory=lambda: defaultdict(list))
    rows_by_mark: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    follow_up_marks: set[str] = field(default_factory=set)

    @property
    def lease_calls(self) -> list[Call]:
        return [call for call in self.calls if call.asked.path == "/v1/leases"]

    def job(self, job_id: str) -> JobFacts:
        return self.jobs.setdefault(job_id, JobFacts(job_id))


def spell(value: object) -> str:
    """Write a JSON value in one spelling."""
    return json.dumps(value, sort_keys=True)


def gather(events: Sequence[Event]) -> Facts:
    """Read a whole history. Raises HistoryError for a call that no rule knows."""
    facts = Facts()
    facts.calls = list(_calls(events))
    requests: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in facts.lease_calls:
        requests[requester(call)].append(call)
    for call in facts.calls:
        _read_call(facts, call, requests)
    for number, event in enumerate(events, start=1):
        if isinstance(event, Listed):
            _read_page(facts, number, event)
    return facts


def _calls(events: Sequence[Event]) -> Iterator[Call]:
    answers: dict[str, tuple[int, Answered]] = {}
    for number, event in enumerate(events, start=1):
        if isinstance(event, Answered):
            answers[event.call] = (number, event)
    asked_calls = set()
    for number, event in enumerate(events, start=1):
        if isinstance(event, Asked):
            if event.call in asked_calls:
                raise HistoryError(f"call {event.call} was asked twice")
            asked_calls.add(event.call)
            answer_number, answer = answers.get(event.call, (None, None))
            yield Call(number, event, answer, answer_number)
        elif isinstance(event, Answered | Unanswered) and event.call not in asked_calls:
            raise HistoryError(f"call {event.call} ended before it was asked")


def _read_call(facts: Facts, call: Call, requests: dict[tuple[str, str], list[Call]]) -> None:
    match call.asked.method, call.asked.path.split("/")[2:]:
        case "POST", ["jobs"]:
            _read_submission(facts, call, [call.asked.body], [call.asked.key])
        case "POST", ["jobs", "batch"]:
            jobs = call.asked.body["jobs"]
            _read_submission(facts, call, jobs, [job.get("idempotency_key") for job in jobs])
        case "POST", ["leases"]:
            _read_lease(facts, call, requests[requester(call)])
        case "POST", ["leases", verb] if verb in HOLDER_VERBS:
            _read_many(facts, call, verb)
        case "POST", ["jobs", job_id, "cancel"]:
            facts.job(job_id).cancels.append(Cancel(call, call.verdict))
            _sight_answer(facts, call, job_id)
        case "POST", ["jobs", job_id, verb] if verb in HOLDER_VERBS:
            _note_word(facts, call, verb, {"job_id": job_id, **call.asked.body}, call.verdict)
            _sight_answer(facts, call, job_id)
        case method, path:
            raise HistoryError(f"no rule judges {method} {'/'.join(path)}")


def _read_submission(facts: Facts, call: Call, jobs: Sequence[Json], keys: Sequence[str | None]) -> None:
    answers: list[tuple[Verdict, Json | None]] = [(call.verdict, None)] * len(jobs)
    if call.answer is not None and call.verdict.is_success:
        if "jobs" in call.answer.body:
            answers = [
                (Verdict.ACCEPTED if item["created"] else Verdict.REPLAYED, item["job"])
                for item in call.answer_jobs
            ]
        else:
            answers = [(call.verdict, call.answer.body)]
    for job, key, (verdict, made) in zip(jobs, keys, answers, strict=True):
        wish = Wish(
            call,
            mark=job["metadata"]["mark"],
            key=key,
            max_attempts=job.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
            verdict=verdict,
            job_id=None if made is None else made["id"],
        )
        facts.wishes_by_mark[wish.mark].append(wish)
        if key is not None:
            facts.wishes_by_key[key].append(wish)
        if made is not None:
            facts.job(made["id"]).wishes.append(wish)
            _sight(facts, call, made)
        # A known key is answered before the parent's lease is looked at.
        if "parent" in job and verdict is not Verdict.REPLAYED:
            _note_word(facts, call, CHILD, {**job["parent"], "mark": wish.mark}, verdict)


def _read_lease(facts: Facts, call: Call, twins: Sequence[Call]) -> None:
    if not call.verdict.is_success:
        return
    for leased in call.answer_jobs:
        grant = Grant(
            call,
            Token(leased["id"], leased["lease_version"]),
            attempt=leased["attempt"],
            requester=requester(call),
            began_at=min(twin.began_at for twin in twins),
            has_doubtful_twin=any(twin.is_in_doubt for twin in twins),
        )
        job = facts.job(leased["id"])
        job.grants.append(grant)
        job.sightings.append(Sighting(call.ended_at, call.events, grant.token.version, "running"))


def requester(call: Call) -> tuple[str, str]:
    """Name what a lease call and its repeats have in common; without a request_id it has no repeats."""
    body = call.asked.body
    return (body["worker_id"], body.get("request_id", f"call {call.asked.call}"))


_VERDICTS = {"ok": Verdict.ACCEPTED, "replayed": Verdict.REPLAYED}


def _read_many(facts: Facts, call: Call, verb: str) -> None:
    items = call.asked.body["items"]
    if call.answer is None or not call.verdict.is_success:
        for item in items:
            _note_word(facts, call, verb, item, call.verdict)
        return
    for item, result in zip(items, call.answer.body["results"], strict=True):
        verdict = _VERDICTS.get(result["status"], Verdict.REFUSED)
        _note_word(facts, call, verb, item, verdict)
        held = {"lease_version": item["lease_version"]} if verdict is Verdict.ACCEPTED else {}
        _sight(facts, call, {**held, **result, "id": item["job_id"]})


def _note_word(facts: Facts, call: Call, verb: str, item: Json, verdict: Verdict) -> None:
    token = Token(item["job_id"], item["lease_version"])
    body = {name: value for name, value in item.items() if name not in ("job_id", "lease_version")}
    word = Word(call, token, verb, spell(body), body, verdict)
    job = facts.job(token.job_id)
    job.words.append(word)
    if verdict is Verdict.ACCEPTED:
        job.sightings.append(Sighting(call.ended_at, call.events, token.version, None))
    if verb == "complete":
        facts.follow_up_marks |= set(word.follow_up_marks)


def _sight_answer(facts: Facts, call: Call, job_id: str) -> None:
    if call.answer is not None and isinstance(call.answer.body, dict):
        _sight(facts, call, {**call.answer.body, "id": job_id})


def _sight(facts: Facts, call: Call, shown: Json) -> None:
    """Note what an answer shows of a job, be it the job itself or a refusal."""
    version = shown.get("lease_version", shown.get("current_version"))
    state: Any = shown.get("state", shown.get("job_state"))
    if version is not None:
        facts.job(shown["id"]).sightings.append(Sighting(call.ended_at, call.events, version, state))


def _read_page(facts: Facts, number: int, page: Listed) -> None:
    for shown in page.jobs:
        row = Row(number, shown)
        job = facts.job(shown["id"])
        if page.state is None:
            job.rows.append(row)
            facts.rows_by_mark[row.mark].append(row)
        else:
            job.rows_by_state.append((page.state, row))


def successes(words: Iterable[Word]) -> list[Word]:
    return [word for word in words if word.verdict.is_success]
