"""What a running service takes: of the machine (its processes), and of the database (tables, sessions)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil
import psycopg

from benchmarks.flatness import Kind

HOT_TABLES = ("ready", "scheduled", "leases", "idempotency_keys", "lease_requests")

_READ_TABLES = """
SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup
FROM pg_stat_user_tables
WHERE schemaname = 'fencepost' AND relname = ANY (%(tables)s)
"""

# Sessions of the service, not of this program.
_READ_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%'
"""

_COUNT_UNFINISHED = """
SELECT (SELECT count(*) FROM fencepost.ready) + (SELECT count(*) FROM fencepost.scheduled)
     + (SELECT count(*) FROM fencepost.leases)
"""

_READ_UPDATES = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE schemaname = 'fencepost' AND relname = 'leases'
"""

# Kept for the retention: they grow by design, the bytes a row do not.
_READ_GROWN = """
SELECT
    pg_total_relation_size('fencepost.jobs'),
    (SELECT count(*) FROM fencepost.jobs),
    (SELECT CAST(sum(pg_total_relation_size(relid)) AS bigint) FROM pg_partition_tree('fencepost.finished')),
    (SELECT count(*) FROM fencepost.finished),
    (SELECT CAST(sum(pg_total_relation_size(relid)) AS bigint) FROM pg_partition_tree('fencepost.attempts')),
    (SELECT count(*) FROM fencepost.attempts)
"""

Gauges = dict[tuple[Kind, str], float]


@dataclass(frozen=True, slots=True)
class Updates:
    """Counters of the leases' updates since the server started."""

    total: int
    hot: int


class Footprint:
    """Looks at one service (``pid`` of its first process) and its database."""

    def __init__(self, pid: int, connection: psycopg.Connection) -> None:
        self._service = psutil.Process(pid)
        self._connection = connection
        # In the order of their appearance; one that replaces another gets a number, and a row, of its own.
        self._numbers: dict[int, int] = {}

    def read(self) -> Gauges:
        """Return the gauges of now. A server process that ended takes its rows with it."""
        unfinished = {(Kind.UNFINISHED, "unfinished jobs"): self.count_unfinished()}
        return self._read_processes() | self._read_sessions() | self._read_tables() | unfinished

    def read_updates(self) -> Updates:
        row = self._connection.execute(_READ_UPDATES).fetchone()
        return Updates(*row) if row else Updates(0, 0)

    def read_grown(self) -> Mapping[str, str]:
        """Return what grows by design, as bytes a row."""
        row = self._connection.execute(_READ_GROWN).fetchone()
        jobs_bytes, jobs, finished_bytes, finished, attempts_bytes, attempts = row or (0, 0, 0, 0, 0, 0)
        return {
            "jobs (grow by design)": _bytes_each(jobs_bytes, jobs),
            "finished jobs (grow by design)": _bytes_each(finished_bytes, finished),
            "ended attempts (grow by design)": _bytes_each(attempts_bytes, attempts),
        }

    def _read_processes(self) -> Gauges:
        gauges: Gauges = {}
        for process in [self._service, *self._service.children(recursive=True)]:
            # One of PostgreSQL's may have ended since the list was made.
            with suppress(psutil.NoSuchProcess):
                if process.name() != "postgres":
                    name = self._name(process)
                    gauges[Kind.MEMORY, f"{name}, resident memory"] = process.memory_info().rss
                    gauges[Kind.DESCRIPTORS, f"{name}, descriptors"] = process.num_fds()
                    gauges[Kind.THREADS, f"{name}, threads"] = process.num_threads()
        return gauges

    def _read_sessions(self) -> Gauges:
        pids = [pid for (pid,) in self._connection.execute(_READ_SESSIONS)]
        private_bytes = 0
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                memory = psutil.Process(pid).memory_info()
                # What is shared is the server's cache, which fills up to the size that it was given.
                private_bytes += memory.rss - memory.shared
        return {
            (Kind.SESSIONS, "database sessions"): len(pids),
            (Kind.MEMORY, "database sessions, private memory"): private_bytes,
        }

    def _name(self, process: psutil.Process) -> str:
        if process == self._service:
            return "service"
        return f"server process {self._numbers.setdefault(process.pid, len(self._numbers) + 1)}"

    def _read_tables(self) -> Gauges:
        gauges: Gauges = {}
        rows = self._connection.execute(_READ_TABLES, {"tables": list(HOT_TABLES)}).fetchall()
        for name, table_bytes, index_bytes, dead_tuples in sorted(
            rows, key=lambda row: HOT_TABLES.index(row[0])
        ):
            gauges[Kind.TABLE, f"{name}, table"] = table_bytes
            gauges[Kind.TABLE, f"{name}, indexes"] = index_bytes
            gauges[Kind.DEAD_TUPLES, f"{name}, dead tuples"] = dead_tuples
        return gauges

    def count_unfinished(self) -> int:
        row = self._connection.execute(_COUNT_UNFINISHED).fetchone()
        return int(row[0]) if row else 0


def _bytes_each(total_bytes: int, count: int) -> str:
    return f"{count:,} of {total_bytes / count:,.0f} bytes" if count else "none yet"
