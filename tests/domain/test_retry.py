"""Backoff: within its bounds, whatever the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.job import Backoff, BackoffType
from app.domain.retry import backoff_seconds

MIDDLE = 0.5

backoffs = st.builds(
    Backoff,
    type=st.sampled_from(BackoffType),
    base_seconds=st.floats(0, 86_400),
    factor=st.floats(1, 10),
    max_seconds=st.floats(0, 604_800),
    jitter=st.floats(0, 1),
)


@given(backoffs, st.integers(1, 10**12), st.floats(0, 1, exclude_max=True))
def test_a_wait_lies_within_its_cap_and_jitter(backoff: Backoff, failed_count: int, roll: float) -> None:
    wait = backoff_seconds(backoff, failed_count=failed_count, roll=roll)
    assert 0 <= wait <= backoff.max_seconds * (1 + backoff.jitter)


@pytest.mark.parametrize("failed_count", [1_000, 1_001, 10**9, 10**15])
def test_a_power_too_large_for_a_float_is_the_cap(failed_count: int) -> None:
    backoff = Backoff(factor=10.0, jitter=0.0)
    assert backoff_seconds(backoff, failed_count=failed_count, roll=MIDDLE) == 3600.0


def test_a_base_of_zero_never_waits_however_large_the_power() -> None:
    backoff = Backoff(base_seconds=0.0, factor=10.0)
    assert backoff_seconds(backoff, failed_count=10**9, roll=MIDDLE) == 0.0
    assert backoff_seconds(backoff, failed_count=1, roll=MIDDLE) == 0.0


@pytest.mark.parametrize(
    ("backoff_type", "waits"),
    [
        (BackoffType.FIXED, [3.0, 3.0, 3.0, 3.0]),
        (BackoffType.LINEAR, [3.0, 6.0, 9.0, 10.0]),
        (BackoffType.EXPONENTIAL, [3.0, 6.0, 10.0, 10.0]),
    ],
)
def test_a_wait_grows_by_its_type_up_to_the_cap(backoff_type: BackoffType, waits: list[float]) -> None:
    backoff = Backoff(backoff_type, base_seconds=3.0, factor=2.0, max_seconds=10.0, jitter=0.0)
    assert [backoff_seconds(backoff, failed_count=n, roll=MIDDLE) for n in (1, 2, 3, 4)] == waits


def test_the_jitter_spreads_to_both_sides_of_the_capped_wait() -> None:
    backoff = Backoff(BackoffType.FIXED, base_seconds=500.0, max_seconds=100.0, jitter=0.2)
    assert backoff_seconds(backoff, failed_count=1, roll=0.0) == pytest.approx(80.0)
    assert backoff_seconds(backoff, failed_count=1, roll=MIDDLE) == pytest.approx(100.0)
    assert backoff_seconds(backoff, failed_count=1, roll=1.0) == pytest.approx(120.0)
