"""What befalls calls in a case: its ``answers``, each for the next calls that it fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clients.conformance.case import CaseError
from clients.conformance.record import Call


@dataclass
class Fault:
    """One entry of ``answers``.

    to, job, has         the verb, and if given a job, or a member (``error.details``), that is in the call
    skip, times          how many fitting calls are let through first, how many it then befalls (None: all)
    status, retry_after  the call is not done, and refused
    reset                the call is not done, and the connection breaks
    lost                 the call is done, and the connection breaks before the answer
    hang                 the call is not done, and never answered
    late_seconds         the call is done, and answered so much later
    empty                a lease call is answered at once with no job
    """

    to: str
    job: str | None = None
    has: str | None = None
    skip: int = 0
    times: int | None = 1
    status: int | None = None
    retry_after: int | None = None
    reset: bool = False
    lost: bool = False
    hang: bool = False
    late_seconds: float = 0
    empty: bool = False

    def fits(self, call: Call) -> bool:
        return (
            call.verb == self.to
            and (self.job is None or any(item.job == self.job for item in call.items))
            and (self.has is None or any(_has(item.body, self.has) for item in call.items))
        )


def _has(body: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(body, Mapping) or name not in body:
            return False
        body = body[name]
    return True


def read_fault(entry: Mapping[str, Any]) -> Fault:
    """Return a fault as a value; ``times: always`` is without end."""
    values = dict(entry)
    if values.get("times") == "always":
        values["times"] = None
    try:
        return Fault(**values)
    except TypeError as error:
        raise CaseError(f"answers: {entry}: {error}") from error


class Faults:
    """The faults of a case that are still to come."""

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self._faults = [read_fault(entry) for entry in entries]

    def add(self, entry: Mapping[str, Any]) -> None:
        self._faults.append(read_fault(entry))

    def take(self, call: Call) -> Fault | None:
        """Return what befalls this call, and count it; None lets it through."""
        for fault in self._faults:
            if not fault.fits(call) or fault.times == 0:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
            return fault
        return None
