"""Who is measured when: all one after another, then again, each round starting with another one."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import backlogs, measures
from benchmarks.peers.floor import floor
from benchmarks.peers.results import FLOOR, Reading, Writer
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import System

Measure = Callable[[Stage, System], Iterator[Reading]]

MEASURES: Mapping[str, Measure] = {
    "enqueue": measures.enqueue,
    "drain": measures.drain,
    "two-workers": measures.two_workers,
    "pickup": measures.pickup,
    "paced": measures.paced,
    "churn": backlogs.churn,
    "finished": backlogs.finished,
    "scheduled": backlogs.scheduled,
    "pending": backlogs.pending,
}
# These take minutes a system, so that their rounds are counted apart.
HEAVY = frozenset({"churn", "finished", "scheduled", "pending"})
DEFAULT = ("floor", "enqueue", "drain", "pickup", "paced", "churn", "finished", "scheduled")


def run_rounds(
    stage: Stage,
    systems: Sequence[System],
    *,
    measured: Sequence[str],
    rounds: int,
    heavy_rounds: int,
    pgbench: Path,
    writer: Writer,
) -> None:
    """Measure every system in every round; what fails is written down, and the rest goes on."""
    light = [name for name in measured if name in MEASURES and name not in HEAVY]
    heavy = [name for name in measured if name in HEAVY]
    for number in range(1, max(rounds, heavy_rounds) + 1):
        order = _rotated(systems, number - 1)
        if number <= rounds:
            if "floor" in measured:
                readings = floor(stage.databases, pgbench)
                _write(writer, FLOOR, "floor", readings, round_number=number)
            for system in order:
                writer.reading(system.name, _core_speed(), round_number=number)
                _measure(stage, system, light, writer=writer, round_number=number)
        if number <= heavy_rounds:
            # Measure by measure, so that the systems stand close to each other.
            for name in heavy:
                for system in order:
                    _measure(stage, system, [name], writer=writer, round_number=number)


def _measure(
    stage: Stage, system: System, names: Sequence[str], *, writer: Writer, round_number: int
) -> None:
    for name in names:
        if (system.drain_only and name != "drain") or (name in HEAVY and system.store != "postgres"):
            continue
        _write(writer, system.name, name, MEASURES[name](stage, system), round_number=round_number)


def _write(
    writer: Writer, system: str, measure: str, readings: Iterator[Reading], *, round_number: int
) -> None:
    try:
        for reading in readings:
            writer.reading(system, reading, round_number=round_number)
    except Exception as error:  # noqa: BLE001 - one system's fault must not end an hour's run; the report shows it
        writer.error(system, measure, error, round_number=round_number)


def _rotated(systems: Sequence[System], by: int) -> list[System]:
    start = by % len(systems)
    return [*systems[start:], *systems[:start]]


def _core_speed() -> Reading:
    """How fast one core is at this moment: a fixed loop over small integers."""
    steps, total = 2_000_000, 0
    started_at = time.perf_counter()
    for i in range(steps):
        total += i & 7
    return Reading("core_speed", steps / (time.perf_counter() - started_at) / 1e6, "Msteps/s")
