"""What a case expects, looked up in the record of what happened.

Each entry of ``expect`` is one of

    {seen: M, times: n}                 M happened n times; or times: [least, most or null]
    {never: M}                          M did not happen
    {order: [M, M, …]}                  each happened, the first time after the one before it
    {time: [M, M], at_least: s, at_most: s}   between the two
    {gaps: M, at_least: s, at_most: s}  between each M and the next
    {pauses_grow: M}                    the later gaps are longer than the first ones
    {same: path, of: M}                 all M have the same value there; there is at least one
    {different: path, of: M}            no two M have the same value there; there are at least two
    {growing: path, of: M}              each M has a higher value there than the one before; at least two
                                        of: [M, M, …] compares just these, for all three
    {every: M, has: [a, b]}             each M is about these jobs and no other, and there is at least one

The first two, ``gaps``, ``pauses_grow`` and ``every`` take ``after: M`` and ``before: M``; with ``slack``
they begin so many seconds later, for what is under way. ``why`` says in a sentence what a failure means.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from clients.conformance.case import CaseError
from clients.conformance.moments import Moment, described, find, one
from clients.conformance.record import Call, Record

_WINDOW = {"after", "before", "slack", "why"}
_MEMBERS = {
    "seen": {"seen", "times"} | _WINDOW,
    "never": {"never"} | _WINDOW,
    "order": {"order", "why"},
    "time": {"time", "at_least", "at_most", "why"},
    "gaps": {"gaps", "at_least", "at_most"} | _WINDOW,
    "pauses_grow": {"pauses_grow"} | _WINDOW,
    "same": {"same", "of", "why"},
    "different": {"different", "of", "why"},
    "growing": {"growing", "of", "why"},
    "every": {"every", "has"} | _WINDOW,
}


class Unmet(Exception):
    """An expectation that the record does not meet, in a sentence."""


def failures(record: Record, expectations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each expectation that is not met."""
    found = []
    for expectation in expectations:
        try:
            _check(record, expectation)
        except Unmet as unmet:
            why = f" ({expectation['why']})" if "why" in expectation else ""
            found.append(f"{unmet}{why}")
    return found


def _check(record: Record, expectation: Mapping[str, Any]) -> None:
    kind = next((name for name in _MEMBERS if name in expectation), None)
    if kind is None or set(expectation) - _MEMBERS[kind]:
        raise CaseError(f"no such expectation: {dict(expectation)}")
    found = _within(record, expectation, expectation[kind]) if "after" in _MEMBERS[kind] else []
    match kind:
        case "seen":
            _seen(found, expectation)
        case "never":
            _never(found, expectation)
        case "order":
            _order(record, expectation["order"])
        case "time":
            start, end = (_needed(record, wanted) for wanted in expectation["time"])
            name = " to ".join(described(wanted) for wanted in expectation["time"])
            _bounded(end.at - start.at, expectation, f"from {name}")
        case "gaps":
            for gap in _gaps(found):
                _bounded(gap, expectation, f"between one {_text(expectation, 'gaps')} and the next")
        case "pauses_grow":
            _pauses_grow(found, expectation)
        case "every":
            _every(found, expectation)
        case _:
            _values(record, expectation, kind)


def _within(record: Record, expectation: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Moment]:
    """Return the moments between ``after`` and ``before``."""
    start, end = float("-inf"), float("inf")
    if "after" in expectation:
        start = _needed(record, expectation["after"]).at + expectation.get("slack", 0)
    if "before" in expectation:
        end = _needed(record, expectation["before"]).at
    return [moment for moment in find(record, wanted) if start < moment.at < end]


def _needed(record: Record, wanted: Mapping[str, Any]) -> Moment:
    found = one(record, wanted)
    if found is None:
        raise Unmet(f"did not happen: {described(wanted)}")
    return found


def _text(expectation: Mapping[str, Any], kind: str) -> str:
    text = described(expectation[kind])
    for side in ("after", "before"):
        if side in expectation:
            text += f", {side} {described(expectation[side])}"
    return text


