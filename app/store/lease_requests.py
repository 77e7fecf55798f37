"""What a lease call with a request_id was answered, so that it can be repeated after a lost answer.

Only answers with jobs are stored, in the transaction that granted them; the row is the lock between
twins on different replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.calls import LeaseRequest
from app.domain.job import LeasedJob, Token
from app.store.arrays import byte_strings, plain, texts, token_arrays
from app.store.engine import Connection, sql
from app.store.leases import leased_job

READ_LEASE_REQUESTS = sql("""
SELECT r.worker_id, r.request_id, r.fingerprint, r.job_ids, r.lease_versions
FROM unnest(CAST(:worker_ids AS text[]), CAST(:request_ids AS text[])) AS i (worker_id, request_id)
JOIN fencepost.lease_requests r USING (worker_id, request_id)
WHERE r.expires_at > now()
""")

# A row whose time is over is taken anew; a live one, or a twin's that has just committed, is not.
# Sorted, so that two calls that name the same requests do not wait for each other.
REMEMBER_LEASE_REQUESTS = sql("""
INSERT INTO fencepost.lease_requests AS r (
    worker_id, request_id, fingerprint, expires_at, job_ids, lease_versions
)
SELECT worker_id, request_id, fingerprint, now() + make_interval(secs => lease_seconds),
       CAST(job_ids AS uuid[]), CAST(lease_versions AS bigint[])
FROM unnest(
    CAST(:worker_ids AS text[]), CAST(:request_ids AS text[]), CAST(:fingerprints AS bytea[]),
    CAST(:lease_seconds AS double precision[]), CAST(:job_ids AS text[]), CAST(:lease_versions AS text[])
) AS i (worker_id, request_id, fingerprint, lease_seconds, job_ids, lease_versions)
ORDER BY worker_id, request_id
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


async def read_lease_requests(
    conn: Connection, requests: Sequence[LeaseRequest]
) -> dict[tuple[str, str], AnsweredRequest]:
    """Return what was granted under each request_id, by identity; nothing where none is live."""
    rows = await conn.execute(READ_LEASE_REQUESTS, _identities(requests))
    return {
        (row.worker_id, row.request_id): AnsweredRequest(
            bytes(row.fingerprint), list(map(Token, row.job_ids, row.lease_versions))
        )
        for row in rows
    }


async def remember_lease_requests(
    conn: Connection, answers: Mapping[LeaseRequest, Sequence[LeasedJob]]
) -> int:
    """Store what this transaction granted, and return for how many requests.

    Too few: a twin was first, and all grants must be undone. Waits for a twin whose transaction is open.
    """
    requests = list(answers)
    rows = await conn.execute(
        REMEMBER_LEASE_REQUESTS,
        _identities(requests)
        | {
            "fingerprints": byte_strings([request.fingerprint for request in requests]),
            "lease_seconds": plain([request.lease_seconds for request in requests]),
            "job_ids": texts([plain([job.id for job in jobs]) for jobs in answers.values()]),
            "lease_versions": texts(
                [plain([job.lease_version for job in jobs]) for jobs in answers.values()]
            ),
        },
    )
    return len(rows)


async def forget_lease_request(conn: Connection, request: LeaseRequest) -> None:
    """Drop what is stored, because its grants are given back."""
    await conn.execute(
        FORGET_LEASE_REQUEST,
        {"worker_id": request.worker_id, "request_id": request.request_id},
    )


async def read_untouched_leases(conn: Connection, tokens: Sequence[Token]) -> list[LeasedJob]:
    """Return those of the grants that are still held and have had no heartbeat."""
    rows = await conn.execute(
        READ_UNTOUCHED_LEASES,
        token_arrays(tokens),
    )
    return [leased_job(row) for row in rows]


async def delete_old_lease_requests(conn: Connection) -> int:
    """Delete stored answers whose time is over; return how many."""
    count: int = (await conn.execute(DELETE_OLD_LEASE_REQUESTS))[0].answer_count
    return count


def _identities(requests: Sequence[LeaseRequest]) -> dict[str, object]:
    return {
        "worker_ids": texts([request.worker_id for request in requests]),
        "request_ids": texts([request.request_id for request in requests]),
    }
