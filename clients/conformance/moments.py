"""Finds in a record what an expectation or a script speaks of.

A moment is written ``{call: complete, job: a}``, ``{event: stopped, job: a}`` or ``{act: SIGTERM}``. The call
``end`` is any of complete, fail and release. With any of

    job        the job's letter: then each item of a call counts for itself, else a call counts once
    version    of the job, counted from its first grant in this case: 1, 2, …
    run        the number of the adapter's process, from 1
    answer     what the client learnt: of an item ok, replayed, lease_lost or not_found; of a call answered,
               lost, reset, closed, or the status of a refusal
    with       members that have to be there, with these values
    without    members that must not be there
    items      true: each item of a call counts for itself
    nth        which one is meant where one is needed: 1 is the first (and the default), -1 the last
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clients.conformance.case import CaseError
from clients.conformance.record import ENDS, Act, Call, Event, Item, Record

MEMBERS = {"items", "call", "event", "act", "job", "version", "run", "answer", "with", "without", "nth"}


@dataclass(frozen=True)
class Moment:
    """An entry of the record, or one item of a call in it."""

    at: float
    entry: Call | Event | Act
    item: Item | None = None

    @property
    def body(self) -> Any:
        if self.item is not None:
            return self.item.body
        return {} if isinstance(self.entry, Act) else self.entry.body

    def value(self, path: str) -> Any:
        """Return what stands at a path such as ``progress.seq``; None when nothing does.

        ``raw`` is the whole request as sent, ``target`` its address, ``header.x`` one header.
        """
        if isinstance(self.entry, Call):
            if path == "raw":
                return self.entry.raw
            if path.startswith("header."):
                return self.entry.headers.get(path.removeprefix("header."))
        found = self.body
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def find(record: Record, wanted: Mapping[str, Any]) -> list[Moment]:
    """Return every moment that fits, in the order of time."""
    if unknown := set(wanted) - MEMBERS:
        raise CaseError(f"unknown in a moment: {', '.join(sorted(unknown))}")
    if len({"call", "event", "act"} & set(wanted)) != 1:
        raise CaseError(f"a moment is a call, an event or an act: {wanted}")
    return [moment for moment in _candidates(record, wanted) if _fits(record, moment, wanted)]


def one(record: Record, wanted: Mapping[str, Any]) -> Moment | None:
    """Return the moment that is meant, by its ``nth``; None when it did not come."""
    found = find(record, wanted)
    nth = wanted.get("nth", 1)
    index = nth if nth < 0 else nth - 1
    return found[index] if -len(found) <= index < len(found) else None


def first_version(record: Record, job: str) -> int | None:
    """Return the version under which a job was granted first."""
    return next(
        (version for call in record.calls("lease") for name, version in call.granted if name == job), None
    )


def described(wanted: Mapping[str, Any]) -> str:
    """Return a moment as a reader says it."""
    kind, name = next((key, wanted[key]) for key in ("call", "event", "act") if key in wanted)
    rest = {key: value for key, value in wanted.items() if key != kind}
    details = ", ".join(f"{key} {value}" for key, value in rest.items())
    return f"{kind} {name}" + (f" ({details})" if details else "")


def _candidates(record: Record, wanted: Mapping[str, Any]) -> Iterator[Moment]:
    for entry in record.entries:
        match entry:
            case Call() if entry.verb == wanted.get("call") or (
                wanted.get("call") == "end" and entry.verb in ENDS
            ):
                if "job" in wanted or "items" in wanted:
                    for item in entry.items:
                        yield Moment(entry.at, entry, item)
                else:
                    yield Moment(entry.at, entry)
            case Event() if entry.name == wanted.get("event"):
                yield Moment(entry.at, entry)
            case Act() if entry.name == wanted.get("act"):
                yield Moment(entry.at, entry)
            case _:
                pass


def _fits(record: Record, moment: Moment, wanted: Mapping[str, Any]) -> bool:
    subject = moment.item or moment.entry
    if "job" in wanted and getattr(subject, "job", None) != wanted["job"]:
        return False
    if "version" in wanted and _grant(record, wanted, getattr(subject, "version", None)) != wanted["version"]:
        return False
    if wanted.get("run", moment.entry.run) != moment.entry.run:
        return False
    if "answer" in wanted and (
        not isinstance(moment.entry, Call) or moment.entry.answer_to(moment.item) != str(wanted["answer"])
    ):
        return False
    return includes(moment.body, _filled(record, wanted.get("with", {}))) and not any(
        moment.value(path) is not None for path in wanted.get("without", [])
    )


def _filled(record: Record, value: Any) -> Any:
    """Put in what only the run knows: ``<a.id>`` and ``<a.version>``, of the first grant."""
    if isinstance(value, Mapping):
        return {key: _filled(record, member) for key, member in value.items()}
    if isinstance(value, list):
        return [_filled(record, member) for member in value]
    if isinstance(value, str) and (found := re.match(r"<(\w+)\.(id|version)>", value)):
        if found[2] == "version":
            return first_version(record, found[1])
        return record.job_ids[found[1]] + value[found.end() :]
    return value


def _grant(record: Record, wanted: Mapping[str, Any], version: int | None) -> int:
    versions = sorted(
        {
            number
            for call in record.calls("lease")
            for name, number in call.granted
            if name == wanted.get("job")
        }
    )
    return versions.index(version) + 1 if version in versions else 0


def includes(actual: Any, wanted: Any) -> bool:
    """Return whether all that is wanted is there: objects may have more members, nothing else may."""
    if isinstance(wanted, Mapping):
        return isinstance(actual, Mapping) and all(
            key in actual and includes(actual[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(includes(*pair) for pair in zip(actual, wanted, strict=True))
        )
    # 1 and true are equal to Python, not to JSON.
    return bool(actual == wanted and isinstance(actual, bool) == isinstance(wanted, bool))
