"""The database's time, between two looks at it: the service's own clock decides and shows nothing."""

import time
from datetime import UTC, datetime, timedelta


class ServerClock:
    """Carries the last time that was read forward by the monotonic clock."""

    def __init__(self, database_now: datetime) -> None:
        self.observe(database_now)

    def observe(self, database_now: datetime) -> None:
        self._read_at = time.monotonic()
        self._read = database_now.astimezone(UTC)

    def now(self) -> datetime:
        """Return the database's time, off by no more than the last read's round trip and drift."""
        return self._read + timedelta(seconds=time.monotonic() - self._read_at)
