"""What is busy is asked for again, in time, and by itself."""

import asyncio
from collections.abc import Sequence

import pytest

from app.domain.errors import FencepostError, JobNotFound, Unavailable
from app.operations import patience
from app.operations.coalescer import Coalescer
from app.operations.patience import LeaseBusy, answer_all, patient, patiently
from tests.support.waiting import until


class Verb:
    """Answers items in capitals; those in ``busy`` are so for as many times more."""

    def __init__(self, **busy: int) -> None:
        self.busy = busy
        self.asked: list[list[str]] = []
        self.instead: str | None = None

    async def __call__(self, items: Sequence[str]) -> list[str | FencepostError]:
        self.asked.append(list(items))
        return [self.answer(item) for item in items]

    def answer(self, item: str) -> str | FencepostError:
        if self.busy.get(item, 0):
            self.busy[item] -= 1
            return LeaseBusy(self.instead)
        return JobNotFound(item) if item == "unknown" else item.upper()


async def test_only_what_is_busy_is_asked_for_again() -> None:
    verb = Verb(b=2, d=1)
    answers = await answer_all(verb, ["a", "b", "unknown", "d"])
    assert [answers[0], answers[1], answers[3]] == ["A", "B", "D"]
    assert isinstance(answers[2], JobNotFound)
    assert verb.asked == [["a", "b", "unknown", "d"], ["b", "d"], ["b"]]


async def test_what_stays_busy_is_unavailable_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "MAX_SECONDS", 0.03)
    for call in (answer_all(Verb(b=1000), ["a", "b"]), Coalescer[str, str](Verb(b=1000)).submit("b")):
        with pytest.raises(LeaseBusy) as refusal:
            await call
        assert isinstance(refusal.value, Unavailable)
        assert refusal.value.code == "unavailable"


async def test_where_there_is_another_answer_it_is_given_after_a_short_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "SHORT_SECONDS", 0.03)
    verb = Verb(b=1000)
    verb.instead = "as it was"
    assert await answer_all(verb, ["a", "b"]) == ["A", "as it was"]
    assert await Coalescer[str, str](verb).submit("b") == "as it was"
    # And not before: what is only a moment away is waited for.
    monkeypatch.setattr(patience, "SHORT_SECONDS", 60.0)
    verb.busy["b"] = 2
    assert await Coalescer[str, str](verb).submit("b") == "B"


async def test_a_busy_item_does_not_hold_up_those_that_share_its_flush() -> None:
    verb = Verb(b=1000)
    coalescer = Coalescer[str, str](verb)
    busy = asyncio.create_task(coalescer.submit("b"))
    assert [await coalescer.submit(item) for item in "ac"] == ["A", "C"]
    await until(lambda: len(verb.asked) > 2)
    assert not busy.done()
    verb.busy["b"] = 0
    assert await busy == "B"


async def test_a_caller_that_gives_up_is_not_asked_for_again() -> None:
    verb = Verb(b=1000)
    busy = asyncio.create_task(Coalescer[str, str](verb).submit("b"))
    await until(lambda: len(verb.asked) > 1)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    asked_count = len(verb.asked)
    await asyncio.sleep(2 * patience.FIRST_PAUSE_SECONDS)
    assert len(verb.asked) <= asked_count + 1
    assert verb.busy["b"] == 1000 - len(verb.asked)


async def test_pauses_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await answer_all(Verb(b=50), ["b"])
    assert len(pauses) == 50
    assert 0 < pauses[0] <= patience.FIRST_PAUSE_SECONDS
    assert patience.LONGEST_PAUSE_SECONDS / 2 <= pauses[-1] <= patience.LONGEST_PAUSE_SECONDS


async def test_a_verb_that_does_all_or_nothing_is_run_again_and_other_refusals_are_not() -> None:
    runs: list[str] = []

    @patient
    async def verb(refusals: list[FencepostError]) -> str:
        runs.append("run")
        if refusals:
            raise refusals.pop()
        return "done"

    assert await verb([LeaseBusy(), LeaseBusy()]) == "done"
    assert len(runs) == 3
    for refusal in (Unavailable("away"), JobNotFound("x")):
        with pytest.raises(type(refusal)):
            await verb([refusal])
    assert len(runs) == 5
    assert await patiently(lambda: verb([])) == "done"
