"""The cases, each played twice before a surprise is believed.

The cases have bounds of seconds. A machine that stands still for one makes any client late, and may save one
that makes a mistake; it hardly does so in the same case again.
"""

from collections.abc import Callable, Sequence

from clients.conformance import suite
from clients.conformance.adapters import Adapter
from clients.conformance.case import Case
from clients.conformance.stage import Verdict


async def surprises(
    pairs: Sequence[tuple[Case, Adapter]],
    *,
    expected: bool,
    at_once: int = suite.AT_ONCE,
    tell: Callable[[object], None] = lambda _: None,
) -> list[Verdict]:
    """Return the verdicts that twice were not as expected; a case that was so once is told of."""
    first = [verdict for verdict in await suite.run(pairs, at_once=at_once) if verdict.passed != expected]
    adapters = {adapter.name: adapter for _, adapter in pairs}
    again = [(verdict.case, adapters[verdict.adapter]) for verdict in first]
    second = [verdict for verdict in await suite.run(again, at_once=1) if verdict.passed != expected]
    names = {(verdict.adapter, verdict.case.name) for verdict in second}
    for verdict in first:
        if (verdict.adapter, verdict.case.name) not in names:
            tell(f"conformance: once only, {verdict.adapter}, {verdict.case.name}: {verdict.failures}")
    return second
