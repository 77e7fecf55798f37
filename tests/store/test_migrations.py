"""Migrations: once is as good as twice, and all at once as good as one after the other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import psycopg
import pytest

from app.store.schema import head, migrate

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
