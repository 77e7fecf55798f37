"""Lease, heartbeat, complete.

    lease_jobs       ready  -> leases    the only place where lease_version grows by a grant
    heartbeat_leases leases -> leases    the only hot update
    complete_leases  leases -> finished  always wins under the held version

Every write to a lease has ``job_id AND lease_version`` in its WHERE, and the rows that come back are the
answer: what is missing was not held. Locks are taken in the order of job_id.

No statement waits for the lock on a lease: an application may hold one for as long as its transaction lasts.
A row whose xmax is 0 is locked by nobody; any other one is locked before it is written, and passed over where
that cannot be done at once. What was passed over is missing from the answer though it is held.

A plan that was made while a table was physically empty may walk the whole table once it is full, whatever
the planner is told about joins: hence ``= ANY`` over the ids that are joined anyway, and LIMIT 1.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from app.domain.calls import Completion, Heartbeat, RenewedLease
from app.domain.job import LeasedJob
from app.store.arrays import byte_strings, plain, texts
from app.store.columns import parent_of
from app.store.engine import Connection, sql

# Where a claim of the queue w.queue begins: at its head, if that is known and no job of a more urgent
# priority is there; else at the top.
_START = """
        SELECT COALESCE(h.priority, CAST(-32768 AS smallint)) AS from_priority,
               COALESCE(h.run_at, '-infinity') AS from_run_at,
               COALESCE(h.id, '00000000-0000-0000-0000-000000000000') AS from_id
        FROM (SELECT) one
        LEFT JOIN (SELECT w.head_priority, w.head_run_at, w.head_id) AS h (priority, run_at, id)
          ON NOT EXISTS (
             SELECT FROM fencepost.ready r WHERE r.queue = w.queue AND r.priority < h.priority
         )
        LIMIT 1
"""

# Each queue's rows are locked once, in claim order, and shared out by row number: a statement that
# locked a row for one poll would lock it again for the next, since its own locks do not stop it.
# The DELETE goes by ctid: the row is locked, so it cannot move, and no index is read twice.
# No statement here joins two CTEs by job_id: by nested loop that would be quadratic.
LEASE_JOBS = sql(f"""
WITH demand AS (
    SELECT * FROM unnest(
        CAST(:polls AS integer[]), CAST(:queues AS text[]), CAST(:firsts AS integer[]),
        CAST(:lasts AS integer[]), CAST(:worker_ids AS text[]), CAST(:lease_seconds AS double precision[]),
        CAST(:head_priorities AS smallint[]), CAST(:head_run_ats AS timestamptz[]),
        CAST(:head_ids AS uuid[])
    ) AS d (poll, queue, first, last, worker_id, lease_seconds, head_priority, head_run_at, head_id)
), wanted AS (
    SELECT w.queue, w.job_count, s.*
    FROM (
        SELECT queue, head_priority, head_run_at, head_id, max(last) AS job_count
        FROM demand GROUP BY queue, head_priority, head_run_at, head_id
    ) w
    CROSS JOIN LATERAL (
        {_START}
    ) s
), picked AS MATERIALIZED (
    SELECT r.*, row_number() OVER (PARTITION BY w.queue ORDER BY r.priority, r.run_at, r.job_id) AS place
    FROM wanted w
    CROSS JOIN LATERAL (
        SELECT r.ctid AS row_at, r.*
        FROM fencepost.ready r
        WHERE r.queue = w.queue
          AND (r.priority, r.run_at, r.job_id) >= (w.from_priority, w.from_run_at, w.from_id)
        ORDER BY r.priority, r.run_at, r.job_id
        LIMIT w.job_count
        FOR UPDATE SKIP LOCKED
    ) r
), taken AS (
    DELETE FROM fencepost.ready WHERE ctid = ANY (ARRAY(SELECT row_at FROM picked))
), grants AS MATERIALIZED (
    SELECT d.poll, p.job_id, p.lease_version + 1 AS lease_version, p.attempt + 1 AS attempt, p.queue,
           p.priority, p.run_at, p.checkpoint, p.error, p.previous, d.worker_id, d.lease_seconds,
           least(now() + make_interval(secs => d.lease_seconds),
                 now() + make_interval(secs => j.max_runtime_seconds)) AS expires_at,
           now() + make_interval(secs => j.progress_timeout_seconds) AS stalls_at,
           now() + make_interval(secs => j.max_runtime_seconds) AS deadline_at,
           j.progress_timeout_seconds, j.idempotency_key IS NOT NULL AS has_key, j.kind, j.payload,
           j.metadata, j.max_attempts, j.created_at,
           j.traceparent, j.tracestate, j.parent_job_id, j.parent_lease_version
    FROM picked p
    JOIN demand d ON d.queue = p.queue AND p.place BETWEEN d.first AND d.last
    CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = p.job_id LIMIT 1) j
), granted AS (
    INSERT INTO fencepost.leases (
        job_id, lease_version, granted_at, expires_at, stalls_at, deadline_at, lease_seconds,
        progress_timeout_seconds, attempt, has_key, worker_id, checkpoint, error, previous
    )
    SELECT job_id, lease_version, now(), expires_at, stalls_at, deadline_at, lease_seconds,
           progress_timeout_seconds, attempt, has_key, worker_id, checkpoint, error, previous
    FROM grants
)
SELECT poll, lease_version, job_id, queue, kind, payload, metadata, priority, attempt, max_attempts,
       expires_at, lease_seconds, deadline_at, checkpoint, previous, created_at, run_at, traceparent,
       tracestate, parent_job_id, parent_lease_version
