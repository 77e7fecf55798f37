-- What an application may call in a transaction of its own, as docs/sql.md describes it:
--
--   enqueue      jobs, ready or scheduled: as POST /v1/jobs
--   hold_lease   keeps a lease held until the caller's commit
--   complete     leases -> finished: as POST /v1/jobs/{job_id}/complete
--
-- They run with the rights of the schema's owner, so every name in them is qualified and nobody may call them
-- but roles that were granted to (fencepost grant). The other functions here are parts of these three.
--
-- Raised: FP001 lease_lost, FP002 idempotency_key_reused, and 22023 for a parameter that cannot be.
-- clock_timestamp(), not now(): the transaction may have begun long before, and a job must not be due before
-- it was there, nor a lease end before it was granted.

-- The value, which must be opaque JSON as the protocol has it: no U+0000, no lone surrogate, no number beyond
-- numeric, at most 100 levels. A container at level 100 has a hundred around it. Whatever reads the tree may run
-- out of stack as well, at a depth of thousands.
CREATE FUNCTION fencepost.checked_json(parameter text, value json, max_bytes integer) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tree jsonb;
BEGIN
    IF octet_length(CAST(value AS text)) > max_bytes THEN
        RAISE EXCEPTION '%: is over the limit of % bytes', parameter, max_bytes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    BEGIN
        tree := CAST(value AS jsonb);
        IF jsonb_path_exists(
            tree, 'strict $.**{100 to last} ? (@.type() == "array" || @.type() == "object")'
        ) THEN
            RAISE EXCEPTION '%: nested over 100 levels', parameter USING ERRCODE = 'invalid_parameter_value';
        END IF;
    EXCEPTION
        WHEN untranslatable_character OR invalid_text_representation OR numeric_value_out_of_range
             OR program_limit_exceeded OR statement_too_complex THEN
            RAISE EXCEPTION '%: holds U+0000, a lone surrogate, or a number or nesting beyond all bounds', parameter
                USING ERRCODE = 'invalid_parameter_value';
    END;
    RETURN tree;
END
$$;

-- The value by its tokens, for comparing requests as over HTTP, where 1, 1.0 and "1" are three values: a string
-- has # behind it, and a number has become a string with # before it. The rest is what jsonb does: the order of
-- members and white space do not count, of a doubled name the last one does. jsonb itself would not only take
-- 100 and 1e2 for one, it would write 1e100000 with all its zeros.
CREATE FUNCTION fencepost.by_tokens(value json) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- Quoted in this way whatever the caller has made of standard_conforming_strings.
    SELECT CAST(
        regexp_replace(
            CAST(value AS text), $re$"((?:[^"\\]|\\.)*)"|(-?[0-9][-+.0-9Ee]*)$re$, $re$"\1#\2"$re$, 'g'
        ) AS jsonb
    )
$$;

-- The metadata as they are stored and measured, which is as HTTP does: compact, null for the empty object.
CREATE FUNCTION fencepost.checked_metadata(metadata json) RETURNS json
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored text;
BEGIN
    -- Much longer than what is kept of it: escapes and white space go.
    PERFORM fencepost.checked_json('metadata', metadata, 131072);
    IF json_typeof(metadata) <> 'object' THEN
        RAISE EXCEPTION 'metadata: must be an object of strings' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM json_each(metadata) AS m WHERE json_typeof(m.value) <> 'string') THEN
        RAISE EXCEPTION 'metadata: must be an object of strings' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (SELECT count(*) <> count(DISTINCT m.key) FROM json_each(metadata) AS m) THEN
        RAISE EXCEPTION 'metadata: a name stands twice' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT '{' || string_agg(CAST(to_json(m.key) AS text) || ':' || CAST(to_json(m.value) AS text), ',') || '}'
    INTO stored
    FROM json_each_text(metadata) AS m;
    IF octet_length(stored) > 16384 THEN
        RAISE EXCEPTION 'metadata: is over the limit of 16384 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN stored;
