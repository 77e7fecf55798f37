"""What the worker and a handler's process say to each other."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from fencepost.job import Desk
from fencepost.jobs import NewJob, Submitted
from fencepost.leases import Lease
from fencepost.outcomes import Outcome
from fencepost.stops import StopReason


class Question(Protocol):
    """Something that a handler wants of the service."""

    def __call__(self, lease: Lease, desk: Desk) -> "Future[Any]":
        """Ask it at the worker's desk."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Store a value, given as JSON."""

    text: str

    def __call__(self, lease: Lease, desk: Desk) -> "Future[None]":
        return desk.checkpoint(lease, self.text)


@dataclass(frozen=True, slots=True)
class Verify:
    """Ask whether the lease is held."""

    def __call__(self, lease: Lease, desk: Desk) -> "Future[None]":
        return desk.verify(lease)


@dataclass(frozen=True, slots=True)
class Submit:
    """Make a child job."""

    job: NewJob

    def __call__(self, lease: Lease, desk: Desk) -> "Future[Submitted]":
        return desk.submit(lease, self.job)


@dataclass(frozen=True, slots=True)
class Begin:
    """To the process: do a job. The function is pickled: where it is not found, the job fails."""

    function: bytes
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopNow:
    """To the process: the handler has to stop."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Answer:
    """To the process: what became of a question."""

    number: int
    value: Any
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Progressed:
    """From the process: how far the handler is."""

    percent: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Ask:
    """From the process: a question."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Done:
    """From the process: the handler has ended."""

    outcome: Outcome
