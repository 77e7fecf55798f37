"""What happened in one case: calls, events and acts, on one clock."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# How a call ended, apart from an answer with a status.
ANSWERED, LOST, RESET, CLOSED, OPEN = "answered", "lost", "reset", "closed", "open"

ENDS = ("complete", "fail", "release")


@dataclass
class Item:
    """One job in a call: the single form of a call has one, the form for many one for each of its items.

    status is what the service says of it (ok, replayed, lease_lost, not_found, refused), also when that
    answer never arrives; None when the call was not done.
    """

    job_id: str | None
    job: str | None
    version: int | None
    body: Mapping[str, Any]
    status: str | None = None


@dataclass
class Call:
    """One request as it arrived, and what became of it.

    Times are seconds since the case began. ``outcome`` is ``answered``, ``lost`` (done, never answered),
    ``reset`` (neither done nor answered), ``closed`` (the client went before the answer), ``open``, or the
    status of a refusal.
    ``granted`` are the jobs and versions in a lease answer; ``rider`` is the complete within a lease call.
    """

    at: float
    run: int
    verb: str
    target: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any = None
    items: list[Item] = field(default_factory=list)
    granted: list[tuple[str, int]] = field(default_factory=list)
    ended_at: float | None = None
    outcome: str = OPEN
    malformed: str | None = None
    rider: "Call | None" = None

    @property
    def is_answered(self) -> bool:
        """Whether the client has got an answer of 2xx."""
        return self.outcome == ANSWERED

    def answer_to(self, item: Item | None) -> str:
        """Return what the client learnt of an item, or of the call as a whole."""
        return item.status or ANSWERED if item is not None and self.is_answered else self.outcome

    def line(self) -> str:
        parts = [f"{item.job or item.job_id or ''}·v{item.version}" for item in self.items]
        told = [f"{item.job}: {item.status}" for item in self.items if item.status not in (None, "ok")]
        granted = [f"{job}·v{version}" for job, version in self.granted]
        answer = self.outcome + (
            f" after {self.ended_at - self.at:.2f} s" if self.ended_at is not None else ""
        )
        text = f"{self.verb:<9} {' '.join(parts)} {shortened(self.raw)} → {answer}"
        if granted:
            text += f", granted {' '.join(granted)}"
        if told:
            text += f" ({', '.join(told)})"
        return text + (f"  MALFORMED: {self.malformed}" if self.malformed else "")


@dataclass
class Event:
    """A line that the adapter wrote, at the time when it was read."""

    at: float
    run: int
    name: str
    job: str | None
    version: int | None
    body: Mapping[str, Any]

    def line(self) -> str:
        told = {
            key: value for key, value in self.body.items() if key not in ("event", "job_id", "lease_version")
        }
        subject = f"{self.job}·v{self.version}" if self.job else ""
        return f"  event {self.name} {subject} {json.dumps(told) if told else ''}".rstrip()


@dataclass
class Act:
    """Something that the script did, or that befell the process."""

    at: float
    run: int
    name: str
    job: str | None = None
    told: str = ""

    def line(self) -> str:
        return f"  *** {self.name} {self.job or ''} {self.told}".rstrip()


Entry = Call | Event | Act


@dataclass
class Record:
    """Everything of one case, in the order in which it was seen.

    ``job_ids`` has the id of each job that the case gives a letter.
    """

    entries: list[Entry] = field(default_factory=list)
    job_ids: Mapping[str, str] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def calls(self, *verbs: str) -> Iterator[Call]:
        """Yield the calls of these verbs, of all without one."""
        for entry in self.entries:
            if isinstance(entry, Call) and (not verbs or entry.verb in verbs):
                yield entry

    def events(self, name: str) -> Iterator[Event]:
        for entry in self.entries:
            if isinstance(entry, Event) and entry.name == name:
                yield entry

    @property
    def is_answered(self) -> bool:
        """Whether the last end of every job has been answered."""
        last = {item.job: call for call in self.calls(*ENDS) for item in call.items}
        return all(call.is_answered for call in last.values())

    def timeline(self) -> list[str]:
        """Return a line for each entry, with its time."""
        return [
            f"{entry.at:8.3f}  {entry.line()}" for entry in sorted(self.entries, key=lambda entry: entry.at)
        ]


def shortened(raw: bytes, limit: int = 200) -> str:
    text = raw.decode(errors="replace")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
