"""What an administrator sees of the service's sessions in the database."""

from dataclasses import dataclass

import psycopg

_SESSIONS = """
SELECT pid, application_name, state, wait_event_type,
       CAST(extract(epoch FROM clock_timestamp() - state_change) AS double precision)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND backend_type = 'client backend'
"""


@dataclass(frozen=True, slots=True)
class Session:
    pid: int
    application_name: str
    state: str | None
    wait_event_type: str | None
    state_seconds: float

    @property
    def is_listening(self) -> bool:
        return self.application_name == "fencepost listen"


def read_sessions(database_url: str) -> list[Session]:
    """Return the sessions of all replicas on this database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        return [Session(*row) for row in connection.execute(_SESSIONS)]


def listener_pids(database_url: str) -> set[int]:
    return {session.pid for session in read_sessions(database_url) if session.is_listening}
