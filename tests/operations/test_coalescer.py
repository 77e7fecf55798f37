"""One caller's error is never another's, and calls that queue up share a statement."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Sequence

import pytest

from app.domain.errors import FencepostError, InvalidRequest, JobNotFound, Unavailable
from app.operations.coalescer import MAX_WEIGHT_BYTES, SLOW_SECONDS, Coalescer
from tests.support.waiting import turns, until


class Flushes:
    """A flush that waits to be let through, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: dict[str, Exception] = {}

    async def __call__(self, items: Sequence[str]) -> list[str | FencepostError]:
        self.batches.append(list(items))
        await self.gate.wait()
        for item in items:
            if item in self.broken:
                raise self.broken[item]
        return [JobNotFound(item) if item.startswith("unknown") else item.upper() for item in items]


@pytest.fixture
def flushes() -> Flushes:
    return Flushes()


def outcomes(answers: Sequence[object]) -> list[str]:
    return [answer if isinstance(answer, str) else type(answer).__name__ for answer in answers]


async def test_calls_of_one_turn_share_a_flush(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    answers = await asyncio.gather(*[coalescer.submit(item) for item in "abc"])
    assert answers == ["A", "B", "C"]
    assert flushes.batches == [["a", "b", "c"]]


async def test_a_lone_call_runs_at_once(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    assert await coalescer.submit("a") == "A"
    assert await coalescer.submit("b") == "B"
    assert flushes.batches == [["a"], ["b"]]


async def test_calls_that_arrive_during_a_flush_share_the_next_one(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_in_flight=1)
    flushes.gate.clear()
    first = asyncio.create_task(coalescer.submit("a"))
    await until(lambda: flushes.batches)
    rest = [asyncio.create_task(coalescer.submit(item)) for item in "bcd"]
    await turns()
    assert flushes.batches == [["a"]]
    flushes.gate.set()
    assert await asyncio.gather(first, *rest) == ["A", "B", "C", "D"]
    assert flushes.batches == [["a"], ["b", "c", "d"]]


async def test_no_more_flushes_run_at_once_than_allowed(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_in_flight=2)
    flushes.gate.clear()
    tasks = []
    for item in "abcde":
        tasks.append(asyncio.create_task(coalescer.submit(item)))
        await turns()
    assert flushes.batches == [["a"], ["b"]]
    flushes.gate.set()
    await asyncio.gather(*tasks)
    assert flushes.batches == [["a"], ["b"], ["c", "d", "e"]]


async def test_a_flush_holds_at_most_max_items(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_items=2)
    assert await asyncio.gather(*[coalescer.submit(item) for item in "abcde"]) == list("ABCDE")
    assert [len(batch) for batch in flushes.batches] == [2, 2, 1]


async def test_a_refusal_is_raised_to_its_own_caller_only(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    answers = await asyncio.gather(
        *[coalescer.submit(item) for item in ("a", "unknown", "c")], return_exceptions=True
    )
    assert outcomes(answers) == ["A", "JobNotFound", "C"]


async def test_an_items_error_is_found_one_by_one_and_is_only_its_callers(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    flushes.broken["b"] = RuntimeError("b cannot be stored")
    answers = await asyncio.gather(*[coalescer.submit(item) for item in "abc"], return_exceptions=True)
    assert outcomes(answers) == ["A", "RuntimeError", "C"]
    assert flushes.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]


async def test_a_refusal_that_is_raised_by_the_flush_is_only_its_callers(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    flushes.broken["b"] = InvalidRequest("b is malformed", pointer="/b")
    answers = await asyncio.gather(*[coalescer.submit(item) for item in "abc"], return_exceptions=True)
    assert outcomes(answers) == ["A", "InvalidRequest", "C"]


async def test_an_unavailable_database_is_everybodys_answer_at_once(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    flushes.broken["b"] = Unavailable("The database does not answer.")
    answers = await asyncio.gather(*[coalescer.submit(item) for item in "abc"], return_exceptions=True)
    assert outcomes(answers) == ["Unavailable"] * 3
    # Nobody is tried one by one: each would wait for its own timeout.
    assert flushes.batches == [["a", "b", "c"]]


async def test_it_goes_on_after_trouble(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_in_flight=1)
    flushes.broken["a"] = Unavailable("The database does not answer.")
    with pytest.raises(Unavailable):
        await coalescer.submit("a")
    assert await coalescer.submit("b") == "B"


async def test_a_caller_that_leaves_takes_nobody_with_it(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes)
    flushes.gate.clear()
    leaving, staying = [asyncio.create_task(coalescer.submit(item)) for item in "ab"]
    await until(lambda: flushes.batches)
    leaving.cancel()
    await turns()
    flushes.gate.set()
    assert await staying == "B"
    assert leaving.cancelled()


async def test_a_caller_that_has_given_up_is_not_served_behind_its_back(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_in_flight=1)
    flushes.gate.clear()
    first = asyncio.create_task(coalescer.submit("a"))
    await until(lambda: flushes.batches)
    quitter = asyncio.create_task(coalescer.submit("b"))
    stayer = asyncio.create_task(coalescer.submit("c"))
    await turns()
    quitter.cancel()
    flushes.gate.set()
    assert [await first, await stayer] == ["A", "C"]
    assert flushes.batches == [["a"], ["c"]]


async def test_heavy_items_are_spread_over_flushes(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, weigh=lambda _: MAX_WEIGHT_BYTES // 2)
    await asyncio.gather(*[coalescer.submit(item) for item in "abcde"])
    assert flushes.batches == [["a", "b"], ["c", "d"], ["e"]]
    flushes.batches.clear()
    giant: Coalescer[str, str] = Coalescer(flushes, weigh=lambda _: MAX_WEIGHT_BYTES + 1)
    await asyncio.gather(*[giant.submit(item) for item in "ab"])
    assert flushes.batches == [["a"], ["b"]]


async def test_refused_item_is_let_go_of_without_a_garbage_collection() -> None:
    class Item:
        """Something that may be large."""

    async def refuse(items: Sequence[Item]) -> list[None | FencepostError]:
        return [JobNotFound("unknown") for _ in items]

    coalescer: Coalescer[Item, None] = Coalescer(refuse)
    item = Item()
    is_alive = weakref.ref(item)
    gc.disable()
    try:
        with contextlib.suppress(JobNotFound):
            await coalescer.submit(item)
        del item
        await until(lambda: is_alive() is None)
    finally:
        gc.enable()


async def test_a_slow_flush_holds_the_next_one_up_for_a_moment_only(flushes: Flushes) -> None:
    coalescer: Coalescer[str, str] = Coalescer(flushes, max_in_flight=1, max_slow=1)
    flushes.gate.clear()
    first = asyncio.create_task(coalescer.submit("a"))
    await until(lambda: flushes.batches)
    second = asyncio.create_task(coalescer.submit("b"))
    await until(lambda: flushes.batches == [["a"], ["b"]])
    assert not first.done()
    # One slow flush is all that is let pass.
    third = asyncio.create_task(coalescer.submit("c"))
    await asyncio.sleep(2 * SLOW_SECONDS)
    assert flushes.batches == [["a"], ["b"]]
    flushes.gate.set()
    assert list(await asyncio.gather(first, second, third)) == ["A", "B", "C"]
    assert coalescer._slow == coalescer._in_flight == set()