END
$$;

-- The policy as it is stored: every member, null for the default policy. Durations have microseconds, the other
-- numbers what a double precision holds.
CREATE FUNCTION fencepost.checked_backoff(backoff json) RETURNS json
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Their ranges are those of the protocol.
    default_policy constant jsonb := '{
        "type": "exponential", "base_seconds": 5, "factor": 2, "max_seconds": 3600, "jitter": 0.1
    }';
    policy jsonb;
    refusal text;
BEGIN
    policy := fencepost.checked_json('backoff', backoff, 1024);
    IF jsonb_typeof(policy) <> 'object' THEN
        refusal := 'must be an object';
    ELSIF (SELECT count(*) <> count(DISTINCT m.key) FROM json_each(backoff) AS m) THEN
        refusal := 'a name stands twice';
    ELSIF EXISTS (SELECT FROM jsonb_object_keys(policy) AS m (name) WHERE NOT default_policy ? m.name) THEN
        refusal := 'has members type, base_seconds, factor, max_seconds and jitter only';
    ELSE
        policy := default_policy || policy;
        refusal := CASE
            WHEN (policy ->> 'type' IN ('exponential', 'linear', 'fixed')) IS NOT TRUE
                 OR jsonb_typeof(policy -> 'type') <> 'string'
                THEN 'type must be exponential, linear or fixed'
            WHEN NOT jsonb_path_exists(policy, 'strict $.base_seconds ? (@ >= 0 && @ <= 86400)')
                THEN 'base_seconds must be from 0 to 86400'
            WHEN NOT jsonb_path_exists(policy, 'strict $.factor ? (@ >= 1 && @ <= 10)')
                THEN 'factor must be from 1 to 10'
            WHEN NOT jsonb_path_exists(policy, 'strict $.max_seconds ? (@ >= 0 && @ <= 604800)')
                THEN 'max_seconds must be from 0 to 604800'
            WHEN NOT jsonb_path_exists(policy, 'strict $.jitter ? (@ >= 0 && @ <= 1)')
                THEN 'jitter must be from 0 to 1'
        END;
    END IF;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'backoff: %', refusal USING ERRCODE = 'invalid_parameter_value';
    END IF;
    policy := jsonb_build_object(
        'type', policy -> 'type',
        'base_seconds', trim_scale(round(CAST(policy ->> 'base_seconds' AS numeric), 6)),
        'factor', trim_scale(round(CAST(policy ->> 'factor' AS numeric), 17)),
        'max_seconds', trim_scale(round(CAST(policy ->> 'max_seconds' AS numeric), 6)),
        'jitter', trim_scale(round(CAST(policy ->> 'jitter' AS numeric), 17))
    );
    RETURN CASE WHEN policy <> default_policy THEN CAST(policy AS json) END;
END
$$;

