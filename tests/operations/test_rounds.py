"""In each round a job stands once, and its mentions keep their order."""

from hypothesis import given
from hypothesis import strategies as st

from app.operations.rounds import rounds


def test_a_job_that_stands_twice_comes_in_two_rounds() -> None:
    assert list(rounds(["a", "b", "a", "c", "a", "b"])) == [[0, 1, 3], [2, 5], [4]]


def test_no_jobs_make_no_round() -> None:
    assert list(rounds([])) == []


@given(st.lists(st.sampled_from("abc")))
def test_rounds_hold_every_mention_once_and_in_order(job_ids: list[str]) -> None:
    split = list(rounds(job_ids))
    assert sorted(index for each in split for index in each) == list(range(len(job_ids)))
    for each in split:
        named = [job_ids[index] for index in each]
        assert len(named) == len(set(named))
    for job_id in set(job_ids):
        mentions = [index for each in split for index in each if job_ids[index] == job_id]
        assert mentions == sorted(mentions)
