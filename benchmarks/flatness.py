"""What a soak calls flat: the first window beside the last one, row by row, and a limit for each kind of row.

The windows are a sixth of the run each, the first one behind a warm-up of a third. Something that grows in
proportion to time has doubled from the first to the last, so a limit that shall see it lies below two; the
slack on top is what a machine that has other things to do as well makes of numbers that are small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

MIB = 1024 * 1024
# Of fewer calls a window, p99 is little else than the slowest one.
P99_CALLS = 200


class Kind(Enum):
    """What is measured."""

    MEMORY = "bytes of memory"
    DESCRIPTORS = "open descriptors"
    THREADS = "threads"
    TABLE = "bytes of a table or its indexes"
    DEAD_TUPLES = "dead tuples"
    SESSIONS = "database sessions"
    UNFINISHED = "unfinished jobs"
    P50 = "median milliseconds"
    P99 = "milliseconds, 99th percentile"


# The last window may have the first one's value times the factor, plus the slack.
LIMITS: Mapping[Kind, tuple[float, float]] = {
    Kind.MEMORY: (1.05, 4 * MIB),
    Kind.DESCRIPTORS: (1.10, 8),
    Kind.THREADS: (1.0, 1),
    Kind.TABLE: (1.50, MIB / 2),
    Kind.DEAD_TUPLES: (1.50, 5000),
    Kind.SESSIONS: (1.0, 1),
    Kind.UNFINISHED: (1.50, 200),
    Kind.P50: (1.50, 15),
    Kind.P99: (2.0, 150),
}
# The rows that must not fall: a share of updates, and what the generator gets done a second.
HOT_LEAST = 0.95
RATE_LEAST = 0.95

_BYTES = frozenset({Kind.MEMORY, Kind.TABLE})
_MILLISECONDS = frozenset({Kind.P50, Kind.P99})


@dataclass(frozen=True, slots=True)
class Window:
    """One window: the greatest of each gauge, the milliseconds of each call, and two ratios.

    ``hot_ratio`` is None where nothing was updated. ``grown`` is shown and not judged.
    """

    gauges: Mapping[tuple[Kind, str], float]
    calls: Mapping[str, Sequence[float]]
    hot_ratio: float | None
    jobs_a_second: float
    grown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``limit`` is empty where nothing is judged."""

    name: str
    first: str
    last: str
    limit: str = ""
    is_flat: bool = True


def compare(first: Window, last: Window) -> list[Row]:
    """Return every row; what is missing from the last window (a process that ended) is not flat."""
    rows = [
        _judged(kind, name, value, last.gauges.get((kind, name)))
        for (kind, name), value in first.gauges.items()
    ]
    for kind, name in last.gauges.keys() - first.gauges.keys():
        rows.append(Row(name, "-", _text(kind, last.gauges[kind, name]), "not there before", is_flat=False))
    rows.append(_floor("HOT updates of leases (ratio)", first.hot_ratio, last.hot_ratio, least=HOT_LEAST))
    least = RATE_LEAST * first.jobs_a_second
    rows.append(_floor("jobs submitted a second", first.jobs_a_second, last.jobs_a_second, least=least))
    for name in sorted(first.calls.keys() | last.calls.keys()):
        rows += _compare_calls(name, sorted(first.calls.get(name, ())), sorted(last.calls.get(name, ())))
    rows += [Row(name, value, last.grown.get(name, "-")) for name, value in first.grown.items()]
    return rows


def _compare_calls(name: str, first: Sequence[float], last: Sequence[float]) -> Iterable[Row]:
    if not first or not last:
        # A rare call may be missing by chance, a frequent one has stopped.
        is_chance = max(len(first), len(last)) < P99_CALLS
        yield Row(f"{name}, calls", f"{len(first):,}", f"{len(last):,}", "some in both", is_flat=is_chance)
        return
    yield _judged(Kind.P50, f"{name}, p50", _percentile(first, 50), _percentile(last, 50))
    p99 = (_percentile(first, 99), _percentile(last, 99))
    if min(len(first), len(last)) >= P99_CALLS:
        yield _judged(Kind.P99, f"{name}, p99", *p99)
    else:
        before, after = (_text(Kind.P99, value) for value in p99)
        yield Row(f"{name}, p99 of {min(len(first), len(last))} calls", before, after)


def _judged(kind: Kind, name: str, first: float, last: float | None) -> Row:
    factor, slack = LIMITS[kind]
    limit = first * factor + slack
    if last is None:
        return Row(name, _text(kind, first), "gone", f"≤ {_text(kind, limit)}", is_flat=False)
    return Row(name, _text(kind, first), _text(kind, last), f"≤ {_text(kind, limit)}", is_flat=last <= limit)


def _floor(name: str, first: float | None, last: float | None, *, least: float) -> Row:
    before, after = ("none" if value is None else f"{value:.2f}" for value in (first, last))
    is_flat = all(value is None or value >= least for value in (first, last))
    return Row(name, before, after, f"≥ {least:.2f}", is_flat=is_flat)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _text(kind: Kind, value: float) -> str:
    if kind in _BYTES:
        return f"{value / MIB:.1f} MiB"
    if kind in _MILLISECONDS:
        return f"{value:.1f} ms"
    return f"{value:,.0f}"


def table(rows: Iterable[Row]) -> str:
    """Return the rows as Markdown; what is not flat says so."""
    lines = ["| | first window | last window | limit |", "|---|---:|---:|---:|"]
    for row in rows:
        verdict = row.limit if row.is_flat else f"{row.limit} **NOT FLAT**"
        lines.append(f"| {row.name} | {row.first} | {row.last} | {verdict} |")
    return "\n".join(lines)
