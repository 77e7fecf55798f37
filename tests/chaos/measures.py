"""How the service answered while its database was in trouble, read from a history."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.facts import Call, Facts
from tests.chaos.history import Event, Healed

# The service's own limits are 5 s and 15 s. A client that was held up notices later, and tests/cases holds
# the service to its limits.
LONGEST_5XX_SECONDS = 8.0
LONGEST_RECOVERY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Seconds. ``recovery_seconds`` are, per fault, until the slowest replica that was asked served again."""

    longest_answer_seconds: float
    longest_5xx_seconds: float
    count_5xx: int
    recovery_seconds: dict[str, float]

    @property
    def complaints(self) -> list[str]:
        found = [
            f"after {fault} a replica needed {seconds:.1f} s, allowed are {LONGEST_RECOVERY_SECONDS:.0f} s"
            for fault, seconds in self.recovery_seconds.items()
            if seconds > LONGEST_RECOVERY_SECONDS
        ]
        if self.longest_5xx_seconds > LONGEST_5XX_SECONDS:
            found.append(
                f"a 5xx took {self.longest_5xx_seconds:.1f} s, allowed are {LONGEST_5XX_SECONDS:.0f} s"
            )
        return found


def measure(events: Sequence[Event], facts: Facts, *, faults: Sequence[str]) -> Trouble:
    """Measure what the faults of these kinds did; a replica that nobody asked afterwards is left out."""
    answered = [call for call in facts.calls if call.answer is not None]
    failed = [call for call in facts.calls if call.answer is not None and call.answer.status >= 500]
    served = [call for call in facts.calls if _needs_the_database(call)]
    replicas = {call.asked.replica for call in served}
    recovery: dict[str, float] = {}
    for event in events:
        if not isinstance(event, Healed) or event.fault not in faults:
            continue
        for replica in replicas:
            waits = [
                call.ended_at - event.at
                for call in served
                if call.asked.replica == replica and call.began_at > event.at
            ]
            if waits:
                recovery[event.fault] = max(recovery.get(event.fault, 0.0), min(waits))
    return Trouble(
        longest_answer_seconds=max(map(_seconds, answered), default=0.0),
        longest_5xx_seconds=max(map(_seconds, failed), default=0.0),
        count_5xx=len(failed),
        recovery_seconds=recovery,
    )


def _needs_the_database(call: Call) -> bool:
    """Whether a call was served in a way that proves the database: an empty poll does not."""
    return call.verdict.is_success and (call.asked.path != "/v1/leases" or bool(call.answer_jobs))


def _seconds(call: Call) -> float:
    """Return how long an answer took, beyond what the client itself wanted to wait."""
    assert call.answer is not None
    return call.answer.at - call.began_at - float(call.asked.body.get("wait_seconds", 0))
