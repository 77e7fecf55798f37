-- Where a job is, is its state; what was asked for is written once:
--
--   jobs        every job until its retention is over; inserted, and deleted with its partition of finished
--   scheduled   waits for its time           ready     can be leased
--   leases      running; the only table that is updated on the hot path
--   finished    how a job ended: succeeded, dead, cancelled; by state, then by day of finish
--   attempts    ended attempts that were no success; by day of their end
--
-- What the version before wrote is kept: its tables are renamed, copied, and dropped in the end.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT c.relname, c.relkind
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'fencepost' AND c.relkind IN ('r', 'p', 'i', 'I')
          AND c.relname ~ '^(jobs|ready|scheduled|leases|finished)(_|$)'
    LOOP
        EXECUTE format('ALTER %s fencepost.%I RENAME TO %I',
                       CASE WHEN old.relkind IN ('i', 'I') THEN 'INDEX' ELSE 'TABLE' END,
                       old.relname, 'old_' || old.relname);
    END LOOP;
END $$;

-- A null backoff is the contract's default policy, a null metadata the empty object: most jobs carry neither.
-- run_at is when the job was last due; a retry with a delay and an edit write it, in the tenth of a page that
-- is left free for them.
CREATE TABLE fencepost.jobs (
    job_id uuid NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    max_runtime_seconds double precision,
    progress_timeout_seconds double precision,
    parent_job_id uuid,
    parent_lease_version bigint,
    max_attempts integer NOT NULL,
    priority smallint NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    payload json,
    metadata json,
    backoff json,
    traceparent text,
    tracestate text,
    caller text,
    idempotency_key text
) WITH (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

-- The primary key is the ORDER BY of LEASE_JOBS, column for column, and the only index: a row is found by id
-- through its job, which has the same queue, priority and run_at.
CREATE TABLE fencepost.ready (
    job_id uuid NOT NULL,
    run_at timestamptz NOT NULL,
    lease_version bigint NOT NULL,
    attempt integer NOT NULL,
    priority smallint NOT NULL,
    queue text NOT NULL,
    checkpoint json,
    error json,
    previous json,
    PRIMARY KEY (queue, priority, run_at, job_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE fencepost.scheduled (
    job_id uuid NOT NULL PRIMARY KEY,
    run_at timestamptz NOT NULL,
    lease_version bigint NOT NULL,
    attempt integer NOT NULL,
    priority smallint NOT NULL,
    queue text NOT NULL,
    checkpoint json,
    error json,
    previous json
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

-- No index but the primary key, and half of every page left free: a heartbeat is a heap-only-tuple update.
CREATE TABLE fencepost.leases (
    job_id uuid NOT NULL PRIMARY KEY,
    lease_version bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    stalls_at timestamptz,
    deadline_at timestamptz,
    lease_seconds double precision NOT NULL,
    progress_timeout_seconds double precision,
    progress_seq bigint,
    progress_percent double precision,
    attempt integer NOT NULL,
    has_key boolean NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    is_touched boolean NOT NULL DEFAULT false,
    worker_id text NOT NULL,
    progress_message text,
    cancel_reason text,
    checkpoint json,
    error json,
    previous json
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

-- queue, kind and parent are repeated for dead and cancelled jobs only: people look for those by them.
CREATE TABLE fencepost.finished (
    job_id uuid NOT NULL,
    granted_at timestamptz,
    finished_at timestamptz NOT NULL,
    lease_version bigint NOT NULL,
    attempt integer NOT NULL,
    has_key boolean NOT NULL,
    state text NOT NULL CONSTRAINT finished_state CHECK (state IN ('succeeded', 'dead', 'cancelled')),
    worker_id text,
    result json,
    error json,
    checkpoint json,
    previous json,
    fingerprint bytea,
    queue text,
    kind text,
    parent_job_id uuid
) PARTITION BY LIST (state);
CREATE INDEX finished_by_id ON fencepost.finished (job_id);
-- The pruner walks this to forget idempotency keys.
CREATE INDEX finished_with_key ON fencepost.finished (finished_at) WHERE has_key;

CREATE TABLE fencepost.finished_succeeded PARTITION OF fencepost.finished
    FOR VALUES IN ('succeeded') PARTITION BY RANGE (finished_at);
CREATE TABLE fencepost.finished_dead PARTITION OF fencepost.finished
    FOR VALUES IN ('dead') PARTITION BY RANGE (finished_at);
CREATE TABLE fencepost.finished_cancelled PARTITION OF fencepost.finished
    FOR VALUES IN ('cancelled') PARTITION BY RANGE (finished_at);
CREATE INDEX finished_dead_by_queue ON fencepost.finished_dead (queue, job_id);
CREATE INDEX finished_dead_by_kind ON fencepost.finished_dead (kind, job_id);
CREATE INDEX finished_dead_by_parent ON fencepost.finished_dead (parent_job_id, job_id)
    WHERE parent_job_id IS NOT NULL;
CREATE INDEX finished_cancelled_by_queue ON fencepost.finished_cancelled (queue, job_id);
CREATE INDEX finished_cancelled_by_kind ON fencepost.finished_cancelled (kind, job_id);
CREATE INDEX finished_cancelled_by_parent ON fencepost.finished_cancelled (parent_job_id, job_id)
    WHERE parent_job_id IS NOT NULL;

-- The same days as before, for what is copied into them.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT substr(c.relname, 5) AS name, substr(p.relname, 5) AS parent,
               pg_get_expr(c.relpartbound, c.oid) AS bounds
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        JOIN pg_class p ON p.oid = i.inhparent
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'fencepost' AND c.relkind = 'r' AND c.relname LIKE 'old\_finished\_%'
    LOOP
        EXECUTE format('CREATE TABLE fencepost.%I PARTITION OF fencepost.%I %s', old.name, old.parent, old.bounds);
    END LOOP;
END $$;

INSERT INTO fencepost.jobs (
    job_id, created_at, run_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
    parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff, traceparent,
    tracestate, caller, idempotency_key
)
SELECT j.job_id, j.created_at, p.run_at, j.max_runtime_seconds, j.progress_timeout_seconds, j.parent_job_id,
       j.parent_lease_version, j.max_attempts, p.priority, j.queue, j.kind, j.payload, j.metadata, j.backoff,
       j.traceparent, j.tracestate, j.caller, j.idempotency_key
FROM fencepost.old_jobs j
JOIN (
    SELECT job_id, run_at, priority FROM fencepost.old_ready
    UNION ALL SELECT job_id, run_at, priority FROM fencepost.old_scheduled
    UNION ALL SELECT job_id, run_at, priority FROM fencepost.old_leases
) p ON p.job_id = j.job_id
UNION ALL
SELECT job_id, created_at, run_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
       parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff, traceparent,
       tracestate, caller, idempotency_key
FROM fencepost.old_finished
ORDER BY 1;

CREATE INDEX jobs_by_queue ON fencepost.jobs (queue, job_id);
CREATE INDEX jobs_by_kind ON fencepost.jobs (kind, job_id);
CREATE INDEX jobs_by_parent ON fencepost.jobs (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;

INSERT INTO fencepost.ready (
    job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
)
SELECT job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
FROM fencepost.old_ready;

INSERT INTO fencepost.scheduled (
    job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
)
SELECT job_id, run_at, lease_version, attempt, priority, queue, checkpoint, error, previous
FROM fencepost.old_scheduled;
CREATE INDEX scheduled_in_order ON fencepost.scheduled (run_at, job_id);
CREATE INDEX scheduled_by_queue ON fencepost.scheduled (queue, job_id);

INSERT INTO fencepost.leases (
    job_id, lease_version, granted_at, expires_at, stalls_at, deadline_at, lease_seconds,
    progress_timeout_seconds, progress_seq, progress_percent, attempt, has_key, cancel_requested, is_touched,
    worker_id, progress_message, cancel_reason, checkpoint, error, previous
)
SELECT l.job_id, l.lease_version, l.granted_at, l.expires_at, l.stalls_at, l.deadline_at, l.lease_seconds,
       l.progress_timeout_seconds, l.progress_seq, l.progress_percent, l.attempt,
       j.idempotency_key IS NOT NULL, l.cancel_requested, l.is_touched, l.worker_id, l.progress_message,
       l.cancel_reason, l.checkpoint, l.error, l.previous
FROM fencepost.old_leases l JOIN fencepost.old_jobs j ON j.job_id = l.job_id;

INSERT INTO fencepost.finished (
    job_id, granted_at, finished_at, lease_version, attempt, has_key, state, worker_id, result, error,
    checkpoint, previous, fingerprint, queue, kind, parent_job_id
)
SELECT job_id, granted_at, finished_at, lease_version, attempt, idempotency_key IS NOT NULL, state, worker_id,
       result, error, checkpoint, previous, fingerprint,
       CASE WHEN state <> 'succeeded' THEN queue END, CASE WHEN state <> 'succeeded' THEN kind END,
       CASE WHEN state <> 'succeeded' THEN parent_job_id END
FROM fencepost.old_finished;

DROP TABLE fencepost.old_jobs, fencepost.old_ready, fencepost.old_scheduled, fencepost.old_leases,
    fencepost.old_finished;
