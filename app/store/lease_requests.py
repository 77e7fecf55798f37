"""What a lease call with a request_id was answered, so that it can be repeated after a lost answer.

Only answers with jobs are stored, in the transaction that granted them; the row is the lock between
twins on different replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.calls import LeaseRequest
from app.domain.job import LeasedJob, Token
from app.store.arrays import plain, token_arrays
from app.store.engine import Connection, fetch, sql
from app.store.leases import leased_job

READ_LEASE_REQUEST = sql("""
SELECT fingerprint, job_ids, lease_versions
FROM fencepost.lease_requests
WHERE worker_id = :worker_id AND request_id = :request_id AND expires_at > now()
""")

# A row whose time is over is taken anew; a live one, or a twin's that has just committed, is not.
REMEMBER_LEASE_REQUEST = sql("""
INSERT INTO fencepost.lease_requests AS r (
    worker_id, request_id, fingerprint, expires_at, job_ids, lease_versions
)
VALUES (
    :worker_id, :request_id, :fingerprint, now() + make_interval(secs => :lease_seconds),
    CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])
)
ON CONFLICT (worker_id, request_id) DO UPDATE
SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at,
    job_ids = excluded.job_ids, lease_versions = excluded.lease_versions
WHERE r.expires_at <= now()
RETURNING worker_id
""")

FORGET_LEASE_REQUEST = sql("""
DELETE FROM fencepost.lease_requests WHERE worker_id = :worker_id AND request_id = :request_id
""")

READ_UNTOUCHED_LEASES = sql("""
SELECT l.lease_version, l.job_id, j.queue, j.kind, j.payload, j.metadata, j.priority, l.attempt,
       j.max_attempts, l.expires_at, l.lease_seconds, l.deadline_at, l.checkpoint, l.previous,
       j.created_at, j.run_at, j.traceparent, j.tracestate, j.parent_job_id, j.parent_lease_version
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS granted (job_id, lease_version)
JOIN fencepost.leases l
  ON l.job_id = granted.job_id AND l.lease_version = granted.lease_version AND NOT l.is_touched
JOIN fencepost.jobs j ON j.job_id = l.job_id
ORDER BY j.priority, j.run_at, j.job_id
""")

DELETE_OLD_LEASE_REQUESTS = sql("""
WITH deleted AS (
    DELETE FROM fencepost.lease_requests WHERE expires_at <= now() RETURNING worker_id
)
SELECT CAST(count(*) AS integer) AS answer_count FROM deleted
""")


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    fingerprint: bytes
    tokens: list[Token]


async def read_lease_request(conn: Connection, request: LeaseRequest) -> AnsweredRequest | None:
    """Return what was granted under the request_id; None when nothing live is stored."""
    rows = await fetch(conn, READ_LEASE_REQUEST, _identity(request))
    if not rows:
        return None
    tokens = [
        Token(job_id, lease_version)
        for job_id, lease_version in zip(rows[0].job_ids, rows[0].lease_versions, strict=True)
    ]
    return AnsweredRequest(bytes(rows[0].fingerprint), tokens)


async def remember_lease_request(conn: Connection, request: LeaseRequest, jobs: Sequence[LeasedJob]) -> bool:
    """Store what this transaction granted; False when a twin was first, and the grants must be undone.

    Waits for a twin whose transaction is open.
    """
    parameters = _identity(request) | {
        "fingerprint": request.fingerprint,
        "lease_seconds": request.lease_seconds,
        "job_ids": plain([job.id for job in jobs]),
        "lease_versions": plain([job.lease_version for job in jobs]),
    }
    return bool(await fetch(conn, REMEMBER_LEASE_REQUEST, parameters))


async def forget_lease_request(conn: Connection, request: LeaseRequest) -> None:
    """Drop what is stored, because its grants are given back."""
    await conn.execute(FORGET_LEASE_REQUEST, _identity(request))


async def read_untouched_leases(conn: Connection, tokens: Sequence[Token]) -> list[LeasedJob]:
    """Return those of the grants that are still held and have had no heartbeat."""
    rows = await fetch(
        conn,
        READ_UNTOUCHED_LEASES,
        token_arrays(tokens),
    )
    return [leased_job(row) for row in rows]


async def delete_old_lease_requests(conn: Connection) -> int:
    """Delete stored answers whose time is over; return how many."""
    count: int = (await fetch(conn, DELETE_OLD_LEASE_REQUESTS, {}))[0].answer_count
    return count


def _identity(request: LeaseRequest) -> dict[str, object]:
    return {"worker_id": request.worker_id, "request_id": request.request_id}
