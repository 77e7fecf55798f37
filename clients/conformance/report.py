"""What a person reads: the table, and the whole story of each failure."""

from collections.abc import Iterator, Sequence

from clients.conformance.adapters import Adapter
from clients.conformance.case import Case
from clients.conformance.stage import Verdict


def table(cases: Sequence[Case], adapters: Sequence[Adapter], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of the table: cases down, clients across, as Markdown."""
    marks = {
        (verdict.case.name, verdict.adapter): "pass" if verdict.passed else "FAIL" for verdict in verdicts
    }
    width = max(len(case.name) for case in cases)
    yield f"| {'case':<{width}} | " + " | ".join(f"{adapter.name:<4}" for adapter in adapters) + " |"
    rules = ("-" * (max(4, len(adapter.name)) + 2) for adapter in adapters)
    yield f"|-{'-' * width}-|" + "|".join(rules) + "|"
    for case in cases:
        cells = [
            f"{marks.get((case.name, adapter.name), 'n/a'):<{max(4, len(adapter.name))}}"
            for adapter in adapters
        ]
        yield f"| {case.name:<{width}} | " + " | ".join(cells) + " |"


def story(verdict: Verdict) -> Iterator[str]:
    """Yield what a case is about, what went wrong, and everything that happened."""
    yield f"FAIL {verdict.case.name} with {verdict.adapter}"
    yield f"  {verdict.case.says}"
    yield f"  docs/worker-protocol.md#{verdict.case.section}"
    for failure in verdict.failures:
        yield f"  - {failure}"
    yield "  seconds   what happened"
    for line in verdict.record.timeline():
        yield f"  {line}"
    if verdict.output.strip():
        yield "  the adapter wrote:"
        for line in verdict.output.splitlines():
            yield f"    {line}"
