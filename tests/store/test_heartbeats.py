"""A heartbeat must not bloat: every one is a heap-only-tuple update."""

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import text

from app.domain.calls import Heartbeat
from app.domain.job import JobSpec
from app.domain.retention import Retention
from app.main import migrate
from app.operations.context import Context
from app.operations.heartbeat import heartbeat_leases
from app.store.engine import Database
from tests.conftest import server_in_memory
from tests.support.factory import lease, submit, token_of
from tests.support.signals import RecordedSignals

LEASES = 500
BEATS = 5


@pytest.fixture
def lonely_database_url() -> Iterator[str]:
    """An empty, migrated database on a server of its own.

    While any database of a server has a transaction that writes, no new horizon is taken for pruning pages
    (GlobalVisTestShouldUpdate in PostgreSQL's procarray.c), so other tests would fill this one's pages.
    """
    with server_in_memory() as url:
        migrate(url)
        yield url


async def test_heartbeats_are_heap_only_updates(lonely_database_url: str) -> None:
    # One connection, since each session keeps its own counts until they are flushed.
    database = Database(lonely_database_url, pool_size=1)
    context = Context(database, Retention(), RecordedSignals())
    await submit(context, *[JobSpec(kind="test", progress_timeout_seconds=60.0)] * LEASES)
    granted = await lease(context, max_jobs=LEASES)
    tokens = [token_of(job) for job in granted]
    for beat in range(BEATS):
        await heartbeat_leases(
            context, [Heartbeat(token, seq=beat, percent=1.0 * beat, message="going on") for token in tokens]
        )
    await assert_heap_only(database, LEASES * BEATS)
    await database.close()


async def test_a_heartbeat_of_a_lease_that_is_held_in_sql_is_one_too(lonely_database_url: str) -> None:
    database = Database(lonely_database_url, pool_size=1)
    context = Context(database, Retention(), RecordedSignals())
    await submit(context, *[JobSpec(kind="test")] * LEASES)
    tokens = [token_of(job) for job in await lease(context, max_jobs=LEASES)]
    async with await psycopg.AsyncConnection.connect(lonely_database_url) as application:
        for token in tokens:
            await application.execute(
                "SELECT fencepost.hold_lease(%s, %s)", [token.job_id, token.lease_version]
            )
        # One: as under any open transaction what is dead stays, and fills the free half of a page.
        await heartbeat_leases(context, [Heartbeat(token) for token in tokens])
    await assert_heap_only(database, LEASES)
    await database.close()


async def assert_heap_only(database: Database, update_count: int) -> None:
    async with database.one_statement() as conn:
        await conn.execute(text("SELECT pg_stat_force_next_flush()"))
        counts = (
            await conn.execute(
                text("""
                    SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                    WHERE schemaname = 'fencepost' AND relname = 'leases'
                """)
            )
        )[0]
    assert counts.n_tup_upd == update_count
    assert counts.n_tup_hot_upd / counts.n_tup_upd >= 0.95


async def test_nothing_but_the_primary_key_is_indexed_on_leases(database: Database) -> None:
    async with database.one_statement() as conn:
        rows = await conn.execute(
            text("SELECT indexname FROM pg_indexes WHERE schemaname = 'fencepost' AND tablename = 'leases'")
        )
        assert [row.indexname for row in rows] == ["leases_pkey"]
