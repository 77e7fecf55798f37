"""Backoff, without a clock and without dice."""

from typing import assert_never

from app.domain.job import Backoff, BackoffType


def backoff_seconds(backoff: Backoff, *, failed_count: int, roll: float) -> float:
    """Return the wait before the next attempt, in seconds, after the ``failed_count``-th one failed.

    ``failed_count`` starts at 1; ``roll`` is a number in [0, 1) that the caller drew. The cap is
    applied before the jitter, so the result lies within ``max_seconds * (1 ± jitter)``. Never raises:
    a power too large for a float is the cap (the overflow of apache/airflow#47971).
    """
    capped = min(_uncapped_seconds(backoff, failed_count), backoff.max_seconds)
    return capped * (1 + backoff.jitter * (2 * roll - 1))


def _uncapped_seconds(backoff: Backoff, failed_count: int) -> float:
    match backoff.type:
        case BackoffType.FIXED:
            return backoff.base_seconds
        case BackoffType.LINEAR:
            return backoff.base_seconds * failed_count
        case BackoffType.EXPONENTIAL:
            if backoff.base_seconds == 0:
                return 0.0
            try:
                return backoff.base_seconds * backoff.factor ** (failed_count - 1)
            except OverflowError:
                return backoff.max_seconds
        case _:
            assert_never(backoff.type)
