"""What every verb is given."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.domain.retention import Retention
from app.operations.heads import Heads
from app.store.engine import Database


class Signals(Protocol):
    """Told after a commit, never before: what it means for those who wait."""

    def jobs_ready(self, counts: Mapping[str, int]) -> None:
        """So many jobs of each queue can be leased now."""

    def job_scheduled(self, due_in_seconds: float) -> None:
        """A job will be due so many seconds from now."""

    def jobs_finished(self, job_ids: Iterable[str]) -> None:
        """These jobs are finished."""


@dataclass(frozen=True, slots=True)
class Context:
    database: Database
    retention: Retention
    signals: Signals
    heads: Heads = field(default_factory=Heads)
