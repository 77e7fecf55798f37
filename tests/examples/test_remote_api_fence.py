"""The idempotency key of job and step: a stale worker and its successor charge once, in turn and at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import RemoteDisconnected
from urllib.error import HTTPError

import pytest

from examples.fences.remote_api import charge, idempotency_key
from tests.examples.payments import Payments, payments

JOB = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d"
OTHER_JOB = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3e"
DEADLINE_SECONDS = 30.0


@pytest.fixture(name="api")
def _api() -> Iterator[Payments]:
    with payments() as service:
        yield service


def test_first_attempt_charges(api: Payments) -> None:
    assert charge(api.address, job_id=JOB, amount=1000) == {"charge": 1}
    assert api.charges == [1000]


def test_stale_worker_and_its_successor_are_one_charge(api: Payments) -> None:
    successors = charge(api.address, job_id=JOB, amount=1000)
    stale_workers = charge(api.address, job_id=JOB, amount=1000)
    assert stale_workers == successors
    assert api.charges == [1000]


def test_every_job_is_charged_for_itself(api: Payments) -> None:
    assert charge(api.address, job_id=JOB, amount=1000) != charge(api.address, job_id=OTHER_JOB, amount=1000)
    assert api.charges == [1000, 1000]


def test_key_is_another_for_another_step() -> None:
    assert idempotency_key(JOB, "charge") != idempotency_key(JOB, "refund")


def test_worker_that_comes_while_the_other_is_charging_waits_for_that_charge(api: Payments) -> None:
    api.may_finish.clear()
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(charge, api.address, job_id=JOB, amount=1000) for _ in range(2)]
        assert api.has_conflict.wait(DEADLINE_SECONDS)
        api.may_finish.set()
        assert [each.result(DEADLINE_SECONDS) for each in both] == [{"charge": 1}] * 2
    assert api.charges == [1000]
    assert api.statuses.count(409) >= 1


def test_many_at_once_are_one_charge(api: Payments) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: charge(api.address, job_id=JOB, amount=1000), range(8)))
    assert answers == [{"charge": 1}] * 8
    assert api.charges == [1000]


def test_answer_that_was_lost_or_cut_off_is_asked_for_again(api: Payments) -> None:
    api.lost_answers = api.half_answers = 1
    assert charge(api.address, job_id=JOB, amount=1000) == {"charge": 1}
    assert api.statuses == [201, 201, 201]
    assert api.charges == [1000]


def test_remote_side_that_is_away_for_a_moment_is_asked_again(api: Payments) -> None:
    api.outages = 2
    assert charge(api.address, job_id=JOB, amount=1000) == {"charge": 1}
    assert api.statuses == [503, 503, 201]


def test_attempt_that_sends_something_else_is_refused_at_once(api: Payments) -> None:
    charge(api.address, job_id=JOB, amount=1000)
    with pytest.raises(HTTPError, match="422"):
        charge(api.address, job_id=JOB, amount=2000)
    assert api.statuses == [201, 422]
    assert api.charges == [1000]


def test_worker_out_of_patience_raises_and_its_successor_finds_the_charge(api: Payments) -> None:
    api.lost_answers = 1
    with pytest.raises(RemoteDisconnected):
        charge(api.address, job_id=JOB, amount=1000, patience_seconds=0)
    assert charge(api.address, job_id=JOB, amount=1000) == {"charge": 1}
    assert api.charges == [1000]
