"""A way into an event loop from any thread, with one wake-up for all that has gathered."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Values for ``receive``, which is called in the loop, in the order of ``put``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[Item], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._items: deque[Item] = deque()
        self._is_woken = False

    def put(self, item: Item) -> None:
        """Hand a value over, from any thread; after the loop has been closed it is nobody's."""
        self.put_all((item,))

    def put_all(self, items: Iterable[Item]) -> None:
        """Hand values over that stay together: a wake-up lets other threads run before the next line does."""
        self._items.extend(items)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def _deliver(self) -> None:
        # First the flag, then the items: who puts one in between wakes the loop once too often, never too
        # seldom.
        self._is_woken = False
        while self._items:
            self._receive(self._items.popleft())
