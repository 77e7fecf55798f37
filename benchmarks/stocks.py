"""Tables filled by SQL in seconds, as if their jobs had come in over the last hour.

READY      due jobs, spread over queues q0, q1, ... and over priorities
SCHEDULED  jobs that are due from tomorrow on
FINISHED   succeeded jobs that are kept
"""

from dataclasses import dataclass

import psycopg

PAYLOAD = '{"text": "' + "x" * 186 + '"}'

_JOBS = """
WITH new AS (
    INSERT INTO fencepost.jobs (job_id, created_at, run_at, max_attempts, priority, queue, kind, payload)
    SELECT fencepost.new_job_id(at), at, at + make_interval(secs => %(delay_seconds)s), 10,
           n %% %(priority_count)s, 'q' || n %% %(queue_count)s, 'growth', CAST(%(payload)s AS json)
    FROM (
        SELECT n, now() - interval '1 hour' + n * (interval '1 hour' / %(job_count)s) AS at
        FROM generate_series(0, %(job_count)s - 1) AS n
    ) AS numbered
    RETURNING job_id, run_at, priority, queue
)
"""

READY = f"""{_JOBS}
INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, run_at, 0, 0, priority, queue FROM new
"""  # noqa: S608 - the part is the constant above

SCHEDULED = f"""{_JOBS}
INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, run_at, 0, 0, priority, queue FROM new
"""  # noqa: S608 - as in READY

FINISHED = f"""{_JOBS}
INSERT INTO fencepost.finished (job_id, granted_at, finished_at, lease_version, attempt, has_key, state,
                                worker_id, fingerprint)
SELECT job_id, now(), now(), 1, 1, false, 'succeeded', 'worker', decode(md5(CAST(job_id AS text)), 'hex')
FROM new
"""  # noqa: S608 - as in READY

_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Stock:
    """So many jobs in one state; the table is vacuumed and analyzed, as autovacuum leaves it."""

    statement: str
    job_count: int
    queue_count: int = 1
    priority_count: int = 1

    def fill(self, connection: psycopg.Connection) -> None:
        """Write them, and a checkpoint, so that its page images are not the first call's."""
        connection.execute(
            self.statement.encode(),
            {
                "delay_seconds": _DAY_SECONDS if self.statement is SCHEDULED else 0,
                "priority_count": self.priority_count,
                "queue_count": self.queue_count,
                "payload": PAYLOAD,
                "job_count": self.job_count,
            },
        )
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
