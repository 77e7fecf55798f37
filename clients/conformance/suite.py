"""Many cases, several at once: they sleep most of the time."""

import asyncio
from collections.abc import Callable, Sequence

from clients.conformance.adapters import Adapter
from clients.conformance.case import Case
from clients.conformance.contract import Contract
from clients.conformance.stage import Verdict, play

AT_ONCE = 10


async def run(
    pairs: Sequence[tuple[Case, Adapter]],
    *,
    at_once: int = AT_ONCE,
    say: Callable[[Verdict], None] = lambda _: None,
) -> list[Verdict]:
    """Return the verdicts in no certain order, and tell each as it comes.

    The longest cases go first, so that none of them is waited for alone at the end.
    """
    contract = Contract()
    places = asyncio.Semaphore(at_once)

    async def one(case: Case, adapter: Adapter) -> Verdict:
        async with places:
            verdict = await play(case, adapter, contract)
            say(verdict)
            return verdict

    longest_first = sorted(pairs, key=lambda pair: -pair[0].within_seconds)
    return await asyncio.gather(*(one(case, adapter) for case, adapter in longest_first))


async def run_twice(
    pairs: Sequence[tuple[Case, Adapter]],
    *,
    expected: bool = True,
    at_once: int = AT_ONCE,
    say: Callable[[Verdict], None] = lambda _: None,
    doubt: Callable[[Verdict], None] = lambda _: None,
) -> list[Verdict]:
    """Return the verdicts of ``run``, but of a case that surprises the one of a second time, played alone.

    The cases have bounds of seconds. A machine that stands still for one makes any client late, and may save
    one that makes a mistake; it hardly does so in the same case again. What surprised only once is told to
    ``doubt``.
    """
    verdicts = await run(pairs, at_once=at_once, say=say)
    surprises = {_key(verdict): verdict for verdict in verdicts if verdict.passed != expected}
    again = [(case, adapter) for case, adapter in pairs if (case.name, adapter.name) in surprises]
    second = {_key(verdict): verdict for verdict in await run(again, at_once=1, say=say)}
    for key, verdict in second.items():
        if verdict.passed == expected:
            doubt(surprises[key])
    return [second.get(_key(verdict), verdict) for verdict in verdicts]


def _key(verdict: Verdict) -> tuple[str, str]:
    return verdict.case.name, verdict.adapter


def pairs_of(cases: Sequence[Case], adapters: Sequence[Adapter]) -> list[tuple[Case, Adapter]]:
    """Return every case with every client that can do it."""
    return [(case, adapter) for case in cases for adapter in adapters if adapter.can(case)]
