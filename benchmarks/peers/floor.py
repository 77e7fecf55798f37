"""What pgbench does on a bare table with a primary key: no queue can pass it on this machine."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.peers.databases import Databases
from benchmarks.peers.results import Reading

_SCRIPTS = Path(__file__).resolve().parent / "floor"
_SECONDS = 180
_TABLE = """
CREATE TABLE q (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  state smallint NOT NULL DEFAULT 0,
  payload text NOT NULL
)
"""
_CLAIM_INDEX = "CREATE INDEX IF NOT EXISTS q_ready ON q (id) WHERE state = 0"
_FILL = """INSERT INTO q (payload) SELECT '{"i": 1}' FROM generate_series(1, CAST(%s AS bigint))"""

# Metric, script, clients, jobs a transaction, jobs in all.
_INSERTS = (
    ("enqueue_c1", "insert", 1, 1, 4_000),
    ("enqueue_c16", "insert", 16, 1, 16_000),
    ("enqueue_c64", "insert", 64, 1, 16_000),
    ("enqueue_notify_c1", "insert_notify1", 1, 1, 3_000),
    ("enqueue_notify_c16", "insert_notify1", 16, 1, 12_000),
    ("enqueue_notify_c64", "insert_notify1", 64, 1, 12_000),
    ("bulk", "insert1000", 1, 1000, 40_000),
)
_CLAIMS = (
    ("claim_delete_1_c1", "claim_delete", 1, 1, 4_000),
    ("claim_delete_1_c16", "claim_delete", 16, 1, 16_000),
    ("claim_delete_100_c2", "claim_delete", 2, 100, 40_000),
    ("claim_then_delete_1_c1", "claim_update_delete", 1, 1, 4_000),
    ("claim_then_delete_1_c16", "claim_update_delete", 16, 1, 16_000),
    ("claim_then_delete_1000_c2", "claim_update_delete", 2, 1000, 40_000),
    ("claim_then_keep_1_c16", "claim_update_update", 16, 1, 12_000),
    ("claim_then_keep_1000_c2", "claim_update_update", 2, 1000, 40_000),
)


def floor(databases: Databases, pgbench: Path) -> Iterator[Reading]:
    """Insert, and claim and settle, in ways that no promise of a queue makes dearer."""
    url = databases.create("floor")
    try:
        with (
            psycopg.connect(url, autocommit=True) as connection,
            psycopg.connect(url, autocommit=True) as listener,
        ):
            listener.execute("LISTEN pb_floor")
            connection.execute(_TABLE)
            for metric, script, clients, batch, jobs in _INSERTS:
                connection.execute("TRUNCATE q")
                databases.checkpoint()
                before = databases.wal_position()
                rate = _run(pgbench, url, script, clients=clients, transactions=jobs // batch)
                yield Reading(metric, rate * batch, "jobs/s")
                yield Reading(f"{metric}_wal", (databases.wal_position() - before) / jobs, "bytes/job")
                # What has been sent to the listener is read, or the queue of notifications fills.
                listener.execute("SELECT 1")
            for metric, script, clients, batch, jobs in _CLAIMS:
                connection.execute("TRUNCATE q")
                databases.checkpoint()
                if script == "claim_update_delete":
                    connection.execute(_CLAIM_INDEX)
                connection.execute(_FILL, (jobs,))
                connection.execute("VACUUM ANALYZE q")
                before = databases.wal_position()
                rate = _run(pgbench, url, script, clients=clients, transactions=jobs // batch, batch=batch)
                # A claim that collides with others may come back with fewer.
                left = connection.execute("SELECT count(*) FROM q WHERE state < 2").fetchone()
                assert left is not None
                done = jobs - left[0]
                yield Reading(metric, rate * batch * done / jobs, "jobs/s")
                yield Reading(f"{metric}_wal", (databases.wal_position() - before) / done, "bytes/job")
    finally:
        databases.drop("floor")


def _run(pgbench: Path, url: str, script: str, *, clients: int, transactions: int, batch: int = 1) -> float:
    """Return transactions a second."""
    address = urlsplit(url)
    user = ["--username", address.username] if address.username else []
    done = subprocess.run(
        [
            *(str(pgbench), "--no-vacuum", "--protocol=prepared", f"--file={_SCRIPTS / script}.sql"),
            *(f"--client={clients}", f"--jobs={min(2, clients)}"),
            *(f"--transactions={transactions // clients}", f"--define=batch={batch}"),
            *("--host", address.hostname or "", "--port", str(address.port or 5432), *user),
            address.path.removeprefix("/"),
        ],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("tps"))
    return float(line.split()[2])
