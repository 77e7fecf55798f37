"""What a rule of the checker is, and what it finds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.facts import Facts


@dataclass(frozen=True, slots=True)
class Found:
    """``job_id`` is None where no job is concerned; ``events`` are numbers of the history."""

    job_id: str | None
    events: tuple[int, ...]
    sentence: str


Rule = Callable[[Facts], Iterator[Found]]
