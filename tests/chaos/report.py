"""The table in the end, and whether it is a good one."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checker import Account
from tests.chaos.measures import Trouble

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario; ``trouble`` is None where the database was left alone."""

    name: str
    history: Path
    account: Account
    doctor_findings: list[str]
    trouble: Trouble | None

    @property
    def complaints(self) -> list[str]:
        """One sentence for each thing that must not be."""
        found = [str(violation) for violation in self.account.violations]
        found += [f"fencepost doctor: {finding}" for finding in self.doctor_findings]
        if self.account.jobs_acknowledged == 0 or self.account.completes_accepted == 0:
            found.append("nothing was done: no proof")
        return found + (self.trouble.complaints if self.trouble else [])

    @property
    def is_good(self) -> bool:
        return not self.complaints

    def shown(self) -> Iterator[str]:
        """Yield the complaints, some of each rule."""
        counts: Counter[str] = Counter()
        for complaint in self.complaints:
            rule = complaint.split(":", 1)[0]
            counts[rule] += 1
            if counts[rule] <= _MOST_SHOWN:
                yield complaint
        yield from (f"{rule}: {count} in all" for rule, count in counts.items() if count > _MOST_SHOWN)


@dataclass(slots=True)
class Report:
    """``complaints`` are about replicas as processes; those about scenarios are in their outcomes."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.all_complaints and all(outcome.is_good for outcome in self.outcomes)

    @property
    def all_complaints(self) -> list[str]:
        """What is wrong with the run as a whole."""
        if any(outcome.account.stale_writes_attempted for outcome in self.outcomes):
            return self.complaints
        return [*self.complaints, "no stale write was attempted: no proof of the fence"]

    def lines(self) -> Iterator[str]:
        """Yield the table, then what is wrong."""
        yield f"| seed {self.seed} | {' | '.join(outcome.name for outcome in self.outcomes)} | all |"
        yield "|---" + "|---:" * (len(self.outcomes) + 1) + "|"
        for fault in sorted(total_faults(self)):
            yield self._cells(fault, [outcome.account.faults[fault] for outcome in self.outcomes])
        for title, count in _COUNTS.items():
            yield self._row(title, count)
        yield self._cells(
            "in two states, or other findings of the doctor",
            [len(outcome.doctor_findings) for outcome in self.outcomes],
        )
        yield self._row("violations", lambda account: len(account.violations))
        for outcome in self.outcomes:
            if outcome.trouble is not None:
                yield from self._trouble_lines(outcome.name, outcome.trouble)
        yield from (f"skipped: {each}" for each in self.skipped)
        yield from (f"WRONG: {each}" for each in self.all_complaints)
        for outcome in self.outcomes:
            yield from (f"WRONG: {outcome.name}: {each}" for each in outcome.shown())
            if not outcome.is_good:
                yield f"history of {outcome.name}: {outcome.history}"

    def _row(self, title: str, count: Callable[[Account], int]) -> str:
        return self._cells(title, [count(outcome.account) for outcome in self.outcomes])

    def _cells(self, title: str, counts: list[int]) -> str:
        return f"| {title} | {' | '.join(f'{count:,}' for count in counts)} | {sum(counts):,} |"

    def _trouble_lines(self, name: str, trouble: Trouble) -> Iterator[str]:
        count, seconds = trouble.count_5xx, trouble.longest_5xx_seconds
        yield f"{name}: {count:,} answers of 503, the longest after {seconds:.1f} s"
        yield f"{name}: the longest answer of all after {trouble.longest_answer_seconds:.1f} s"
        for fault, seconds in sorted(trouble.recovery_seconds.items()):
            yield f"{name}: served again {seconds:.1f} s after {fault}"


_COUNTS: dict[str, Callable[[Account], int]] = {
    "calls": lambda account: account.calls,
    "calls in doubt": lambda account: account.calls_in_doubt,
    "jobs acknowledged": lambda account: account.jobs_acknowledged,
    "jobs that may or may not exist": lambda account: account.jobs_in_doubt,
    "completes accepted": lambda account: account.completes_accepted,
    "doubled runs, each under a higher version": lambda account: account.doubled_runs,
    "stale writes attempted": lambda account: account.stale_writes_attempted,
    "stale writes accepted": lambda account: account.stale_writes_accepted,
    "jobs lost": lambda account: account.jobs_lost,
}


def total_faults(report: Report) -> Counter[str]:
    """Return how many faults of each kind were injected."""
    return sum((outcome.account.faults for outcome in report.outcomes), Counter())
