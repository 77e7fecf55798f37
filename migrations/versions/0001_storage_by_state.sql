-- Where a job is, is its state:
--
--   jobs        what was asked for, as long as the job is unfinished; inserted and deleted
--   scheduled   waits for its time           ready     can be leased
--   leases      running; the only table that is updated on the hot path
--   finished    succeeded, dead, cancelled; by state, then by day of finish
--   attempts    ended attempts that were no success; by day of their end
--
-- Partitions of finished and attempts are made by the pruner (store/partitions.py), some days ahead.
-- There are no foreign keys: every verb moves a job in one statement, and `fencepost doctor` looks.

CREATE SCHEMA IF NOT EXISTS fencepost;

-- UUIDv7 (RFC 9562, method 3): milliseconds, then the fraction of a millisecond in rand_a, then random.
-- One microsecond is four steps of rand_a, so the order of ids is the order of created_at.
CREATE FUNCTION fencepost.first_job_id_at(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(
    encode(
        int8send(
            ((CAST(extract(epoch FROM at) * 1000000 AS bigint) / 1000) << 16)
            | 28672
            | ((CAST(extract(epoch FROM at) * 1000000 AS bigint) % 1000) * 4096 / 1000)
        ) || decode('8000000000000000', 'hex'),
        'hex'
    ) AS uuid
);

CREATE FUNCTION fencepost.new_job_id(at timestamptz) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN CAST(
    encode(
        substring(uuid_send(fencepost.first_job_id_at(at)) FROM 1 FOR 8)
        || substring(uuid_send(gen_random_uuid()) FROM 9 FOR 8),
        'hex'
    ) AS uuid
);

-- A null backoff is the contract's default policy, a null metadata the empty object: most jobs carry neither.
CREATE TABLE fencepost.jobs (
    job_id uuid NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL,
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
    fillfactor = 100,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX jobs_by_queue ON fencepost.jobs (queue, job_id);
CREATE INDEX jobs_by_kind ON fencepost.jobs (kind, job_id);
CREATE INDEX jobs_by_parent ON fencepost.jobs (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;

CREATE TABLE fencepost.ready (
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
-- The ORDER BY of LEASE_JOBS, column for column.
CREATE INDEX ready_in_order ON fencepost.ready (queue, priority, run_at, job_id);

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
CREATE INDEX scheduled_in_order ON fencepost.scheduled (run_at, job_id);

-- No index but the primary key, and half of every page left free: a heartbeat is a heap-only-tuple update.
CREATE TABLE fencepost.leases (
    job_id uuid NOT NULL PRIMARY KEY,
    lease_version bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    stalls_at timestamptz,
    deadline_at timestamptz,
    run_at timestamptz NOT NULL,
    lease_seconds double precision NOT NULL,
    progress_timeout_seconds double precision,
    progress_seq bigint,
    progress_percent double precision,
    attempt integer NOT NULL,
    priority smallint NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    is_touched boolean NOT NULL DEFAULT false,
    queue text NOT NULL,
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

CREATE TABLE fencepost.finished (
    job_id uuid NOT NULL,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    granted_at timestamptz,
    finished_at timestamptz NOT NULL,
    lease_version bigint NOT NULL,
    max_runtime_seconds double precision,
    progress_timeout_seconds double precision,
    parent_job_id uuid,
    parent_lease_version bigint,
    attempt integer NOT NULL,
    max_attempts integer NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL CONSTRAINT finished_state CHECK (state IN ('succeeded', 'dead', 'cancelled')),
    queue text NOT NULL,
    kind text NOT NULL,
    worker_id text,
    payload json,
    metadata json,
    backoff json,
    result json,
    error json,
    checkpoint json,
    previous json,
    traceparent text,
    tracestate text,
    caller text,
    idempotency_key text,
    fingerprint bytea
) PARTITION BY LIST (state);
CREATE INDEX finished_by_id ON fencepost.finished (job_id);
CREATE INDEX finished_by_queue ON fencepost.finished (queue, job_id);
CREATE INDEX finished_by_kind ON fencepost.finished (kind, job_id);
CREATE INDEX finished_by_parent ON fencepost.finished (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;
-- The pruner walks this to forget idempotency keys.
CREATE INDEX finished_with_key ON fencepost.finished (finished_at) WHERE idempotency_key IS NOT NULL;

CREATE TABLE fencepost.finished_succeeded PARTITION OF fencepost.finished
    FOR VALUES IN ('succeeded') PARTITION BY RANGE (finished_at);
CREATE TABLE fencepost.finished_dead PARTITION OF fencepost.finished
    FOR VALUES IN ('dead') PARTITION BY RANGE (finished_at);
CREATE TABLE fencepost.finished_cancelled PARTITION OF fencepost.finished
    FOR VALUES IN ('cancelled') PARTITION BY RANGE (finished_at);

-- fingerprint is null where no holder call ended the attempt (a clock, a forced cancel).
CREATE TABLE fencepost.attempts (
    job_id uuid NOT NULL,
    lease_version bigint NOT NULL,
    granted_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL CONSTRAINT attempts_outcome CHECK (
        outcome IN ('failed', 'lease_expired', 'stalled', 'deadline_exceeded', 'released', 'cancelled')
    ),
    worker_id text NOT NULL,
    error json,
    fingerprint bytea
) PARTITION BY RANGE (ended_at);
CREATE INDEX attempts_by_version ON fencepost.attempts (job_id, lease_version);

CREATE TABLE fencepost.idempotency_keys (
    caller text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (caller, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- What a lease call with a request_id was answered, so that it can be repeated.
CREATE TABLE fencepost.lease_requests (
    worker_id text NOT NULL,
    request_id text NOT NULL,
    fingerprint bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    job_ids uuid[] NOT NULL,
    lease_versions bigint[] NOT NULL,
    PRIMARY KEY (worker_id, request_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
