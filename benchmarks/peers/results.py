"""Readings as JSON lines, and their medians.

The first line of a file is {"environment": {...}}. Then a reading is {"system", "metric", "value", "unit",
"round"}, and what failed is {"system", "measure", "error", "round"}.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FLOOR = "floor (pgbench)"


class Reading(NamedTuple):
    """One number that was measured."""

    metric: str
    value: float
    unit: str


class Writer:
    """Appends lines to a results file and prints them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def environment(self, found: dict[str, Any]) -> None:
        """Write down what is measured, and on what."""
        self._append({"environment": found})

    def reading(self, system: str, reading: Reading, *, round_number: int) -> None:
        """Write a number down."""
        value = round(reading.value, 3)
        self._append(
            {
                "system": system,
                "metric": reading.metric,
                "value": value,
                "unit": reading.unit,
                "round": round_number,
            }
        )

    def error(self, system: str, measure: str, error: Exception, *, round_number: int) -> None:
        """Write down that a measurement gave no number."""
        text = f"{type(error).__name__}: {error}"[:500]
        self._append({"system": system, "measure": measure, "error": text, "round": round_number})

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line)
        with self._path.open("a") as file:
            file.write(text + "\n")
        print(text, flush=True)


@dataclass(frozen=True, slots=True)
class Results:
    """All readings of one or more files, by system and metric, in the order of their first appearance."""

    environment: dict[str, Any]
    values: dict[str, dict[str, list[float]]] = field(repr=False)
    errors: list[dict[str, Any]] = field(repr=False)

    @property
    def systems(self) -> list[str]:
        """The systems with at least one number, without the floor; Fencepost's entries first."""
        named = [name for name in self.values if name != FLOOR]
        return sorted(named, key=lambda name: not name.startswith("fencepost"))

    def of(self, system: str, metric: str) -> list[float]:
        """Return the values of all rounds; none when it was not measured."""
        return self.values.get(system, {}).get(metric, [])

    def median(self, system: str, metric: str) -> float | None:
        """Return the median over the rounds, None when there is no value."""
        found = self.of(system, metric)
        return statistics.median(found) if found else None


def read(paths: Sequence[Path]) -> Results:
    """Read results files; the environment is that of the last one."""
    environment: dict[str, Any] = {}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    errors = []
    for path in paths:
        for line in path.read_text().splitlines():
            found = json.loads(line)
            if "environment" in found:
                environment = found["environment"]
            elif "error" in found:
                errors.append(found)
            else:
                values[found["system"]][found["metric"]].append(found["value"])
    return Results(environment, {name: dict(metrics) for name, metrics in values.items()}, errors)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which that share of the values lies, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
