"""Fences for what a handler writes to an SQL database that is not Fencepost's.

    write_report   a row that belongs to one job              the version stands in that row
    take_fence     rows that many jobs write                  the version stands in a row of job_fences
    take_once      an effect that a job may have only once    the same, and never written again

All three take an open connection, run in the caller's transaction, and do not commit. They are one statement
each, so the database's own row lock settles every race: whoever comes second waits for the end of the first
one's transaction, and then looks at what that has left.

What none of them can do: keep out a stale worker as long as no newer holder has written. The fence is where
the writes meet, not where the lease ends.

For PostgreSQL and for SQLite 3.35 or newer. Values are written :name, as sqlite3 and SQLAlchemy's text() take
them; psycopg takes %(name)s.
"""

from collections.abc import Mapping
from typing import Any, Protocol

TABLES = (
    """
CREATE TABLE reports (
    job_id TEXT PRIMARY KEY,
    body TEXT,
    stored_version BIGINT NOT NULL DEFAULT 0
)
""",
    """
CREATE TABLE job_fences (
    job_id TEXT PRIMARY KEY,
    stored_version BIGINT NOT NULL
)
""",
)

WRITE_REPORT = """
UPDATE reports
SET    body = :body, stored_version = :lease_version
WHERE  job_id = :job_id AND stored_version <= :lease_version
"""

TAKE_FENCE = """
INSERT INTO job_fences AS fence (job_id, stored_version) VALUES (:job_id, :lease_version)
ON CONFLICT (job_id) DO UPDATE SET stored_version = excluded.stored_version
WHERE  fence.stored_version <= excluded.stored_version
RETURNING job_id
"""

TAKE_ONCE = """
INSERT INTO job_fences AS fence (job_id, stored_version) VALUES (:job_id, :lease_version)
ON CONFLICT (job_id) DO NOTHING
RETURNING job_id
"""


class LeaseLost(Exception):
    """A newer holder of the job was here: roll back and stop."""


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...


class Connection(Protocol):
    def execute(self, statement: str, values: Mapping[str, Any], /) -> Cursor: ...


def write_report(connection: Connection, *, job_id: str, lease_version: int, body: str) -> None:
    """Write the report of a job, whose row is there already, with stored_version 0 before the first write.

    Guaranteed: once a version has written, no lower one changes the row. The same version may write again, so
    a transaction of which nobody knows whether it was committed can be repeated.
    Not guaranteed: that only one version writes. What an older one has written is replaced by the newer one.
    Raises LeaseLost when a newer holder has written.
    """
    values = {"job_id": job_id, "lease_version": lease_version, "body": body}
    if connection.execute(WRITE_REPORT, values).rowcount == 0:
        raise LeaseLost


def take_fence(connection: Connection, *, job_id: str, lease_version: int) -> None:
    """Open the way for the other writes of this transaction; call it before anything is read or written.

    Guaranteed: once a transaction of some version is committed, no transaction of a lower one is.
    Not guaranteed: that the writes happen once. A newer holder passes as well, and makes them again: use it
    for writes that may be repeated, such as ``SET amount = :amount``.
    Raises LeaseLost when a newer holder was here.
    """
    values = {"job_id": job_id, "lease_version": lease_version}
    if connection.execute(TAKE_FENCE, values).fetchone() is None:
        raise LeaseLost


def take_once(connection: Connection, *, job_id: str, lease_version: int) -> bool:
    """Tell whether this transaction is to make the effect that the job may have only once, such as a charge.

    Guaranteed: of all transactions of all holders, one is told True and committed. The others are told False,
    and find its effect there: they go on without making it. One that was told True and rolled back counts for
    nothing.
    Not guaranteed: that it is the newest holder who makes it. Take what the effect needs from the job's
    payload, so that it does not matter who does.
    For several such effects in one job, give each a table, or a job_id with a name behind it.
    """
    values = {"job_id": job_id, "lease_version": lease_version}
    return connection.execute(TAKE_ONCE, values).fetchone() is not None