FROM grants
ORDER BY poll, priority, run_at, job_id
""")  # noqa: S608 - the part is the constant above

# How a poll of several queues spreads over them: by priority, then due time, over all of them.
# Nothing is locked here, so a rival may take what was counted; LEASE_JOBS then takes the next rows.
SHARE_QUEUES = sql(f"""
SELECT poll, queue, CAST(count(*) AS integer) AS job_count
FROM (
    SELECT w.poll, w.queue, w.max_jobs,
           row_number() OVER (PARTITION BY w.poll ORDER BY head.priority, head.run_at, head.job_id) AS place
    FROM unnest(
        CAST(:polls AS integer[]), CAST(:queues AS text[]), CAST(:max_jobs AS integer[]),
        CAST(:head_priorities AS smallint[]), CAST(:head_run_ats AS timestamptz[]),
        CAST(:head_ids AS uuid[])
    ) AS w (poll, queue, max_jobs, head_priority, head_run_at, head_id)
    CROSS JOIN LATERAL (
        {_START}
    ) s
    CROSS JOIN LATERAL (
        SELECT r.priority, r.run_at, r.job_id
        FROM fencepost.ready r
        WHERE r.queue = w.queue
          AND (r.priority, r.run_at, r.job_id) >= (s.from_priority, s.from_run_at, s.from_id)
        ORDER BY r.priority, r.run_at, r.job_id
        LIMIT w.max_jobs
    ) head
) best
WHERE place <= max_jobs
GROUP BY poll, queue
""")  # noqa: S608 - as in LEASE_JOBS

# A lower seq than before leaves the whole progress as it is; only a higher one restarts the clock.
# Rows are written in the order of the input, which is sorted: the planner is told to join by nested loop
# (connections.SETTINGS), and locking all of them first would write one more log record a lease.
HEARTBEAT_LEASES = sql("""
WITH input AS (
    SELECT * FROM unnest(
        CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[]),
        CAST(:extend_seconds AS double precision[]), CAST(:seqs AS bigint[]),
        CAST(:percents AS double precision[]), CAST(:messages AS text[]),
        CAST(:with_checkpoints AS boolean[]), CAST(:checkpoints AS text[])
    ) AS i (job_id, lease_version, extend_seconds, seq, percent, message, with_checkpoint, checkpoint)
)
UPDATE fencepost.leases l
SET expires_at = least(now() + make_interval(secs => COALESCE(i.extend_seconds, l.lease_seconds)),
                       l.deadline_at),
    stalls_at = CASE WHEN i.seq > COALESCE(l.progress_seq, -1)
                     THEN now() + make_interval(secs => l.progress_timeout_seconds)
                     ELSE l.stalls_at END,
    progress_percent = CASE WHEN i.seq >= COALESCE(l.progress_seq, -1) THEN i.percent
                            ELSE l.progress_percent END,
    progress_message = CASE WHEN i.seq >= COALESCE(l.progress_seq, -1) THEN i.message
                            ELSE l.progress_message END,
    progress_seq = greatest(i.seq, l.progress_seq),
    checkpoint = CASE WHEN i.with_checkpoint THEN CAST(i.checkpoint AS json) ELSE l.checkpoint END,
    is_touched = true
