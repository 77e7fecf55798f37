"""What clients did and were told: one JSON line an event, written so that a killed client's log is complete.

    Asked       a request, written down before it is sent
    Answered    its answer
    Unanswered  that there was none: a broken connection, a time-out
    Listed      one page of the list of all jobs, read when everything had come to rest
    Struck      a fault begins; Healed ends it

Every process writes a file of its own, because a line that a kill has cut in two must not spoil somebody
else's; ``merge`` brings them together, in the order of the one monotonic clock that the machine's processes
share. The number of an event is its line in the merged file.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

Json = dict[str, Any]


class Asked(msgspec.Struct, frozen=True, tag_field="event", tag="asked", omit_defaults=True):
    """``call`` is unique over all clients; a repeat is a call of its own. ``key`` is the Idempotency-Key."""

    at: float
    call: str
    client: str
    replica: str
    method: str
    path: str
    body: Any = None
    key: str | None = None


class Answered(msgspec.Struct, frozen=True, tag_field="event", tag="answered", omit_defaults=True):
    at: float
    call: str
    status: int
    body: Any = None
    is_replay: bool = False
    retry_after: str | None = None


class Unanswered(msgspec.Struct, frozen=True, tag_field="event", tag="unanswered"):
    at: float
    call: str
    reason: str


class Listed(msgspec.Struct, frozen=True, tag_field="event", tag="listed"):
    """``state`` is the filter of the list, None for the list of all."""

    at: float
    state: str | None
    jobs: list[Json]


class Struck(msgspec.Struct, frozen=True, tag_field="event", tag="struck"):
    at: float
    fault: str
    target: str


class Healed(msgspec.Struct, frozen=True, tag_field="event", tag="healed"):
    at: float
    fault: str
    target: str


Event: TypeAlias = Asked | Answered | Unanswered | Listed | Struck | Healed

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def now() -> float:
    """Read the clock of the history."""
    return time.monotonic()


class Log:
    """Appends events to a file; when ``write`` returns, the kernel has the line, whatever becomes of us."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: Event) -> None:
        line = _encoder.encode(event) + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an event could be written")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Event]:
    """Return the events of a file in order; a last line that was cut short counts as never written."""
    lines = path.read_bytes().split(b"\n")
    return [_decoder.decode(line) for line in lines[:-1]]


def merge(parts: Iterable[Path], into: Path) -> list[Event]:
    """Write the events of all parts into one file, in the order of time; return them.

    Events of one process keep their order, whatever the resolution of the clock.
    """
    events = sorted((event for part in sorted(parts) for event in read(part)), key=lambda event: event.at)
    write(events, into)
    return events


def write(events: Sequence[Event], into: Path) -> None:
    into.write_bytes(b"".join(_encoder.encode(event) + b"\n" for event in events))
