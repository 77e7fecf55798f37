"""What can happen to a PostgreSQL that runs apart from the service."""

import asyncio

import psycopg

from tests.chaos.fleet import Database
from tests.chaos.stage import Stage

KILLED = "SIGKILL of PostgreSQL"
AWAY = "PostgreSQL stopped, away"
SESSIONS_ENDED = "pg_terminate_backend, pool"
LISTENERS_ENDED = "pg_terminate_backend, LISTEN"
TABLE_LOCKED = "table locked"
ALL = (KILLED, AWAY, SESSIONS_ENDED, LISTENERS_ENDED, TABLE_LOCKED)

_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND application_name LIKE 'fencepost%%' AND (application_name = 'fencepost listen') = %s
"""


class DatabaseFaults:
    """The faults of one database, on a stage. In a short run PostgreSQL is away for 4 s, else for 10 s."""

    def __init__(self, stage: Stage, database: Database) -> None:
        self._stage = stage
        self._database = database

    async def kill(self) -> None:
        async with self._stage.strike(KILLED):
            await self._database.kill()
            await self._database.start()

    async def stop_for_a_while(self) -> None:
        async with self._stage.strike(AWAY):
            await self._database.stop()
            await asyncio.sleep(4.0 if self._stage.is_short else 10.0)
            await self._database.start()

    async def end_sessions(self) -> None:
        await self._end_sessions(SESSIONS_ENDED, is_listening=False)

    async def end_listeners(self) -> None:
        await self._end_sessions(LISTENERS_ENDED, is_listening=True)

    async def lock_table(self) -> None:
        """Hold a lock that keeps requests waiting, in a long run beyond their patience."""
        table = self._stage.chance.choice(["jobs", "leases", "ready"])
        async with (
            self._stage.strike(TABLE_LOCKED, table),
            await self._connect() as connection,
            connection.transaction(),
        ):
            await connection.execute(f"LOCK TABLE fencepost.{table} IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(3.0 if self._stage.is_short else 7.0)

    async def _end_sessions(self, fault: str, *, is_listening: bool) -> None:
        async with self._stage.strike(fault), await self._connect() as connection:
            await connection.execute(_END_SESSIONS, (is_listening,))

    async def _connect(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self._database.url, autocommit=True)