def _seen(found: Sequence[Moment], expectation: Mapping[str, Any]) -> None:
    times = expectation.get("times", [1, None])
    least, most = times if isinstance(times, list) else (times, times)
    if len(found) < least or (most is not None and len(found) > most):
        wanted = (
            f"{least} times"
            if least == most
            else f"{least} to {'any number' if most is None else most} times"
        )
        raise Unmet(f"happened {len(found)} times, not {wanted}: {_text(expectation, 'seen')}")


def _never(found: Sequence[Moment], expectation: Mapping[str, Any]) -> None:
    if found:
        times = ", ".join(f"{moment.at:.2f}" for moment in found)
        raise Unmet(f"must not happen, but did at {times} s: {_text(expectation, 'never')}")


def _order(record: Record, wanted: Sequence[Mapping[str, Any]]) -> None:
    last = float("-inf")
    for index, moment in enumerate(wanted):
        found = [candidate.at for candidate in find(record, moment) if candidate.at >= last]
        if not found:
            before = f" after {described(wanted[index - 1])} at {last:.2f} s" if index else ""
            raise Unmet(f"did not happen{before}: {described(moment)}")
        last = found[0]


def _gaps(found: Sequence[Moment]) -> list[float]:
    return [later.at - earlier.at for earlier, later in pairwise(found)]


def _bounded(seconds: float, expectation: Mapping[str, Any], text: str) -> None:
    least, most = expectation.get("at_least", float("-inf")), expectation.get("at_most", float("inf"))
    if not least <= seconds <= most:
        wanted = f"at least {least}" if seconds < least else f"at most {most}"
        raise Unmet(f"{seconds:.2f} s instead of {wanted} s {text}")


def _pauses_grow(found: Sequence[Moment], expectation: Mapping[str, Any]) -> None:
    gaps = _gaps(found)
    if len(gaps) < 3:
        raise Unmet(f"only {len(found)} of them, too few to see: {_text(expectation, 'pauses_grow')}")
    if gaps[-1] < 2 * gaps[0]:
        seen = ", ".join(f"{gap:.2f}" for gap in gaps)
        raise Unmet(f"the pauses do not grow ({seen} s): {_text(expectation, 'pauses_grow')}")


def _every(found: Sequence[Moment], expectation: Mapping[str, Any]) -> None:
    if not found:
        raise Unmet(f"did not happen: {_text(expectation, 'every')}")
    for moment in found:
        jobs = (
            sorted(item.job or "?" for item in moment.entry.items) if isinstance(moment.entry, Call) else []
        )
        if jobs != sorted(expectation["has"]):
            where = f"at {moment.at:.2f} s: {_text(expectation, 'every')}"
            raise Unmet(f"is about {jobs}, not {expectation['has']}, {where}")


def _values(record: Record, expectation: Mapping[str, Any], kind: str) -> None:
    path, wanted = expectation[kind], expectation["of"]
    if isinstance(wanted, list):
        moments = [_needed(record, each) for each in wanted]
        text = f"{path} of {', '.join(described(each) for each in wanted)}"
    else:
        moments, text = find(record, wanted), f"{path} of {described(wanted)}"
    values = [moment.value(path) for moment in moments]
    if len(values) < (1 if kind == "same" else 2):
        raise Unmet(f"there are {len(values)}, too few to compare: {text}")
    if None in values:
        raise Unmet(f"is missing once: {text}")
    pairs = list(pairwise(values))
    if kind == "same" and any(left != right for left, right in pairs):
        raise Unmet(f"is not the same each time: {text}: {values}")
    if kind == "different" and len({repr(value) for value in values}) < len(values):
        raise Unmet(f"is the same twice: {text}: {values}")
    if kind == "growing" and any(not left < right for left, right in pairs):
        raise Unmet(f"does not grow each time: {text}: {values}")
