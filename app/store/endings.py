"""The one way an attempt ends other than in success: locked, decided by domain.machine, written.

    lock_leases  read what a decision needs, row locks held until commit
    end_leases   leases -> ready, scheduled or finished, as decided; one row of attempts each

Leases that somebody else has locked are passed over. The rows that come back are the answer.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from app.domain.job import Backoff, JobState, Token
from app.domain.machine import Decision, Ending
from app.store.arrays import byte_strings, plain, texts, token_arrays
from app.store.columns import backoff_of
from app.store.engine import Connection, Rows, sql

# The fence is a hashed subplan, as in leases.COMPLETE_LEASES: a join would compare each with each.
LOCK_LEASES = sql("""
SELECT l.job_id, l.lease_version, l.attempt, l.cancel_requested, l.expires_at, l.stalls_at, l.deadline_at,
       j.max_attempts, j.backoff, j.queue, now() AS now
FROM fencepost.leases l
CROSS JOIN LATERAL (SELECT * FROM fencepost.jobs j WHERE j.job_id = l.job_id LIMIT 1) j
WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
  AND ((l.job_id, l.lease_version) IN (
      SELECT * FROM unnest(CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[])) AS i
  )) IS TRUE
ORDER BY l.job_id
FOR UPDATE OF l SKIP LOCKED
""")

# The last error of a job is kept through releases. A cancel's reason is the error of a job that is
# cancelled by it, unless the attempt itself ended with one. Nobody writes the jobs row of a job that is
# leased, so it cannot move, and put_off goes by ctid: by job_id it would be looked up a second time.
END_LEASES = sql("""
WITH input AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:job_ids AS uuid[]), CAST(:lease_versions AS bigint[]), CAST(:states AS text[]),
        CAST(:attempts AS integer[]), CAST(:delays AS double precision[]), CAST(:outcomes AS text[]),
        CAST(:errors AS text[]), CAST(:fingerprints AS bytea[]), CAST(:version_steps AS integer[])
    ) AS i (job_id, lease_version, state, attempt_after, delay_seconds, outcome, ending_error, fingerprint,
            version_step)
), deleted AS MATERIALIZED (
    DELETE FROM fencepost.leases l
    WHERE l.job_id = ANY (CAST(:job_ids AS uuid[]))
      AND ((l.job_id, l.lease_version) IN (SELECT job_id, lease_version FROM input)) IS TRUE
    RETURNING l.*
), paired AS MATERIALIZED (
    SELECT d.*, i.state, i.attempt_after, i.outcome, i.fingerprint, i.version_step,
           CAST(i.ending_error AS json) AS ending_error,
           now() + make_interval(secs => i.delay_seconds) AS delayed_to, i.delay_seconds
    FROM deleted d FULL JOIN input i ON i.job_id = d.job_id
), ended AS (
    SELECT * FROM paired WHERE job_id IS NOT NULL
), after AS MATERIALIZED (
    SELECT e.job_id, e.lease_version + e.version_step AS next_version, e.attempt_after, j.priority, j.queue,
           j.kind, j.parent_job_id, e.checkpoint, e.state, e.granted_at, e.worker_id, e.has_key, e.delayed_to,
           e.delay_seconds, COALESCE(e.delayed_to, j.run_at) AS run_at,
           COALESCE(
               CASE WHEN e.outcome <> 'released' THEN e.ending_error END,
               CASE WHEN e.state = 'cancelled' AND e.cancel_reason IS NOT NULL
                    THEN json_build_object('type', 'cancelled', 'message', e.cancel_reason,
                                           'details', NULL) END,
               e.error
           ) AS error,
           json_build_object('attempt', e.attempt, 'outcome', e.outcome, 'error', e.ending_error) AS previous,
           j.row_at
    FROM ended e
    CROSS JOIN LATERAL (
        SELECT j.ctid AS row_at, j.* FROM fencepost.jobs j WHERE j.job_id = e.job_id LIMIT 1
    ) j
), recorded AS (
    INSERT INTO fencepost.attempts (
        job_id, lease_version, granted_at, ended_at, attempt, outcome, worker_id, error, fingerprint
    )
    SELECT job_id, lease_version, granted_at, now(), attempt, outcome, worker_id, ending_error, fingerprint
    FROM ended
), to_ready AS (
    INSERT INTO fencepost.ready (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, run_at, next_version, attempt_after, priority, queue, checkpoint, error, previous
    FROM after WHERE state = 'ready'
), to_scheduled AS (
    INSERT INTO fencepost.scheduled (
        job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
    )
    SELECT job_id, run_at, next_version, attempt_after, priority, queue, checkpoint, error, previous
    FROM after WHERE state = 'scheduled'
), put_off AS (
    UPDATE fencepost.jobs j
    SET run_at = a.run_at
    FROM after a
    WHERE j.ctid = a.row_at AND a.delayed_to IS NOT NULL AND a.state IN ('ready', 'scheduled')
), to_finished AS (
    INSERT INTO fencepost.finished (
        job_id, granted_at, finished_at, lease_version, attempt, has_key, state, worker_id, error,
        checkpoint, previous, queue, kind, parent_job_id
    )
    SELECT job_id, granted_at, now(), next_version, attempt_after, has_key, state, worker_id, error,
           checkpoint, previous, queue, kind, parent_job_id
    FROM after WHERE state IN ('dead', 'cancelled')
)
SELECT job_id, queue, state, delay_seconds FROM after
""")


class LockedLease(msgspec.Struct, frozen=True):
    """What domain.machine needs to know of a running job; ``now`` is the transaction's."""

    token: Token
    attempt: int
    max_attempts: int
    cancel_requested: bool
    backoff: Backoff
    queue: str
    now: datetime
    expires_at: datetime
    stalls_at: datetime | None
    deadline_at: datetime | None


class EndedLease(msgspec.Struct, frozen=True):
    """One decision to be written. ``version_step`` is 1 for a forced cancel, else 0."""

    token: Token
    ending: Ending
    decision: Decision
    fingerprint: bytes | None = None
    version_step: int = 0


class Moved(msgspec.Struct, frozen=True):
    """Where a job went; ``due_in_seconds`` is None unless it was scheduled."""

    job_id: str
    queue: str
    state: JobState
    due_in_seconds: float | None


async def lock_leases(conn: Connection, tokens: Sequence[Token]) -> dict[str, LockedLease]:
    """Lock the leases that are held until the transaction ends; return what is known of them by job_id.

    Never waits: a lease that somebody else has locked is missing, as one that is not held.
    """
    rows = await conn.execute(
        LOCK_LEASES,
        token_arrays(tokens),
    )
    return {lease.token.job_id: lease for lease in locked_leases(rows)}


def locked_leases(rows: Rows) -> list[LockedLease]:
    return [
        LockedLease(
            token=Token(row.job_id, row.lease_version),
            attempt=row.attempt,
            max_attempts=row.max_attempts,
            cancel_requested=row.cancel_requested,
            backoff=backoff_of(row.backoff),
            queue=row.queue,
            now=row.now,
            expires_at=row.expires_at,
            stalls_at=row.stalls_at,
            deadline_at=row.deadline_at,
        )
        for row in rows
    ]


async def end_leases(conn: Connection, ended: Sequence[EndedLease]) -> list[Moved]:
    """Write what was decided for leases that this transaction has locked; return what was written."""
    rows = await conn.execute(
        END_LEASES,
        {
            **token_arrays([item.token for item in ended]),
            "states": texts([item.decision.state for item in ended]),
            "attempts": plain([item.decision.attempt for item in ended]),
            "delays": plain([item.decision.delay_seconds for item in ended]),
            "outcomes": texts([item.ending.outcome for item in ended]),
            "errors": texts([item.ending.error for item in ended]),
            "fingerprints": byte_strings([item.fingerprint for item in ended]),
            "version_steps": plain([item.version_step for item in ended]),
        },
    )
    return [
        Moved(
            row.job_id,
            row.queue,
            JobState(row.state),
            row.delay_seconds if row.state == JobState.SCHEDULED else None,
        )
        for row in rows
    ]
