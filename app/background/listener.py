"""Feeds the LISTEN connection into the wake-ups, one message a pass."""

import logging
from collections.abc import AsyncIterator

from app.operations.wakeups import Wakeups
from app.store.connections import Connector
from app.store.notifications import BehindPooler, listen

_logger = logging.getLogger(__name__)

# A pooler is there by somebody's decision; that it has gone is worth a look now and then.
POOLER_PAUSE_SECONDS = 60.0


class Listener:
    """Keeps one listening connection over its passes; while there is none, polls fall back."""

    def __init__(self, url: str, wakeups: Wakeups) -> None:
        self._url = url
        self._wakeups = wakeups
        self._messages: AsyncIterator[str | None] | None = None
        self._is_polling = False

    async def run(self) -> float:
        """Wait for the next message and take it in; raises ConnectionError when the connection is gone."""
        if self._messages is None:
            self._messages = listen(Connector(self._url))
        try:
            message = await anext(self._messages)
        except BehindPooler:
            self._messages = None
            self._say_that_polls_look_for_themselves()
            return POOLER_PAUSE_SECONDS
        except BaseException:
            # What has raised has closed its connection; the next pass opens another one.
            self._messages = None
            raise
        if message is None:
            self._wakeups.listening()
        else:
            self._wakeups.receive(message)
        return 0.0

    def _say_that_polls_look_for_themselves(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            _logger.warning(
                "the database is reached through a transaction pooler, which passes no notifications on: "
                "parked polls look for the work of other replicas every few seconds; "
                "FENCEPOST_LISTEN_URL may name a direct connection"
            )
