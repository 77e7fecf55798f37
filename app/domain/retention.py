"""How long finished things are kept, counted from the finish."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds; ``finished_seconds`` is for succeeded and cancelled jobs, ``dead_seconds`` for dead ones.

    An idempotency key lives as long as its job is unfinished, then for ``idempotency_seconds`` or the
    job's own retention, whichever is shorter.
    """

    finished_seconds: float = 7 * 86_400
    dead_seconds: float = 30 * 86_400
    idempotency_seconds: float = 86_400
