"""What the service answered, read: a status, and the members of a JSON object."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import httpx

_NO_CONTENT = 204


class Unreadable(Exception):
    """A success that is none of the service's: the page of a proxy, say. It is as good as no answer."""


class Answer(NamedTuple):
    """An answer. ``members`` are those of the job, the results, the problem document."""

    status: int
    members: Mapping[str, Any]
    retry_after_seconds: float = 0.0

    @property
    def is_success(self) -> bool:
        """Tell whether it is a 2xx."""
        return 200 <= self.status < 300


def read(response: httpx.Response) -> Answer:
    """Read an answer; a refusal that is no problem document keeps its status. Raises Unreadable."""
    status = response.status_code
    members = {} if status == _NO_CONTENT else _object(response.content)
    if members is None:
        if response.is_success:
            raise Unreadable(f"{status} without a JSON object")
        members = {"detail": response.reason_phrase}
    return Answer(status, members, _retry_after(response))


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        value = _value(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # A whole number of more digits than Python reads as one. It is somebody's payload, and the other jobs
        # of the same answer have to be done.
        return json.loads(content, parse_int=_whole_number)


def _whole_number(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:
        return Decimal(text)


def _retry_after(response: httpx.Response) -> float:
    """Return Retry-After in seconds; 0 without one, or when it is a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
