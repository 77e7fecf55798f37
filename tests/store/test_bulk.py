"""Jobs that come by COPY are the jobs that an INSERT would have made, whatever their texts hold."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.domain.errors import RolledBack
from app.domain.job import Backoff, JobSpec, Parent
from app.domain.retention import Retention
from app.operations.context import Context
from app.store import arrays
from app.store.bulk import copy_jobs, new_job_ids
from app.store.engine import Connection, Database
from app.store.reads import read_jobs
from app.store.submissions import InsertedJob, insert_jobs

Insert = Callable[[Connection, Sequence[tuple[int, JobSpec, str | None]]], Awaitable[dict[int, InsertedJob]]]

# What text formats of PostgreSQL give a meaning to.
TEXTS = st.text(
    st.sampled_from('\\\n\r\t",{}N. aé\u2028\U0001f600')
    | st.characters(exclude_characters="\x00", exclude_categories=["Cs"])
)
NOW = datetime(2026, 11, 29, tzinfo=UTC)
SPECS = st.builds(
    JobSpec,
    kind=TEXTS,
    queue=TEXTS,
    payload=st.none() | TEXTS.map(lambda value: msgspec.json.encode(value).decode()),
    priority=st.integers(-32768, 32767),
    run_at=st.none() | st.integers(-(10**9), 10**9).map(lambda seconds: NOW + timedelta(seconds=seconds)),
    max_attempts=st.integers(1, 1000),
    backoff=st.sampled_from([Backoff(), Backoff(base_seconds=7.5)]),
    max_runtime_seconds=st.none() | st.floats(1, 604800),
    metadata=st.dictionaries(TEXTS, TEXTS, max_size=2),
    parent=st.none() | st.just(Parent("0193a3f0-5c00-7000-8000-000000000000", 3)),
    traceparent=st.none() | TEXTS,
    idempotency_key=st.none() | TEXTS,
)
# What differs from job to job, and is told by InsertedJob.
_OWN = {"id": "", "created_at": datetime(2020, 1, 1, tzinfo=UTC), "run_at": datetime(2020, 1, 1, tzinfo=UTC)}


@given(specs=st.lists(SPECS, min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
async def test_both_ways_make_the_same_jobs(database: Database, specs: list[JobSpec]) -> None:
    by_insert, by_copy = [await _made(database, insert, specs) for insert in (insert_jobs, copy_jobs)]
    assert by_copy == by_insert


async def _made(database: Database, insert: Insert, specs: Sequence[JobSpec]) -> list[object]:
    """Return the jobs as they are read back, and what was told of them, ids and times apart."""
    async with database.begin() as conn:
        rows = await insert(conn, [(index, spec, None) for index, spec in enumerate(specs)])
        jobs = await read_jobs(conn, [row.job_id for row in rows.values()], retention=Retention())
        await conn.run(b"ROLLBACK")
    for row in rows.values():
        assert (jobs[row.job_id].created_at, jobs[row.job_id].run_at) == (row.created_at, row.run_at)
    read_back = [msgspec.structs.replace(jobs[rows[index].job_id], **_OWN) for index in range(len(specs))]
    return [*read_back, *(rows[index].is_due for index in range(len(specs)))]


async def test_ids_are_those_of_the_sql_function_but_for_the_noise(conn: Connection) -> None:
    start = datetime(2026, 7, 1, 23, 59, 59, 999_000, tzinfo=UTC)
    positions = list(range(3000))
    rows = await conn.execute(
        text("""
            SELECT fencepost.first_job_id_at(CAST(:start AS timestamptz) + n * interval '1 microsecond') AS id
            FROM generate_series(0, 2999) AS n
        """),
        {"start": start},
    )
    ids = new_job_ids(start, positions)
    assert [job_id[:18] for job_id in ids] == [row.id[:18] for row in rows]
    assert {job_id[19] for job_id in ids} == set("89ab")
    assert len({job_id[19:] for job_id in ids}) == len(ids)


async def test_a_delay_counts_from_the_creation(database: Database) -> None:
    async with database.begin() as conn:
        rows = await copy_jobs(conn, [(5, JobSpec(kind="test", delay_seconds=90.5), None)])
    assert rows[5].run_at == rows[5].created_at + timedelta(seconds=90.5)
    assert not rows[5].is_due


@pytest.mark.parametrize("write", [arrays.texts, lambda values: arrays.texts([None, *values])])
def test_a_text_that_cannot_be_stored_moves_no_other_out_of_its_place(
    write: Callable[[list[str]], str | None],
) -> None:
    with pytest.raises(ValueError, match=r"U\+0000"):
        write(["a", "b\x00c"])


async def test_a_copy_that_loses_its_connection_is_undone(database: Database, context: Context) -> None:
    with pytest.raises(RolledBack):
        await _copy_on_a_lost_connection(database)
    # The pool has let go of it: what comes next is served.
    for _ in range(5):
        async with context.database.begin() as conn:
            await copy_jobs(conn, [(0, JobSpec(kind="test"), None)])


async def _copy_on_a_lost_connection(database: Database) -> None:
    async with database.begin() as conn:
        [row] = await conn.execute(text("SELECT pg_backend_pid() AS pid"))
        async with database.one_statement() as other:
            await other.execute(
                text("SELECT pg_terminate_backend(CAST(:pid AS integer), 5000)"), {"pid": row.pid}
            )
        await copy_jobs(conn, [(0, JobSpec(kind="test"), None)])


async def test_a_copy_to_a_server_that_takes_no_writes_ends_the_pools_connections(database: Database) -> None:
    async with database.begin() as conn:
        before = (await conn.execute(text("SELECT pg_backend_pid()")))[0][0]
    with pytest.raises(RolledBack):
        await _copy_read_only(database)
    async with database.begin() as conn:
        assert (await conn.execute(text("SELECT pg_backend_pid()")))[0][0] != before


async def _copy_read_only(database: Database) -> None:
    async with database.begin() as conn:
        await conn.execute(text("SET TRANSACTION READ ONLY"))
        await copy_jobs(conn, [(0, JobSpec(kind="test"), None)])
