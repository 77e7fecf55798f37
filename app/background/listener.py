"""Feeds the LISTEN connection into the wake-ups, one message a pass."""

from collections.abc import AsyncIterator

from app.operations.wakeups import Wakeups
from app.store.notifications import listen


class Listener:
    """Keeps one listening connection over its passes; while there is none, polls fall back."""

    def __init__(self, url: str, wakeups: Wakeups) -> None:
        self._url = url
        self._wakeups = wakeups
        self._messages: AsyncIterator[str | None] | None = None

    async def run(self) -> float:
        """Wait for the next message and take it in; raises ConnectionError when the connection is gone."""
        if self._messages is None:
            self._messages = listen(self._url)
        try:
            message = await anext(self._messages)
        except BaseException:
            # What has raised has closed its connection; the next pass opens another one.
            self._messages = None
            raise
        if message is None:
            self._wakeups.listening()
        else:
            self._wakeups.receive(message)
        return 0.0
