"""Backoff, without a clock and without dice."""

from app.domain.job import Backoff, BackoffType


def backoff_seconds(backoff: Backoff, *, failed_count: int, roll: float) -> float:
    """Return the wait before the next attempt, in seconds, after the ``failed_count``-th one failed.

    ``failed_count`` starts at 1; ``roll`` is a number in [0, 1) that the caller drew. The cap is
    applied before the jitter, so the result lies within ``max_seconds * (1 ± jitter)``. Never raises:
    a power too large for a float is the cap (the overflow of apache/airflow#47971).
    """
    match backoff.type:
        case BackoffType.FIXED:
            wait = backoff.base_seconds
        case BackoffType.LINEAR:
            wait = backoff.base_seconds * failed_count
        case BackoffType.EXPONENTIAL:
            try:
                wait = backoff.base_seconds * backoff.factor ** (failed_count - 1)
            except OverflowError:
                # A base of 0 stays 0 however large the power.
                wait = backoff.max_seconds if backoff.base_seconds > 0 else 0.0
    capped = min(wait, backoff.max_seconds)
    return capped * (1 + backoff.jitter * (2 * roll - 1))