-- Raises FP001, with what is known of the job and of how the presented version ended: what
-- app.operations.refusals tells of it over HTTP. One statement, so one state of the database. A null is no token
-- that was lost, but a fault of the caller's.
CREATE FUNCTION fencepost.refuse_lease(job_id uuid, lease_version bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    known record;
BEGIN
    IF job_id IS NULL OR lease_version IS NULL THEN
        RAISE EXCEPTION '%: must not be null', CASE WHEN job_id IS NULL THEN 'job_id' ELSE 'lease_version' END
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT COALESCE(f.state, CASE WHEN l.job_id IS NOT NULL THEN 'running'
                                  WHEN s.job_id IS NOT NULL THEN 'scheduled'
                                  WHEN r.job_id IS NOT NULL THEN 'ready' END) AS job_state,
           COALESCE(f.lease_version, l.lease_version, s.lease_version, r.lease_version) AS current_version,
           COALESCE(
               CASE WHEN f.state = 'succeeded' AND f.lease_version = refuse_lease.lease_version
                    THEN 'finished' END,
               (SELECT CASE a.outcome WHEN 'lease_expired' THEN 'expired' ELSE a.outcome END
                FROM fencepost.attempts a
                WHERE a.job_id = refuse_lease.job_id AND a.lease_version = refuse_lease.lease_version
                LIMIT 1),
               'unknown'
           ) AS reason
    INTO known
    FROM (SELECT) one
    LEFT JOIN fencepost.jobs j ON j.job_id = refuse_lease.job_id
    LEFT JOIN fencepost.ready r
      ON r.queue = j.queue AND r.priority = j.priority AND r.run_at = j.run_at AND r.job_id = j.job_id
    LEFT JOIN fencepost.leases l ON l.job_id = refuse_lease.job_id
    LEFT JOIN fencepost.scheduled s ON s.job_id = refuse_lease.job_id
    LEFT JOIN fencepost.finished f ON f.job_id = refuse_lease.job_id
    LIMIT 1;
    RAISE EXCEPTION 'lease_lost: the job is not running under lease_version %', lease_version USING
        ERRCODE = 'FP001',
        DETAIL = json_build_object(
            'job_id', refuse_lease.job_id,
            'presented_version', refuse_lease.lease_version,
            'current_version', known.current_version,
            'job_state', known.job_state,
            'reason', known.reason
        ),
        HINT = 'Roll back and stop: somebody else may have the job.';
END
$$;

-- KEY SHARE lets heartbeats pass, and nothing that ends the lease. A transaction that keeps its snapshot could
-- not complete a row that a heartbeat has written since: there the lock keeps heartbeats off as well.
CREATE FUNCTION fencepost.hold_lease(
    job_id uuid,
    lease_version bigint,
    OUT lease_expires_at timestamptz,
    OUT deadline_at timestamptz,
    OUT cancel_requested boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        SELECT l.expires_at, l.deadline_at, l.cancel_requested
        INTO hold_lease.lease_expires_at, hold_lease.deadline_at, hold_lease.cancel_requested
        FROM fencepost.leases l
        WHERE l.job_id = hold_lease.job_id AND l.lease_version = hold_lease.lease_version
        FOR NO KEY UPDATE;
    ELSE
        SELECT l.expires_at, l.deadline_at, l.cancel_requested
        INTO hold_lease.lease_expires_at, hold_lease.deadline_at, hold_lease.cancel_requested
        FROM fencepost.leases l
        WHERE l.job_id = hold_lease.job_id AND l.lease_version = hold_lease.lease_version
        FOR KEY SHARE;
    END IF;
    IF NOT FOUND THEN
        PERFORM fencepost.refuse_lease(hold_lease.job_id, hold_lease.lease_version);
    END IF;
END
$$;

-- What app.store.leases.COMPLETE_LEASES writes, without a fingerprint: what a repeat over HTTP is compared with
-- is made of the result when it is asked for (app.store.reads.READ_RECORDS).
CREATE FUNCTION fencepost.complete(job_id uuid, lease_version bigint, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM fencepost.checked_json('result', complete.result, 262144);
    WITH ended AS (
        DELETE FROM fencepost.leases l
        WHERE l.job_id = complete.job_id AND l.lease_version = complete.lease_version
        RETURNING l.*
    )
    INSERT INTO fencepost.finished (
        job_id, granted_at, finished_at, lease_version, attempt, has_key, state, worker_id, result, error,
        checkpoint, previous
    )
    SELECT e.job_id, e.granted_at, clock_timestamp(), e.lease_version, e.attempt, e.has_key, 'succeeded',
           e.worker_id, CASE WHEN json_typeof(complete.result) <> 'null' THEN complete.result END, e.error,
           e.checkpoint, e.previous
    FROM ended e;
    IF NOT FOUND THEN
        PERFORM fencepost.refuse_lease(complete.job_id, complete.lease_version);
    END IF;
END
$$;

-- Keys belong to the role that logged in, as 'sql:' and its name: no API key has a colon in its name. A key is
-- kept for as long as its row is there: the pruner deletes it when the service's settings say so.
CREATE FUNCTION fencepost.enqueue(
    kind text,
    payload json DEFAULT NULL,
    queue text DEFAULT 'default',
    idempotency_key text DEFAULT NULL,
    priority integer DEFAULT 0,
    run_at timestamptz DEFAULT NULL,
    delay_seconds double precision DEFAULT NULL,
    max_attempts integer DEFAULT 10,
    backoff json DEFAULT NULL,
    max_runtime_seconds double precision DEFAULT NULL,
    progress_timeout_seconds double precision DEFAULT NULL,
    metadata json DEFAULT NULL,
    parent_job_id uuid DEFAULT NULL,
    parent_lease_version bigint DEFAULT NULL,
    OUT job_id uuid,
    OUT created boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    name_rule constant text := '1 to 128 characters of A-Z a-z 0-9 _ . : -, the first a letter or digit';
    own_caller constant text := 'sql:' || session_user;
    refusal text;
    tree jsonb;
    stored_metadata json;
    stored_backoff json;
    meaning bytea;
    taken record;
    entered_at timestamptz;
    due_at timestamptz;
BEGIN
    refusal := CASE
        WHEN (kind COLLATE "C" ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$') IS NOT TRUE THEN 'kind: ' || name_rule
        WHEN (queue COLLATE "C" ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$') IS NOT TRUE THEN 'queue: ' || name_rule
        WHEN idempotency_key IS NOT NULL
             AND NOT (idempotency_key COLLATE "C" ~ '^ *[!-~][ -~]*$' AND length(idempotency_key) <= 255)
            THEN 'idempotency_key: 1 to 255 printable ASCII characters, not all blank'
        WHEN (priority BETWEEN -32768 AND 32767) IS NOT TRUE THEN 'priority: must be from -32768 to 32767'
        WHEN run_at IS NOT NULL AND delay_seconds IS NOT NULL
            THEN 'delay_seconds: give run_at or delay_seconds, not both'
        WHEN run_at < '1970-01-01 00:00+00' OR run_at >= '10000-01-01 00:00+00'
            THEN 'run_at: must be in the years 1970 to 9999, in UTC'
        WHEN NOT delay_seconds BETWEEN 0 AND 31536000 THEN 'delay_seconds: must be from 0 to 31536000'
        WHEN (max_attempts BETWEEN 1 AND 1000) IS NOT TRUE THEN 'max_attempts: must be from 1 to 1000'
        WHEN NOT max_runtime_seconds BETWEEN 1 AND 604800 THEN 'max_runtime_seconds: must be from 1 to 604800'
        WHEN NOT progress_timeout_seconds BETWEEN 1 AND 604800
            THEN 'progress_timeout_seconds: must be from 1 to 604800'
        WHEN (parent_job_id IS NULL) <> (parent_lease_version IS NULL)
            THEN 'parent_lease_version: give both parent_job_id and parent_lease_version, or neither'
        WHEN NOT parent_lease_version BETWEEN 0 AND 9007199254740991
            THEN 'parent_lease_version: must be from 0 to 9007199254740991'
    END;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION '%', refusal USING ERRCODE = 'invalid_parameter_value';
    END IF;
    tree := fencepost.checked_json('payload', payload, 262144);
    IF metadata IS NOT NULL THEN
        stored_metadata := fencepost.checked_metadata(metadata);
    END IF;
    IF backoff IS NOT NULL THEN
        stored_backoff := fencepost.checked_backoff(backoff);
    END IF;

    IF idempotency_key IS NOT NULL THEN
        -- As over HTTP the meaning counts, and durations by their microseconds. Numeric, since how a double
        -- precision is written is a setting of the caller's.
        meaning := substring(sha256(convert_to(CAST(jsonb_build_array(
            kind, queue, priority, CAST(extract(epoch FROM run_at) AS text),
            round(CAST(delay_seconds AS numeric), 6), max_attempts, stored_backoff,
            round(CAST(max_runtime_seconds AS numeric), 6), round(CAST(progress_timeout_seconds AS numeric), 6),
            stored_metadata, parent_job_id, COALESCE(fencepost.by_tokens(payload), 'null')
        ) AS text), 'UTF8')) FROM 1 FOR 8);
    END IF;
    <<keys>>
    LOOP
        IF idempotency_key IS NOT NULL THEN
            SELECT k.job_id, k.fingerprint, EXISTS (SELECT FROM fencepost.jobs j WHERE j.job_id = k.job_id) AS is_kept
            INTO taken
            FROM fencepost.idempotency_keys k
            WHERE k.caller = own_caller AND k.key = enqueue.idempotency_key;
            IF FOUND AND NOT taken.is_kept THEN
                DELETE FROM fencepost.idempotency_keys k
                WHERE k.caller = own_caller AND k.key = enqueue.idempotency_key AND k.job_id = taken.job_id;
            ELSIF FOUND AND taken.fingerprint <> meaning THEN
                RAISE EXCEPTION 'idempotency_key_reused: this idempotency key belongs to another request' USING
                    ERRCODE = 'FP002',
                    DETAIL = json_build_object('job_id', taken.job_id);
            ELSIF FOUND THEN
                enqueue.job_id := taken.job_id;
                enqueue.created := false;
                RETURN;
            END IF;
        END IF;
        -- A known key is answered before the parent's lease counts.
        IF parent_job_id IS NOT NULL THEN
            PERFORM fencepost.hold_lease(parent_job_id, parent_lease_version);
        END IF;
        entered_at := clock_timestamp();
        enqueue.job_id := fencepost.new_job_id(entered_at);
        EXIT keys WHEN idempotency_key IS NULL;
        -- Waits for a twin whose transaction is open. Where that has committed its key is found by the next
        -- round: within this statement it is not visible.
        INSERT INTO fencepost.idempotency_keys (caller, key, fingerprint, job_id)
        VALUES (own_caller, enqueue.idempotency_key, meaning, enqueue.job_id)
        ON CONFLICT DO NOTHING;
        EXIT keys WHEN FOUND;
    END LOOP;

    due_at := COALESCE(enqueue.run_at, entered_at + make_interval(secs => COALESCE(delay_seconds, 0)));
    INSERT INTO fencepost.jobs (
        job_id, created_at, run_at, max_runtime_seconds, progress_timeout_seconds, parent_job_id,
        parent_lease_version, max_attempts, priority, queue, kind, payload, metadata, backoff, caller,
        idempotency_key
    )
    VALUES (
        enqueue.job_id, entered_at, due_at, enqueue.max_runtime_seconds, enqueue.progress_timeout_seconds,
        enqueue.parent_job_id, enqueue.parent_lease_version, enqueue.max_attempts, enqueue.priority,
        enqueue.queue, enqueue.kind, CASE WHEN tree <> 'null' THEN enqueue.payload END, stored_metadata,
        stored_backoff, CASE WHEN enqueue.idempotency_key IS NOT NULL THEN own_caller END,
        enqueue.idempotency_key
    );
    IF due_at <= entered_at THEN
        INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
        VALUES (enqueue.job_id, due_at, 0, 0, enqueue.priority, enqueue.queue);
        -- In the words of app.operations.wakeups, from a sender that no process is. Told once a transaction,
        -- however many jobs it has for the queue.
        PERFORM pg_notify('fencepost', 'sql !' || queue);
    ELSE
        -- Promoters look once a second whatever they were told.
        INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
        VALUES (enqueue.job_id, due_at, 0, 0, enqueue.priority, enqueue.queue);
    END IF;
    enqueue.created := true;
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost FROM PUBLIC;
