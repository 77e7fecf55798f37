"""What is read from a history about the time of trouble."""

import pytest

from tests.chaos.facts import gather
from tests.chaos.history import Answered, Asked, Event, Healed, Json, Struck
from tests.chaos.measures import Trouble, measure

FAULT = "SIGKILL of PostgreSQL"


def call(name: str, replica: str, began: float, ended: float, status: int, **body: float) -> list[Event]:
    asked = {"worker_id": "w", **body}
    jobs: Json = {"jobs": [{"id": "j", "lease_version": 1, "attempt": 1}] if status == 200 else []}
    return [
        Asked(began, name, "w", replica, "POST", "/v1/leases", asked),
        Answered(ended, name, 200 if status == 204 else status, jobs),
    ]


def measured(*events: Event) -> Trouble:
    ordered = sorted(events, key=lambda event: event.at)
    return measure(ordered, gather(ordered), faults=[FAULT])


def test_the_slowest_replica_that_was_asked_gives_the_recovery() -> None:
    trouble = measured(
        Struck(1, FAULT, ""),
        Healed(10, FAULT, ""),
        # Answered after the trouble, but begun in it: another database may have been meant.
        *call("a", "r0", 9, 11, 200),
        *call("b", "r0", 12, 13, 200),
        *call("c", "r1", 11, 12, 503),
        *call("d", "r1", 31, 32, 200),
        *call("e", "r1", 33, 40, 200),
    )
    assert trouble.recovery_seconds == {FAULT: 22.0}
    assert trouble.complaints == [f"after {FAULT} a replica needed 22.0 s, allowed are 20 s"]


def test_an_empty_poll_does_not_prove_that_the_database_is_back() -> None:
    trouble = measured(Healed(10, FAULT, ""), *call("a", "r0", 11, 12, 204), *call("b", "r0", 13, 14, 200))
    assert trouble.recovery_seconds == {FAULT: 4.0}


@pytest.mark.parametrize(("ended", "is_good"), [(10.9, True), (11.1, False)])
def test_a_5xx_may_take_so_long_beyond_what_the_client_wanted_to_wait(ended: float, is_good: bool) -> None:
    trouble = measured(*call("a", "r0", 1, ended, 503, wait_seconds=2))
    assert (trouble.complaints == []) is is_good
    assert trouble.longest_5xx_seconds == pytest.approx(ended - 3)
    assert trouble.count_5xx == 1
