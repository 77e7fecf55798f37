"""How long to wait before a call is repeated."""

import random
from collections.abc import Callable

import httpx

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 10.0


class Pauses:
    """The pauses between the tries of one call: doubled each time, drawn between half and the whole."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._draw = draw
        self._whole = FIRST_SECONDS

    def next(self, answer: httpx.Response | None = None) -> float:
        """Return the next pause in seconds; an answer's Retry-After is the least."""
        whole = self._whole
        self._whole = min(2 * whole, LONGEST_SECONDS)
        return max(self._draw(whole / 2, whole), retry_after(answer))

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._whole = FIRST_SECONDS


def retry_after(answer: httpx.Response | None) -> float:
    """Return the answer's Retry-After in seconds; 0 without one, or when it is a date."""
    text = answer.headers.get("retry-after", "") if answer is not None else ""
    return float(text) if text.isdecimal() else 0.0


def is_weather(answer: httpx.Response) -> bool:
    """Tell whether the same call may get another answer later."""
    return answer.status_code >= 500 or answer.status_code in (408, 429)
