"""The signal that tells a handler to stop, with its reason."""

import threading
from typing import Literal, Protocol

from fencepost.clock import now

StopReason = Literal["lease_lost", "cancelled", "shutdown"]


# A BaseException, as asyncio.CancelledError is: a handler's own `except Exception` must not swallow the stop.
class Stopped(BaseException):
    """The handler has been told to stop. Let it pass: the worker knows what to send."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason)


class Expiry(Protocol):
    """A place that holds when the lease runs out, on the clock of ``fencepost.clock``."""

    value: float


class LocalExpiry:
    """An Expiry of this process; one that a handler's process shares is in ``fencepost.processes``."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Stop:
    """Whether a handler has to stop, and why. Any thread may ask.

    It looks at the clock whenever it is asked: a process that was paused over the end of its lease knows so
    with the first question, before any timer has run.
    """

    __slots__ = ("_event", "_reason", "expiry")

    def __init__(self, expiry: Expiry) -> None:
        self.expiry = expiry
        self._reason: StopReason | None = None
        self._event = threading.Event()

    @property
    def reason(self) -> StopReason | None:
        """``lease_lost``, ``cancelled`` or ``shutdown``; None while the handler may go on.

        A lost lease stays lost, and outweighs the other two.
        """
        if self._reason != "lease_lost" and now() >= self.expiry.value:
            self._reason = "lease_lost"
        return self._reason

    def is_set(self) -> bool:
        """Tell whether the handler has to stop."""
        return self.reason is not None

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Sleep for the time, or until the handler has to stop; tell whether it has to."""
        self._event.wait(timeout_seconds)
        return self.is_set()

    def set(self, reason: StopReason) -> None:
        """Tell the handler to stop. The first reason counts, but for a lost lease."""
        if self._reason is None or reason == "lease_lost":
            self._reason = reason
        self._event.set()
