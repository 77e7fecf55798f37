"""Insert jobs, and claim the idempotency keys they came with.

    lock_parents   the leases under which children are created; held until commit
    claim_keys     insert what is new; a concurrent twin waits here for the first one's commit
    read_keys      what a key that is taken belongs to
    forget_keys    drop keys whose time is over
    insert_jobs    jobs, and ready or scheduled, in one statement

Ids are UUIDv7 of the transaction's now() plus the job's position in microseconds: within one
transaction the order of positions is the order of ids and of created_at.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.domain.job import JobSpec, Token
from app.domain.retention import Retention
from app.store.arrays import byte_strings, plain, texts, token_arrays
from app.store.columns import backoff_text, metadata_text
from app.store.engine import Connection, sql

# KEY SHARE: a heartbeat may pass, the end of the lease (a DELETE) may not.
LOCK_PARENTS = sql("""
SELECT l.job_id, l.lease_version
FROM fencepost.leases l
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND ((l.job_id, l.lease_version) IN (
      SELECT * FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS held
  )) IS TRUE
ORDER BY l.job_id
FOR KEY SHARE OF l SKIP LOCKED
""")

# Sorted, so that two batches with the same keys in opposite order wait for each other, and never both.
CLAIM_KEYS = sql("""
INSERT INTO fencepost.idempotency_keys (caller, key, fingerprint, job_id)
SELECT i.caller, i.key, i.fingerprint,
       fencepost.new_job_id(now() + i.position * interval '1 microsecond')
FROM unnest(
    CAST(:positions AS integer[]), CAST(:callers AS text[]), CAST(:keys AS text[]),
    CAST(:fingerprints AS bytea[])
) AS i (position, caller, key, fingerprint)
ORDER BY i.caller, i.key
ON CONFLICT DO NOTHING
RETURNING caller, key, job_id
""")

# A separate statement: within CLAIM_KEYS a key that a twin has just committed is not visible.
READ_KEYS = sql("""
SELECT k.caller, k.key, k.fingerprint, k.job_id,
       EXISTS (SELECT FROM fencepost.jobs j WHERE j.job_id = k.job_id)
       AND NOT EXISTS (
           SELECT FROM fencepost.finished f
           WHERE f.job_id = k.job_id
             AND f.finished_at <= now() - make_interval(secs => least(
                 :idempotency_seconds,
                 CASE f.state WHEN 'dead' THEN CAST(:dead_seconds AS double precision)
                              ELSE CAST(:finished_seconds AS double precision) END))
       ) AS is_kept
FROM unnest(CAST(:callers AS text[]), CAST(:keys AS text[])) AS i (caller, key)
CROSS JOIN LATERAL (
    SELECT * FROM fencepost.idempotency_keys k WHERE k.caller = i.caller AND k.key = i.key LIMIT 1
) k
""")

FORGET_KEYS = sql("""
DELETE FROM fencepost.idempotency_keys k
USING unnest(CAST(:callers AS text[]), CAST(:keys AS text[]), CAST(:job_ids AS uuid[]))
   AS i (caller, key, job_id)
WHERE k.caller = i.caller AND k.key = i.key AND k.job_id = i.job_id
""")

INSERT_JOBS = sql("""
WITH input AS MATERIALIZED (
    SELECT i.*,
           COALESCE(
               i.given_id, fencepost.new_job_id(now() + i.position * interval '1 microsecond')
           ) AS job_id,
           now() + i.position * interval '1 microsecond' AS created_at,
           COALESCE(
               i.asked_at,
               now() + i.position * interval '1 microsecond'
                     + make_interval(secs => COALESCE(i.delay_seconds, 0))
           ) AS run_at,
           COALESCE(i.asked_at <= now(), COALESCE(i.delay_seconds, 0) = 0) AS is_due
    FROM unnest(
        CAST(:positions AS integer[]), CAST(:given_ids AS uuid[]), CAST(:queues AS text[]),
        CAST(:kinds AS text[]), CAST(:priorities AS smallint[]), CAST(:payloads AS text[]),
        CAST(:metadatas AS text[]), CAST(:asked_ats AS timestamptz[]),
        CAST(:delays AS double precision[]), CAST(:max_attempts AS integer[]), CAST(:backoffs AS text[]),
        CAST(:max_runtimes AS double precision[]), CAST(:progress_timeouts AS double precision[]),
        CAST(:parent_job_ids AS uuid[]), CAST(:parent_lease_versions AS bigint[]),
        CAST(:traceparents AS text[]), CAST(:tracestates AS text[]),
        CAST(:callers AS text[]), CAST(:idempotency_keys AS text[])
    ) AS i (
        position, given_id, queue, kind, priority, payload, metadata, asked_at, delay_seconds,
        max_attempts, backoff, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
        parent_lease_version, traceparent, tracestate, caller, idempotency_key
    )
), new_jobs AS (
    INSERT INTO fencepost.jobs (
        job_id, created_at, run_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
        parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff,
        traceparent, tracestate, caller, idempotency_key
    )
    SELECT job_id, created_at, run_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
           parent_lease_version, max_attempts, priority, queue, kind, CAST(payload AS json),
           CAST(metadata AS json), CAST(backoff AS json), traceparent, tracestate, caller, idempotency_key
    FROM input
), new_ready AS (
    INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
    SELECT job_id, run_at, 0, 0, priority, queue FROM input WHERE is_due
), new_scheduled AS (
    INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
    SELECT job_id, run_at, 0, 0, priority, queue FROM input WHERE NOT is_due
)
SELECT position, job_id, created_at, run_at, is_due,
       CAST(extract(epoch FROM run_at - now()) AS double precision) AS due_in_seconds
