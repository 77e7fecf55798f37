"""What a coroutine that asks something under its lease hears when the lease is over at that moment."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest
from fencepost import AsyncJob, LeaseLost
from fencepost.errors import lease_lost
from fencepost.jobs import NewJob, Submitted
from fencepost.leases import Lease
from fencepost.runs import Coroutines
from fencepost.stops import LocalExpiry, Stop

# ruff: noqa: ARG002 - a Desk is given more than this one looks at

QUESTIONS: dict[str, Callable[[AsyncJob], Awaitable[Any]]] = {
    "verify": lambda job: job.verify(),
    "submit": lambda job: job.submit("mail", "mail"),
    "checkpoint": lambda job: job.save_checkpoint(1),
}


class OpenDesk:
    """A Desk with one question, which is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: Future[Any] = Future()

    def _ask(self) -> "Future[Any]":
        self.asked.set()
        return self.answer

    def progress(self, lease: Lease, percent: float | None, message: str | None) -> None:
        pass

    def checkpoint(self, lease: Lease, text: str) -> "Future[None]":
        return self._ask()

    def verify(self, lease: Lease) -> "Future[None]":
        return self._ask()

    def submit(self, lease: Lease, job: NewJob) -> "Future[Submitted]":
        return self._ask()


class Asking:
    """A coroutine that asks, in the worker's own rooms, and what it hears."""

    def __init__(self, question: str) -> None:
        facts = {"id": "a", "lease_version": 7, "lease_seconds": 30, "deadline_at": None}
        expiry = LocalExpiry(float("inf"))
        self.lease = Lease(facts, stop=Stop(expiry), deadline=float("inf"), asked_at=0.0)
        self.problem = lease_lost(7, reason="stalled", detail="it was somebody else's")
        self.desk = OpenDesk()
        self.heard: list[BaseException] = []
        self.is_left_alone = False
        self._ended = asyncio.Event()
        self._question = QUESTIONS[question]
        self._coroutines = Coroutines(asyncio.get_running_loop(), self.desk, lambda _: self._ended.set())

    async def until_it_asks(self) -> None:
        self._coroutines.start([(self.lease, self._handle)])
        await self.desk.asked.wait()
        # Its next turn: now it waits for the answer.
        await asyncio.sleep(0)

    async def until_it_ends(self) -> None:
        await asyncio.wait_for(self._ended.wait(), 60)

    def refuse(self) -> None:
        self.desk.answer.set_exception(self.problem)

    def accept(self) -> None:
        self.desk.answer.set_result(None)

    def stop(self) -> None:
        self._coroutines.stop(self.lease)

    async def _handle(self, job: AsyncJob) -> None:
        try:
            await self._question(job)
        except BaseException as error:
            self.heard.append(error)
            await asyncio.sleep(0)
            task = asyncio.current_task()
            self.is_left_alone = task is not None and not task.cancelling()
            raise


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "acts",
    [["stop", "refuse"], ["refuse", "stop"], ["stop"], ["accept", "stop"]],
    ids=["stop first", "refusal first", "stop alone", "answer first"],
)
async def test_a_question_says_that_the_lease_is_lost_however_the_stop_and_the_answer_meet(
    question: str, acts: list[str]
) -> None:
    asking = Asking(question)
    await asking.until_it_asks()
    # What the engine does when it loses a lease; both messages are there before the loop looks.
    asking.lease.loss = asking.problem
    asking.lease.stop.set("lease_lost")
    for act in acts:
        getattr(asking, act)()
    await asking.until_it_ends()
    [heard] = asking.heard
    assert isinstance(heard, LeaseLost)
    assert (heard.reason, asking.is_left_alone) == ("stalled", True)


async def test_a_question_that_a_shutdown_interrupts_is_cancelled() -> None:
    asking = Asking("verify")
    await asking.until_it_asks()
    asking.lease.stop.set("shutdown")
    asking.stop()
    await asking.until_it_ends()
    assert [type(error) for error in asking.heard] == [asyncio.CancelledError]
