"""Signals that are only written down."""

from collections.abc import Iterable, Mapping


class RecordedSignals:
    """What operations told after their commits."""

    def __init__(self) -> None:
        self.ready: dict[str, int] = {}
        self.scheduled: list[float] = []
        self.finished: list[str] = []

    def jobs_ready(self, counts: Mapping[str, int]) -> None:
        for queue, count in counts.items():
            self.ready[queue] = self.ready.get(queue, 0) + count

    def job_scheduled(self, due_in_seconds: float) -> None:
        self.scheduled.append(due_in_seconds)

    def jobs_finished(self, job_ids: Iterable[str]) -> None:
        self.finished += job_ids
