"""What calls take: time, CPU of the one backend that serves them, write-ahead log of the server."""

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from app.store.engine import Database

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_WAL_POSITION = "SELECT CAST(pg_current_wal_insert_lsn() - '0/0' AS double precision)"


@dataclass(slots=True)
class Spent:
    """What some calls took together; ``seconds`` has each call's time."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    wal_bytes: float = 0.0
    job_count: int = 0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.seconds) * 1000

    @property
    def wall_us_a_job(self) -> float:
        return statistics.median(self.seconds) * 1e6 * len(self.seconds) / self.job_count

    @property
    def cpu_us_a_job(self) -> float:
        return self.cpu_seconds * 1e6 / self.job_count

    @property
    def wal_bytes_a_job(self) -> float:
        return self.wal_bytes / self.job_count


class Meter:
    """Looks at one backend from a connection of its own.

    CPU time comes in ticks of some milliseconds, so it is read around many calls, never around one. The log
    is the whole server's: what autovacuum writes meanwhile is in it.
    """

    def __init__(self, backend_pid: int, connection: psycopg.Connection) -> None:
        self._stat = Path(f"/proc/{backend_pid}/stat")
        self._connection = connection

    async def spend(self, spent: Spent, calls: Sequence[Callable[[], Awaitable[int]]]) -> None:
        """Make the calls, one after the other, and add what they took; each returns its number of jobs."""
        cpu_seconds, wal_bytes = self._cpu_seconds(), self._wal_bytes()
        for call in calls:
            began_at = time.perf_counter()
            spent.job_count += await call()
            spent.seconds.append(time.perf_counter() - began_at)
        spent.cpu_seconds += self._cpu_seconds() - cpu_seconds
        spent.wal_bytes += self._wal_bytes() - wal_bytes

    def _cpu_seconds(self) -> float:
        # The name of the command, in parentheses, may hold spaces.
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS

    def _wal_bytes(self) -> float:
        row = self._connection.execute(_WAL_POSITION.encode()).fetchone()
        return float(row[0]) if row else 0.0


async def backend_of(database: Database) -> int:
    """Return the process id of the backend of a pool of one connection."""
    async with database.one_statement() as conn:
        rows = await conn.run(b"SELECT pg_backend_pid()")
    pid: int = rows[0][0]
    return pid
