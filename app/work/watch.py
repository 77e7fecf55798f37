"""Tells when there is something to read on the descriptors of commands."""

import asyncio
import selectors
from collections.abc import Callable


class Watch:
    """Many descriptors behind one reader of an event loop. It belongs to the loop that first adds one.

    A command has four, maybe for a few milliseconds. A reader of the loop for each costs four times as much.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: dict[int, Callable[[], None]] = {}
        self._is_read = False

    def add(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call a function whenever a read would not block."""
        if not self._is_read:
            self._is_read = True
            asyncio.get_running_loop().add_reader(self._selector, self._look)
        self._calls[descriptor] = call
        self._selector.register(descriptor, selectors.EVENT_READ)

    def remove(self, descriptor: int) -> None:
        """Call no more. A descriptor is closed after this."""
        del self._calls[descriptor]
        self._selector.unregister(descriptor)

    def _look(self) -> None:
        for key, _ in self._selector.select(0):
            # One that was removed by a call before it may be another one's by now, and is looked at again.
            if (call := self._calls.get(key.fd)) is not None:
                call()