FROM input
ORDER BY position
""")


class InsertedJob(msgspec.Struct, frozen=True):
    """``due_in_seconds`` counts from the transaction's now(); it is what the promoter must wait."""

    job_id: str
    created_at: datetime
    run_at: datetime
    is_due: bool
    due_in_seconds: float


class TakenKey(msgspec.Struct, frozen=True):
    """What a key belongs to; ``is_kept`` is False when its time is over and it may be forgotten."""

    fingerprint: bytes
    job_id: str
    is_kept: bool


async def lock_parents(conn: Connection, tokens: Sequence[Token]) -> set[Token]:
    """Return which of the tokens are held, and keep them held until the transaction ends.

    Never waits: one that a rival is just ending is missing, as one that is not held.
    """
    wanted = sorted(set(tokens), key=lambda token: token.job_id)
    rows = await conn.execute(
        LOCK_PARENTS,
        token_arrays(wanted),
    )
    return {Token(row.job_id, row.lease_version) for row in rows}


async def claim_keys(conn: Connection, specs: Sequence[tuple[int, JobSpec]]) -> dict[tuple[str, str], str]:
    """Insert the keys of (position, spec) pairs; return the new job's id for each that was free.

    Each (caller, key) may stand only once. A key that is missing from the answer is taken: by a
    committed twin, or by an old job.
    """
    rows = await conn.execute(
        CLAIM_KEYS,
        {
            "positions": plain([position for position, _ in specs]),
            "callers": texts([spec.caller for _, spec in specs]),
            "keys": texts([spec.idempotency_key for _, spec in specs]),
            "fingerprints": byte_strings([spec.fingerprint for _, spec in specs]),
        },
    )
    return {(row.caller, row.key): row.job_id for row in rows}


async def read_keys(
    conn: Connection, keys: Sequence[tuple[str, str]], *, retention: Retention
) -> dict[tuple[str, str], TakenKey]:
    """Return what (caller, key) pairs belong to; a pair that is missing is free."""
    rows = await conn.execute(
        READ_KEYS,
        {
            "callers": texts([caller for caller, _ in keys]),
            "keys": texts([key for _, key in keys]),
            "idempotency_seconds": retention.idempotency_seconds,
            "finished_seconds": retention.finished_seconds,
            "dead_seconds": retention.dead_seconds,
        },
    )
    return {(row.caller, row.key): TakenKey(bytes(row.fingerprint), row.job_id, row.is_kept) for row in rows}


async def forget_keys(conn: Connection, keys: dict[tuple[str, str], TakenKey]) -> None:
    """Drop keys whose time is over; one that was taken anew meanwhile stays."""
    ordered = sorted(keys)
    await conn.execute(
        FORGET_KEYS,
        {
            "callers": texts([caller for caller, _ in ordered]),
            "keys": texts([key for _, key in ordered]),
            "job_ids": plain([keys[pair].job_id for pair in ordered]),
        },
    )


async def insert_jobs(
    conn: Connection, specs: Sequence[tuple[int, JobSpec, str | None]]
) -> dict[int, InsertedJob]:
    """Insert (position, spec, id of a claimed key or None); return what the database made of each.

    Positions are unique within the transaction, from 0 up to some thousands.
    """
    jobs = [spec for _, spec, _ in specs]
    rows = await conn.execute(
        INSERT_JOBS,
        {
            "positions": plain([position for position, _, _ in specs]),
            "given_ids": plain([given_id for _, _, given_id in specs]),
            "queues": texts([job.queue for job in jobs]),
            "kinds": texts([job.kind for job in jobs]),
            "priorities": plain([job.priority for job in jobs]),
            "payloads": texts([job.payload for job in jobs]),
            "metadatas": texts([metadata_text(job.metadata) for job in jobs]),
            "asked_ats": plain([job.run_at for job in jobs]),
            "delays": plain([job.delay_seconds for job in jobs]),
            "max_attempts": plain([job.max_attempts for job in jobs]),
            "backoffs": texts([backoff_text(job.backoff) for job in jobs]),
            "max_runtimes": plain([job.max_runtime_seconds for job in jobs]),
            "progress_timeouts": plain([job.progress_timeout_seconds for job in jobs]),
            "parent_job_ids": plain([job.parent and job.parent.job_id for job in jobs]),
            "parent_lease_versions": plain([job.parent and job.parent.lease_version for job in jobs]),
            "traceparents": texts([job.traceparent for job in jobs]),
            "tracestates": texts([job.tracestate for job in jobs]),
            "callers": texts([job.caller if job.idempotency_key else None for job in jobs]),
            "idempotency_keys": texts([job.idempotency_key for job in jobs]),
        },
    )
    return {
        row.position: InsertedJob(row.job_id, row.created_at, row.run_at, row.is_due, row.due_in_seconds)
        for row in rows
    }
