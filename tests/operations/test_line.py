"""Which claim serves whom: no work that was heard of is left alone, and no claim is made for nothing."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.job import LeasedJob
from app.operations.line import (
    MANY_JOBS,
    MAX_JOBS_A_CLAIM,
    MAX_POLLS_A_CLAIM,
    PROBE_JOBS,
    Claim,
    Line,
    Poll,
)
from tests.support.factory import wish

LARGE = MANY_JOBS + 1


def poll(*queues: str, max_jobs: int = 1, request_id: str | None = None) -> Poll:
    # Nobody waits for its answer here.
    answer = cast("asyncio.Future[list[LeasedJob]]", None)
    return Poll(wish(*queues, max_jobs=max_jobs, request_id=request_id), 30.0, answer)


def parked(line: Line, count: int, *queues: str, max_jobs: int = 1) -> list[Poll]:
    polls = [poll(*queues, max_jobs=max_jobs) for _ in range(count)]
    for each in polls:
        line.park(each)
    return polls


def begin(line: Line) -> Claim:
    claim = line.next_claim()
    assert claim is not None
    return claim


def end(line: Line, claim: Claim, *, found: int) -> None:
    """End a claim that found so many jobs for its polls, first come, first served."""
    for each in claim.polls:
        granted = min(found, each.wish.max_jobs)
        found -= granted
        claim.note(each, granted)
        if granted == 0:
            line.park(each)
    line.end(claim)


@pytest.fixture
def line() -> Line:
    return Line()


def test_polls_that_arrive_together_share_a_claim(line: Line) -> None:
    polls = [poll(), poll("other"), poll(request_id="r")]
    for each in polls:
        line.arrive(each)
    assert list(begin(line).polls) == polls
    assert line.next_claim() is None


def test_small_polls_that_arrive_during_a_claim_share_the_next_one(line: Line) -> None:
    line.arrive(poll())
    first = begin(line)
    late = [poll(), poll()]
    for each in late:
        line.arrive(each)
    assert line.next_claim() is None
    end(line, first, found=1)
    assert list(begin(line).polls) == late


def test_a_poll_for_one_job_does_not_wait_for_claims_of_many(line: Line) -> None:
    for _ in range(2):
        line.arrive(poll(max_jobs=MAX_JOBS_A_CLAIM))
    large = begin(line)
    assert line.next_claim() is None
    small = poll()
    line.arrive(small)
    assert list(begin(line).polls) == [small]
    end(line, large, found=MAX_JOBS_A_CLAIM)
    assert [each.wish.max_jobs for each in begin(line).polls] == [MAX_JOBS_A_CLAIM]


def test_polls_behind_one_of_another_size_share_the_claim_before_it(line: Line) -> None:
    small, large, small_too = poll(), poll(max_jobs=LARGE), poll()
    for each in (small, large, small_too):
        line.arrive(each)
    assert list(begin(line).polls) == [small, small_too]
    assert list(begin(line).polls) == [large]


def test_a_claim_is_bounded_by_its_jobs_and_by_its_polls(line: Line) -> None:
    for _ in range(MAX_POLLS_A_CLAIM + 1):
        line.arrive(poll())
    first = begin(line)
    assert len(first.polls) == MAX_POLLS_A_CLAIM
    end(line, first, found=MAX_POLLS_A_CLAIM)
    for _ in range(MAX_JOBS_A_CLAIM // MANY_JOBS + 1):
        line.arrive(poll(max_jobs=MANY_JOBS))
    claim = begin(line)
    assert sum(each.wish.max_jobs for each in claim.polls) <= MAX_JOBS_A_CLAIM


def test_a_poll_waits_for_what_the_call_that_it_repeats_is_granted(line: Line) -> None:
    line.arrive(poll(max_jobs=LARGE, request_id="r"))
    first = begin(line)
    # With another body: that the request_id was used is known when the first claim has ended.
    repeat, other = poll(request_id="r"), poll(request_id="s")
    line.arrive(repeat)
    line.arrive(other)
    second = begin(line)
    assert list(second.polls) == [other]
    end(line, first, found=LARGE)
    end(line, second, found=1)
    assert list(begin(line).polls) == [repeat]


def test_one_job_is_offered_to_one_poll(line: Line) -> None:
    first, second = parked(line, 2)
    line.hear("default", 1)
    claim = begin(line)
    assert list(claim.polls) == [first]
    line.hear("default", 1)
    end(line, claim, found=1)
    assert list(begin(line).polls) == [second]


def test_a_burst_is_offered_to_as_many_polls_in_one_claim(line: Line) -> None:
    polls = parked(line, 500)
    line.hear("default", 400)
    claim = begin(line)
    assert list(claim.polls) == polls[:400]
    end(line, claim, found=400)
    assert line.next_claim() is None


def test_a_thousand_jobs_for_a_thousand_polls_are_two_claims(line: Line) -> None:
    parked(line, 1000)
    line.hear("default", 1000)
    for count in (MAX_POLLS_A_CLAIM, 1000 - MAX_POLLS_A_CLAIM):
        claim = begin(line)
        assert len(claim.polls) == count
        end(line, claim, found=count)
    assert line.next_claim() is None


def test_what_is_offered_of_an_unknown_amount_doubles_until_a_poll_is_not_filled(line: Line) -> None:
    parked(line, 1000)
    line.hear("default", None)
    offered = []
    for found in (PROBE_JOBS, 2 * PROBE_JOBS, 3 * PROBE_JOBS):
        claim = begin(line)
        offered.append(len(claim.polls))
        end(line, claim, found=found)
    assert offered == [PROBE_JOBS, 2 * PROBE_JOBS, 4 * PROBE_JOBS]
    assert line.next_claim() is None


def test_a_job_that_is_heard_of_during_a_claim_is_offered_to_who_comes_back_empty(line: Line) -> None:
    first = poll()
    line.arrive(first)
    claim = begin(line)
    line.hear("default", 1)
    end(line, claim, found=0)
    assert list(begin(line).polls) == [first]


def test_a_claim_that_began_earlier_does_not_use_up_what_is_heard_meanwhile(line: Line) -> None:
    early = poll(max_jobs=LARGE)
    line.arrive(early)
    first = begin(line)
    [waiting] = parked(line, 1)
    line.hear("default", 3)
    second = begin(line)
    assert list(second.polls) == [waiting]
    end(line, second, found=1)
    assert line.next_claim() is None
    end(line, first, found=0)
    assert list(begin(line).polls) == [early]


def test_a_claim_that_finds_too_little_ends_what_was_heard_of_before_it(line: Line) -> None:
    line.arrive(poll(max_jobs=LARGE))
    slow = begin(line)
    parked(line, 1)
    # Another replica is faster; without the evidence each of these jobs would be looked for.
    line.hear("default", 1000)
    end(line, begin(line), found=0)
    assert line.next_claim() is None
    end(line, slow, found=0)
    assert line.next_claim() is None


def test_a_failed_claim_is_no_evidence(line: Line) -> None:
    waiting = parked(line, MAX_POLLS_A_CLAIM + 1)
    line.hear("default", MAX_POLLS_A_CLAIM + 1)
    claim = begin(line)
    for each in claim.polls:
        line.park(each)
    line.end(claim)
    assert list(begin(line).polls) == waiting[-1:]


def test_a_poll_of_several_queues_that_takes_from_another_leaves_the_offer_open(line: Line) -> None:
    both, only = poll("a", "b"), poll("a")
    line.park(both)
    line.park(only)
    line.hear("a", 1)
    claim = begin(line)
    assert list(claim.polls) == [both]
    # What it was granted may have been of queue b.
    end(line, claim, found=1)
    assert list(begin(line).polls) == [only]


def test_work_that_nobody_waits_for_is_not_kept(line: Line) -> None:
    parked(line, 1)
    line.hear("other", 5)
    assert line.next_claim() is None
    assert line._offers == {}


class World:
    """Jobs by queue, and claims that look at them some time between their begin and their end."""

    def __init__(self) -> None:
        self.line = Line()
        self.ready = {"a": 0, "b": 0}
        self.unheard: list[tuple[str, int]] = []
        self.unlooked: list[Claim] = []
        self.looked: list[tuple[Claim, dict[Poll, int]]] = []

    def do(self, step: tuple[str, str, int]) -> None:
        verb, queues, number = step
        match verb:
            case "arrive":
                self.line.arrive(poll(*queues, max_jobs=number))
            case "commit":
                self.ready[queues] += number
                self.unheard.append((queues, number))
            case "a rival takes":
                self.ready[queues] = max(0, self.ready[queues] - number)
            case "hear" if self.unheard:
                queue, count = self.unheard.pop(0)
                self.line.hear(queue, count if number else None)
            case "begin":
                claim = self.line.next_claim()
                self.unlooked += [] if claim is None else [claim]
            case "look" if self.unlooked:
                claim = self.unlooked.pop(number % len(self.unlooked))
                self.looked.append((claim, {each: self.take(each) for each in claim.polls}))
            case "end" if self.looked:
                claim, granted = self.looked.pop(number % len(self.looked))
                for each, count in granted.items():
                    claim.note(each, count)
                    if count == 0:
                        self.line.park(each)
                self.line.end(claim)

    def take(self, asker: Poll) -> int:
        granted = 0
        for queue in asker.wish.queues:
            count = min(self.ready[queue], asker.wish.max_jobs - granted)
            self.ready[queue] -= count
            granted += count
        return granted

    def come_to_rest(self) -> int:
        """Let everything be heard and every claim end; return how many more were made."""
        while self.unheard:
            self.do(("hear", "", 1))
        count = 0
        while True:
            before = self.line._claim_count
            for verb in ("look", "end", "begin"):
                self.do((verb, "", 0))
            if not (self.unlooked or self.looked) and self.line._claim_count == before:
                return count
            count += self.line._claim_count - before


names = st.sampled_from(["a", "b"])
steps = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(["a", "b", "ab"]), st.sampled_from([1, 1, 2, LARGE])),
    st.tuples(st.just("commit"), names, st.integers(1, 40)),
    st.tuples(st.just("a rival takes"), names, st.integers(1, 40)),
    st.tuples(st.sampled_from(["hear", "begin", "look", "end"]), st.just(""), st.integers(0, 3)),
)


@given(history=st.lists(steps, max_size=60))
def test_at_rest_no_job_is_ready_that_a_poll_waits_for(history: list[tuple[str, str, int]]) -> None:
    world = World()
    for step in history:
        world.do(step)
    # Each poll is granted something in a claim, or is in one that finds an end; no offer goes round for ever.
    poll_count = sum(step[0] == "arrive" for step in history)
    assert world.come_to_rest() <= 3 * poll_count + 3
    waited_for = world.line.parked_queues()
    assert [queue for queue in waited_for if world.ready[queue]] == []
    assert world.line._claims == {}
