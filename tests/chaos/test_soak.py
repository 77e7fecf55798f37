"""A tiny run of the soak program, and what its judgement makes of numbers that grow."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.flatness import MIB, Kind, Window, compare, table
from benchmarks.soak import run

# Some seconds are no measure of these: of time on a busy machine, and of pools and caches that still fill.
NOT_JUDGED = (", p50", ", p99", "a second", "private memory", "resident memory", "database sessions")

STEADY = Window(
    gauges={
        (Kind.MEMORY, "service, resident memory"): 90 * MIB,
        (Kind.DESCRIPTORS, "service, descriptors"): 30,
        (Kind.THREADS, "service, threads"): 2,
        (Kind.TABLE, "ready, table"): 2 * MIB,
        (Kind.DEAD_TUPLES, "ready, dead tuples"): 12_000,
        (Kind.SESSIONS, "database sessions"): 10,
        (Kind.UNFINISHED, "unfinished jobs"): 500,
    },
    calls={"submit": [20.0] * 980 + [200.0] * 20, "cancel": [20.0] * 50},
    hot_ratio=0.99,
    jobs_a_second=100.0,
    grown={"finished jobs": "100 of 800 bytes"},
)


def _not_flat(first: Window, last: Window) -> list[str]:
    return [row.name for row in compare(first, last) if not row.is_flat]


@pytest.mark.slow
async def test_a_tiny_soak_run_passes(tmp_path: Path) -> None:
    report = await run(tmp_path, seconds=12, calls_a_second=20, processes=1)
    assert report.faults == []
    assert [row.name for row in report.rows if not row.is_flat and not row.name.endswith(NOT_JUDGED)] == []
    names = {row.name for row in report.rows}
    assert {"service, resident memory", "leases, table", "HOT updates of leases (ratio)"} <= names
    # The load has had everything in it; a window of two seconds may have missed some of it.
    for call in ("submit", "submit batch", "heartbeat", "heartbeat batch", "complete", "complete batch"):
        assert names & {f"{call}, p50", f"{call}, calls"}


def test_what_stays_as_it_was_is_flat() -> None:
    assert _not_flat(STEADY, STEADY) == []


@pytest.mark.parametrize(("kind", "name"), list(STEADY.gauges), ids=str)
def test_what_has_grown_in_proportion_to_time_is_named(kind: Kind, name: str) -> None:
    grown = {**STEADY.gauges, (kind, name): 2 * STEADY.gauges[kind, name]}
    assert _not_flat(STEADY, replace(STEADY, gauges=grown)) == [name]


def test_a_leak_of_one_kilobyte_a_job_is_named() -> None:
    """Five minutes at the usual rate bring some sixteen thousand jobs from window to window."""
    key = (Kind.MEMORY, "service, resident memory")
    leaky = replace(STEADY, gauges={**STEADY.gauges, key: STEADY.gauges[key] + 16_000 * 1024})
    assert _not_flat(STEADY, leaky) == [key[1]]


def test_a_process_that_was_replaced_is_named_twice() -> None:
    gone = {key: value for key, value in STEADY.gauges.items() if key[0] is not Kind.MEMORY}
    replaced = replace(STEADY, gauges={**gone, (Kind.MEMORY, "another, resident memory"): 80 * MIB})
    assert _not_flat(STEADY, replaced) == ["service, resident memory", "another, resident memory"]


def test_calls_that_have_become_slow_or_stopped_are_named() -> None:
    slow = replace(STEADY, calls={"submit": [60.0] * 980 + [900.0] * 20, "cancel": [20.0] * 50})
    assert _not_flat(STEADY, slow) == ["submit, p50", "submit, p99"]
    assert _not_flat(STEADY, replace(STEADY, calls={"cancel": [20.0] * 50})) == ["submit, calls"]


def test_the_slowest_of_a_few_calls_is_shown_and_not_judged() -> None:
    last = replace(STEADY, calls={**STEADY.calls, "cancel": [20.0] * 49 + [9000.0]})
    assert _not_flat(STEADY, last) == []
    assert "| cancel, p99 of 50 calls | 20.0 ms | 9000.0 ms |  |" in table(compare(STEADY, last))


@pytest.mark.parametrize("is_first", [True, False])
def test_cold_updates_are_named_in_either_window(*, is_first: bool) -> None:
    cold = replace(STEADY, hot_ratio=0.5)
    windows = (cold, STEADY) if is_first else (STEADY, cold)
    assert _not_flat(*windows) == ["HOT updates of leases (ratio)"]


def test_a_rate_that_the_service_no_longer_keeps_up_with_is_named() -> None:
    assert _not_flat(STEADY, replace(STEADY, jobs_a_second=80.0)) == ["jobs submitted a second"]


def test_the_table_marks_what_is_not_flat() -> None:
    text = table(compare(STEADY, replace(STEADY, jobs_a_second=80.0)))
    assert "| jobs submitted a second | 100.00 | 80.00 | ≥ 95.00 **NOT FLAT** |" in text
    assert "| finished jobs | 100 of 800 bytes | 100 of 800 bytes |  |" in text
