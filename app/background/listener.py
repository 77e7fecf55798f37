"""Feeds the LISTEN connection into the wake-ups; its pass ends only when that connection is gone."""

from contextlib import aclosing

from app.operations.wakeups import Wakeups
from app.store.notifications import listen


class Listener:
    """``is_listening`` tells whether wake-ups from other replicas arrive; without them polls fall back."""

    def __init__(self, url: str, wakeups: Wakeups) -> None:
        self._url = url
        self._wakeups = wakeups
        self.is_listening = False

    async def run(self) -> float:
        """Listen until the connection is gone; raises ConnectionError then."""
        try:
            async with aclosing(listen(self._url)) as messages:
                async for message in messages:
                    if message is None:
                        self.is_listening = True
                        self._wakeups.listening()
                    else:
                        self._wakeups.receive(message)
        finally:
            self.is_listening = False
        return 0.0
