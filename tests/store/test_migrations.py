"""Migrations: once is as good as twice, and all at once as good as one after the other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import psycopg
import pytest

from app.domain.calls import JobFilter
from app.domain.retention import Retention
from app.operations.context import Context
from app.store.engine import Database
from app.store.listings import list_job_ids
from app.store.reads import read_jobs
from app.store.schema import head, migrate
from tests.support.factory import assert_healthy
from tests.support.signals import RecordedSignals

HOT_TABLES = ("ready", "scheduled", "leases")


def shape(url: str) -> list[tuple[object, ...]]:
    """Return every column and index of the schema."""
    with psycopg.connect(url) as connection:
        columns = connection.execute("""
            SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
            WHERE table_schema = 'fencepost' ORDER BY 1, 2
        """).fetchall()
        indexes = connection.execute("""
            SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'fencepost' ORDER BY 1, 2
        """).fetchall()
        return columns + indexes


def versions(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT version_num FROM fencepost.schema_version").fetchall()


def test_migrating_twice_changes_nothing(new_database: Callable[..., str]) -> None:
    url = new_database()
    migrate(url)
    first = shape(url)
    assert first
    migrate(url)
    assert shape(url) == first
    assert versions(url) == [(head(),)]


def test_four_replicas_may_migrate_an_empty_database_at_once(new_database: Callable[..., str]) -> None:
    url = new_database()
    # Processes, as replicas are: Alembic keeps its state in its module.
    with get_context("spawn").Pool(4) as pool:
        pool.map(migrate, [url] * 4, chunksize=1)
    assert versions(url) == [(head(),)]
    alone = new_database()
    migrate(alone)
    assert shape(url) == shape(alone)


def test_a_replica_waits_for_the_one_that_migrates(new_database: Callable[..., str]) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as executor:
        other.execute("SELECT pg_advisory_lock(5072190457)")
        migrating = executor.submit(migrate, url)
        while not other.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        ).fetchone():
            assert not migrating.done()
        assert other.execute("SELECT to_regclass('fencepost.jobs')").fetchone() == (None,)
        other.execute("SELECT pg_advisory_unlock(5072190457)")
        migrating.result(timeout=30)
    assert versions(url) == [(head(),)]


@pytest.mark.parametrize("table", HOT_TABLES)
def test_hot_tables_are_vacuumed_by_absolute_thresholds(database_url: str, table: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT reloptions FROM pg_class WHERE oid = CAST(%s AS regclass)", [f"fencepost.{table}"]
        ).fetchone()
    assert row is not None
    options = dict(option.split("=") for option in row[0])
    assert options["autovacuum_vacuum_scale_factor"] == "0"
    assert 0 < int(options["autovacuum_vacuum_threshold"]) <= 5000
    assert options["autovacuum_vacuum_insert_scale_factor"] == "0"
    assert options["autovacuum_analyze_scale_factor"] == "0"


def test_half_of_every_page_of_leases_is_left_free_for_heartbeats(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT reloptions FROM pg_class WHERE oid = CAST('fencepost.leases' AS regclass)"
        ).fetchone()
    assert row is not None
    assert "fillfactor=50" in row[0]


FIRST_LAYOUT_JOBS = """
INSERT INTO fencepost.jobs (job_id, created_at, max_attempts, priority, queue, kind, payload, caller,
                            idempotency_key)
SELECT fencepost.new_job_id(now() + n * interval '1 ms'), now(), 3, 7, 'mail', 'kind' || n, '{"n":  1}',
       'anonymous', 'key' || n
FROM generate_series(1, 3) AS n;

INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, created_at, 2, 1, priority, queue FROM fencepost.jobs WHERE kind = 'kind1';
INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, now() + interval '1 hour', 0, 0, priority, queue FROM fencepost.jobs WHERE kind = 'kind2';
INSERT INTO fencepost.leases (job_id, lease_version, granted_at, expires_at, run_at, lease_seconds, attempt,
                              priority, queue, worker_id)
SELECT job_id, 1, now(), now() + interval '1 hour', created_at, 60, 1, priority, queue, 'w'
FROM fencepost.jobs WHERE kind = 'kind3';

CREATE TABLE fencepost.finished_succeeded_20200101 PARTITION OF fencepost.finished_succeeded
    FOR VALUES FROM ('2000-01-01') TO ('2100-01-01');
CREATE TABLE fencepost.finished_dead_20200101 PARTITION OF fencepost.finished_dead
    FOR VALUES FROM ('2000-01-01') TO ('2100-01-01');
INSERT INTO fencepost.finished (job_id, created_at, run_at, finished_at, lease_version, attempt, max_attempts,
                                priority, state, queue, kind, payload, result, error, fingerprint)
SELECT fencepost.new_job_id(now() + interval '1 s'), now(), now(), now(), 4, 2, 3, 7, state, 'mail', state,
       '{"n":  1}', '[]', '{}', '\\x01'
FROM unnest(ARRAY['succeeded', 'dead']) AS state;
"""


async def test_jobs_of_the_first_layout_are_all_there_in_the_next_one(
    new_database: Callable[..., str],
) -> None:
    url = new_database()
    migrate(url, revision="0001")
    with psycopg.connect(url) as connection:
        connection.execute(FIRST_LAYOUT_JOBS.encode())
    migrate(url)
    database = Database(url, pool_size=1)
    context = Context(database, Retention(), RecordedSignals())
    await assert_healthy(context)
    async with database.snapshot() as conn:
        ids = await list_job_ids(conn, JobFilter(), retention=Retention(), max_rows=9, before_id=None)
        jobs = {job.kind: job for job in (await read_jobs(conn, ids, retention=Retention())).values()}
    await database.close()
    assert {kind: job.state.value for kind, job in jobs.items()} == {
        "kind1": "ready",
        "kind2": "scheduled",
        "kind3": "running",
        "succeeded": "succeeded",
        "dead": "dead",
    }
    assert {(job.payload, job.queue, job.priority) for job in jobs.values()} == {('{"n":  1}', "mail", 7)}
    assert {job.idempotency_key for job in jobs.values()} == {"key1", "key2", "key3", None}
    assert (jobs["kind1"].lease_version, jobs["kind1"].attempt) == (2, 1)
    assert (jobs["succeeded"].lease_version, jobs["succeeded"].result) == (4, "[]")
    assert shape_of_hot_tables(url) == shape_of_hot_tables(migrated(new_database()))


def migrated(url: str) -> str:
    migrate(url)
    return url


def shape_of_hot_tables(url: str) -> list[tuple[object, ...]]:
    return [row for row in shape(url) if row[0] in (*HOT_TABLES, "jobs", "finished")]
