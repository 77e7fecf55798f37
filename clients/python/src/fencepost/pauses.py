"""How long to wait before a call is repeated."""

import random
from collections.abc import Callable

from fencepost.answers import Answer

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 10.0


class Pauses:
    """The pauses between the tries of one call: doubled each time, drawn between half and the whole."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._draw = draw
        self._whole = FIRST_SECONDS

    def next(self, answer: Answer | None = None) -> float:
        """Return the next pause in seconds; an answer's Retry-After is the least."""
        whole = self._whole
        self._whole = min(2 * whole, LONGEST_SECONDS)
        pause = self._draw(whole / 2, whole)
        return pause if answer is None else max(pause, answer.retry_after_seconds)

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._whole = FIRST_SECONDS


def is_weather(answer: Answer) -> bool:
    """Tell whether the same call may get another answer later."""
    return answer.status >= 500 or answer.status in (408, 429)