FROM input i
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND l.job_id = i.job_id AND l.lease_version = i.lease_version
  AND (l.xmax = '0' OR EXISTS (
      SELECT FROM fencepost.leases free WHERE free.job_id = l.job_id FOR NO KEY UPDATE SKIP LOCKED
  ))
RETURNING l.job_id, l.expires_at, l.deadline_at, l.cancel_requested
""")

# What was asked for stays where it is: in jobs. The planner may not hash or merge (connections.SETTINGS), and
# a nested loop over a thousand items is a million comparisons: so the fence is a subplan, which is hashed
# where it cannot be turned into a join (IS TRUE), and results are paired by a full join, which must be.
COMPLETE_LEASES = sql("""
WITH input AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[]),
        CAST(:results AS text[]), CAST(:fingerprints AS bytea[])
    ) AS i (job_id, lease_version, result, fingerprint)
), ended AS MATERIALIZED (
    DELETE FROM fencepost.leases l
    WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
      AND ((l.job_id, l.lease_version) IN (SELECT job_id, lease_version FROM input)) IS TRUE
      AND (l.xmax = '0' OR EXISTS (
          SELECT FROM fencepost.leases free WHERE free.job_id = l.job_id FOR UPDATE SKIP LOCKED
      ))
    RETURNING l.*
), paired AS MATERIALIZED (
    SELECT e.*, i.result, i.fingerprint FROM ended e FULL JOIN input i ON i.job_id = e.job_id
)
INSERT INTO fencepost.finished (
    job_id, granted_at, finished_at, lease_version, attempt, has_key, state, worker_id, result, error,
    checkpoint, previous, fingerprint
)
SELECT job_id, granted_at, now(), lease_version, attempt, has_key, 'succeeded', worker_id,
       CAST(result AS json), error, checkpoint, previous, fingerprint
FROM paired
WHERE job_id IS NOT NULL
RETURNING job_id
""")


class Place(NamedTuple):
    """A place in the order of a queue."""

    priority: int
    run_at: datetime
    job_id: str


NO_HEADS: Mapping[str, Place] = MappingProxyType({})


class Demand(msgspec.Struct, frozen=True):
    """Rows ``first`` to ``last`` (from 1) of a queue's order go to the poll with this number."""

    poll: int
    queue: str
    first: int
    last: int
    worker_id: str
    lease_seconds: float


async def share_queues(
    conn: Connection, polls: Sequence[tuple[int, int, Sequence[str]]], *, heads: Mapping[str, Place]
) -> list[tuple[int, str, int]]:
    """Spread polls (number, max_jobs, queues) over their queues; return (number, queue, job count).

    ``heads`` as in ``lease_jobs``.
    """
    pairs = [(number, max_jobs, queue) for number, max_jobs, queues in polls for queue in queues]
    rows = await conn.execute(
        SHARE_QUEUES,
        {
            "polls": plain([number for number, _, _ in pairs]),
            "queues": texts([queue for _, _, queue in pairs]),
            "max_jobs": plain([max_jobs for _, max_jobs, _ in pairs]),
            **_head_arrays([queue for _, _, queue in pairs], heads),
        },
    )
    return [(row.poll, row.queue, row.job_count) for row in rows]


async def lease_jobs(
    conn: Connection, demands: Sequence[Demand], *, heads: Mapping[str, Place] = NO_HEADS
) -> list[tuple[int, LeasedJob]]:
    """Grant ready jobs; return (poll, leased job), each poll's in claim order.

    Never waits: rows that a rival holds are passed over. The ranges of one queue must not overlap.
    In queues with a head, jobs of its priority that come before it are passed over too.
    """
    rows = await conn.execute(
        LEASE_JOBS,
        {
            "polls": plain([demand.poll for demand in demands]),
            "queues": texts([demand.queue for demand in demands]),
            "firsts": plain([demand.first for demand in demands]),
            "lasts": plain([demand.last for demand in demands]),
            "worker_ids": texts([demand.worker_id for demand in demands]),
            "lease_seconds": plain([demand.lease_seconds for demand in demands]),
            **_head_arrays([demand.queue for demand in demands], heads),
        },
    )
    return [(row.poll, leased_job(row)) for row in rows]


def _head_arrays(queues: Sequence[str], heads: Mapping[str, Place]) -> dict[str, object]:
    places = [heads.get(queue) for queue in queues]
    return {
        "head_priorities": plain([place and place.priority for place in places]),
        "head_run_ats": plain([place and place.run_at for place in places]),
        "head_ids": plain([place and place.job_id for place in places]),
    }


def leased_job(row: Any) -> LeasedJob:
    return LeasedJob(
        lease_version=row.lease_version,
        id=row.job_id,
        queue=row.queue,
        kind=row.kind,
        payload=row.payload,
        metadata=row.metadata,
        priority=row.priority,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        lease_expires_at=row.expires_at,
        lease_seconds=row.lease_seconds,
        deadline_at=row.deadline_at,
        checkpoint=row.checkpoint,
        previous=row.previous,
        created_at=row.created_at,
        run_at=row.run_at,
        traceparent=row.traceparent,
        tracestate=row.tracestate,
        parent=parent_of(row.parent_job_id, row.parent_lease_version),
    )


async def heartbeat_leases(conn: Connection, beats: Sequence[Heartbeat]) -> dict[str, RenewedLease]:
    """Extend the leases that are held, by job_id; a job that is missing from the answer is not, or is locked.

    A job may stand only once. An expiry never passes the deadline.
    """
    beats = sorted(beats, key=lambda beat: beat.token.job_id)
    rows = await conn.execute(
        HEARTBEAT_LEASES,
        {
            "job_ids": plain([beat.token.job_id for beat in beats]),
            "lease_versions": plain([beat.token.lease_version for beat in beats]),
            "extend_seconds": plain([beat.extend_seconds for beat in beats]),
            "seqs": plain([beat.seq for beat in beats]),
            "percents": plain([beat.percent for beat in beats]),
            "messages": texts([beat.message for beat in beats]),
            "with_checkpoints": plain([beat.with_checkpoint for beat in beats]),
            "checkpoints": texts([beat.checkpoint for beat in beats]),
        },
    )
    return {row.job_id: RenewedLease(row.expires_at, row.deadline_at, row.cancel_requested) for row in rows}


async def complete_leases(conn: Connection, completions: Sequence[Completion]) -> set[str]:
    """Record success of the jobs whose callers still hold their leases; return their ids.

    A job may stand only once. lease_version is the fencing token that lease_jobs handed out; a job that
    is missing from the answer is not running under it, or is locked; nothing of it was changed.
    """
    completions = sorted(completions, key=lambda item: item.token.job_id)
    rows = await conn.execute(
        COMPLETE_LEASES,
        {
            "job_ids": plain([item.token.job_id for item in completions]),
            "lease_versions": plain([item.token.lease_version for item in completions]),
            "results": texts([item.result for item in completions]),
            "fingerprints": byte_strings([item.fingerprint for item in completions]),
        },
    )
    return {row.job_id for row in rows}
