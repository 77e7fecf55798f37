"""No verb of the hot path reads more than index ranges, however full the queue is.

The plan is looked at with no statistics at all (a queue that has just filled) and with fresh ones.
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.sql import ClauseElement

from app.domain.calls import JobFilter
from app.domain.job import JobState
from app.domain.retention import Retention
from app.operations.rounds import MAX_JOBS_A_ROUND
from app.store import clocks, endings, leases, listings, reads, schedule, submissions
from app.store.engine import Connection, Database
from app.store.reads import created_at_of
from tests.support.plans import explain, explain_prepared, prepare

EACH = 20_000
RUNNING = 1_000

# The newest jobs are scheduled ones, the oldest finished: a page of one state must not wade through another.
FILL = f"""
INSERT INTO fencepost.jobs (job_id, created_at, run_at, max_attempts, priority, queue, kind, payload,
                            parent_job_id, parent_lease_version)
SELECT fencepost.new_job_id(at), at, at, 3, n % 7, 'queue' || n % 4, 'kind' || n % 5, '{{}}',
       CASE WHEN n % 1000 = 0 THEN CAST('0193a3f0-5c00-7000-8000-000000000000' AS uuid) END,
       CASE WHEN n % 1000 = 0 THEN 1 END
FROM (SELECT n, now() + n * interval '10 ms'
             - CASE WHEN n <= {EACH} THEN interval '3 hours' ELSE interval '1 hour' END AS at
      FROM generate_series(1, {3 * EACH + RUNNING}) AS n) AS t;

INSERT INTO fencepost.finished (job_id, finished_at, lease_version, attempt, has_key, state, queue, kind,
                                parent_job_id)
SELECT job_id, created_at, 1, 1, false, state, CASE WHEN state <> 'succeeded' THEN queue END,
       CASE WHEN state <> 'succeeded' THEN kind END, CASE WHEN state <> 'succeeded' THEN parent_job_id END
FROM (SELECT *, (ARRAY['succeeded', 'dead', 'cancelled'])
                [1 + row_number() OVER (ORDER BY job_id) % 3] AS state
      FROM fencepost.jobs ORDER BY job_id LIMIT {EACH}) AS t;

INSERT INTO fencepost.leases (job_id, lease_version, granted_at, expires_at, lease_seconds, attempt, has_key,
                              worker_id)
SELECT job_id, 1, now(), now() + interval '1 hour', 60, 1, false, 'worker'
FROM fencepost.jobs ORDER BY job_id LIMIT {RUNNING} OFFSET {EACH};

INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, run_at, 0, 0, priority, queue
FROM fencepost.jobs ORDER BY job_id LIMIT {EACH} OFFSET {EACH + RUNNING};

UPDATE fencepost.jobs SET run_at = now() + interval '1 hour'
WHERE job_id IN (SELECT job_id FROM fencepost.jobs ORDER BY job_id LIMIT {EACH} OFFSET {2 * EACH + RUNNING});

INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, run_at, 0, 0, priority, queue
FROM fencepost.jobs ORDER BY job_id LIMIT {EACH} OFFSET {2 * EACH + RUNNING};
"""  # noqa: S608 - the numbers are our own


@pytest.fixture(scope="module", params=["without statistics", "analyzed"])
def full_database_url(request: pytest.FixtureRequest, admin_url: str, template: str) -> Iterator[str]:
    name = f"fencepost_full_{uuid.uuid4().hex[:8]}"
    url = make_url(admin_url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(FILL.encode())
            if request.param == "analyzed":
                connection.execute("VACUUM ANALYZE")
        yield url
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
async def full(full_database_url: str) -> AsyncIterator[Connection]:
    """A transaction on the full database, rolled back, with the settings of the service."""
    database = Database(full_database_url, pool_size=1)
    async with database.begin() as conn:
        # What an earlier test wrote was rolled back, but leaves a mark: its rows look as if they were locked.
        await conn.run(b"UPDATE fencepost.leases SET is_touched = is_touched")
        yield conn
        await conn.run(b"ROLLBACK")
    await database.close()


async def some_ids(conn: Connection, table: str, count: int) -> list[str]:
    rows = await conn.execute(text(f"SELECT job_id FROM fencepost.{table} ORDER BY random() LIMIT {count}"))  # noqa: S608
    return [row.job_id for row in rows]


NO_HEADS = dict.fromkeys(("head_priorities", "head_run_ats", "head_ids"))


def lease_parameters(queues: list[str], job_count: int) -> dict[str, Any]:
    return {
        "polls": list(range(len(queues))),
        "queues": queues,
        "firsts": [1] * len(queues),
        "lasts": [job_count] * len(queues),
        "worker_ids": ["worker"] * len(queues),
        "lease_seconds": [60.0] * len(queues),
        **NO_HEADS,
    }


async def test_leasing_reads_the_head_of_each_queue(full: Connection) -> None:
    plan = await explain(full, leases.LEASE_JOBS, lease_parameters(["queue1", "queue2"], 50))
    # 100 rows at the head of ready, deleted by row address, and their jobs: for the grant, for the answer.
    plan.assert_index_ranges(max_rows=500)
    assert plan.rows["ready"] <= 200


async def test_leasing_from_an_empty_queue_reads_nothing(full: Connection) -> None:
    plan = await explain(full, leases.LEASE_JOBS, lease_parameters(["nothing_here"], 50))
    plan.assert_index_ranges(max_rows=0)


async def test_sharing_queues_reads_their_heads(full: Connection) -> None:
    parameters = {
        "polls": [0, 0, 1, 1],
        "queues": ["queue0", "queue1", "queue1", "queue2"],
        "max_jobs": [10, 10, 20, 20],
        **NO_HEADS,
    }
    plan = await explain(full, leases.SHARE_QUEUES, parameters)
    plan.assert_index_ranges(max_rows=60)


def tokens(job_ids: list[str]) -> dict[str, Any]:
    return {"job_ids": job_ids, "lease_versions": [1] * len(job_ids)}


def holder_statements(count: int) -> dict[str, tuple[ClauseElement, dict[str, Any]]]:
    """Return what takes tokens, and its other parameters for so many of them."""
    nothing = [None] * count
    beats = {
        "extend_seconds": nothing,
        "seqs": [1] * count,
        "percents": nothing,
        "messages": nothing,
        "with_checkpoints": [False] * count,
        "checkpoints": nothing,
    }
    ends = {
        "states": (["ready", "scheduled", "scheduled", "dead", "cancelled"] * count)[:count],
        "attempts": [1] * count,
        "delays": ([None, 5.0, 5.0, None, None] * count)[:count],
        "outcomes": ["failed"] * count,
        "errors": nothing,
        "fingerprints": nothing,
        "version_steps": [0] * count,
    }
    return {
        "heartbeat": (leases.HEARTBEAT_LEASES, beats),
        "complete": (leases.COMPLETE_LEASES, {"results": nothing, "fingerprints": [b"f"] * count}),
        "lock": (endings.LOCK_LEASES, {}),
        "end": (endings.END_LEASES, ends),
        "lock parents": (submissions.LOCK_PARENTS, {}),
        "verify": (reads.READ_HELD, {}),
    }


# Each lease once; where jobs are looked up, those too, and two fifths of those that end are written.
READ_A_TOKEN = {"heartbeat": 1, "complete": 1, "lock": 2, "end": 2.4, "lock parents": 1, "verify": 1}


@pytest.mark.parametrize("name", READ_A_TOKEN)
async def test_a_holders_statement_reads_only_its_leases_and_jobs(full: Connection, name: str) -> None:
    statement, members = holder_statements(20)[name]
    plan = await explain(full, statement, tokens(await some_ids(full, "leases", 20)) | members)
    plan.assert_index_ranges(max_rows=round(20 * READ_A_TOKEN[name]))


@pytest.mark.parametrize("name", sorted(READ_A_TOKEN.keys() - {"heartbeat"}))
async def test_many_tokens_are_not_compared_with_each_other(full: Connection, name: str) -> None:
    statement, members = holder_statements(500)[name]
    plan = await explain(full, statement, tokens(await some_ids(full, "leases", 500)) | members)
    assert plan.row_count <= 500 * READ_A_TOKEN[name]
    assert plan.busiest_rows <= 500


async def test_as_many_heartbeats_as_a_statement_takes_read_each_lease_once(full: Connection) -> None:
    statement, members = holder_statements(MAX_JOBS_A_ROUND)["heartbeat"]
    job_ids = await some_ids(full, "leases", MAX_JOBS_A_ROUND)
    plan = await explain(full, statement, tokens(job_ids) | members)
    plan.assert_index_ranges(max_rows=MAX_JOBS_A_ROUND)


async def test_many_records_are_looked_up_one_by_one(full: Connection) -> None:
    job_ids = await some_ids(full, "finished", 500)
    parameters = tokens(job_ids) | {"oldest": created_at_of(min(job_ids))}
    plan = await explain(full, reads.READ_RECORDS, parameters)
    plan.assert_index_ranges(max_rows=500)
    assert plan.busiest_rows <= 500


async def test_promoting_reads_only_due_jobs(full: Connection) -> None:
    plan = await explain(full, schedule.PROMOTE_JOBS, {"max_jobs": 1000})
    plan.assert_index_ranges(max_rows=0)
    plan = await explain(full, schedule.READ_NEXT_DUE, {})
    plan.assert_index_ranges(max_rows=1)


async def test_expiring_reads_the_leases_and_nothing_but_the_jobs_of_those_run_out(full: Connection) -> None:
    plan = await explain(full, clocks.LOCK_RUN_OUT_LEASES, {"max_leases": 500})
    assert set(plan.rows) == {"leases", "jobs"}
    assert plan.rows["leases"] <= RUNNING
    assert plan.rows["jobs"] == 0


async def test_reading_jobs_reads_only_theirs(full: Connection) -> None:
    job_ids = [
        job_id
        for table in ("ready", "scheduled", "leases", "finished")
        for job_id in await some_ids(full, table, 5)
    ]
    parameters = {
        "job_ids": job_ids,
        "with_payload": True,
        "with_result": True,
        "oldest": created_at_of(min(job_ids)),
        "dead_seconds": 1e6,
        "finished_seconds": 1e6,
    }
    plan = await explain(full, reads.READ_JOBS, parameters)
    plan.assert_index_ranges(max_rows=4 * len(job_ids))


async def test_reading_a_jobs_attempts_and_records_reads_only_theirs(full: Connection) -> None:
    [job_id] = await some_ids(full, "finished", 1)
    plan = await explain(full, reads.READ_ATTEMPTS, {"job_id": job_id, "after_version": 0, "max_rows": 50})
    plan.assert_index_ranges(max_rows=2)
    plan = await explain(full, reads.READ_RECORDS, tokens([job_id]) | {"oldest": created_at_of(job_id)})
    plan.assert_index_ranges(max_rows=2)


async def test_keys_are_looked_up_one_by_one(full: Connection) -> None:
    await full.execute(
        text("""
            INSERT INTO fencepost.idempotency_keys (caller, key, fingerprint, job_id)
            SELECT 'anonymous', 'key' || job_id, '\\x00', job_id FROM fencepost.finished
        """)
    )
    job_ids = await some_ids(full, "finished", 500)
    parameters = {
        "callers": ["anonymous"] * 500,
        "keys": [f"key{job_id}" for job_id in job_ids],
        "idempotency_seconds": 1e6,
        "dead_seconds": 1e6,
        "finished_seconds": 1e6,
    }
    plan = await explain(full, submissions.READ_KEYS, parameters)
    # The key, its job and how that ended.
    plan.assert_index_ranges(max_rows=3 * 500)
    assert plan.busiest_rows <= 500


def filters() -> dict[str, JobFilter]:
    """Return every kind of filter; the times lie near both ends of the three hours that the jobs span."""
    now = datetime.now(UTC)
    return {
        "nothing": JobFilter(),
        **{f"state {state}": JobFilter(state=state) for state in JobState},
        "queue": JobFilter(queue="queue1"),
        "kind": JobFilter(kind="kind1"),
        "parent": JobFilter(parent_id="0193a3f0-5c00-7000-8000-000000000000"),
        "created after": JobFilter(created_after=now - timedelta(minutes=55)),
        "created before": JobFilter(created_before=now - timedelta(hours=2, minutes=58)),
        "created between": JobFilter(created_after=now - timedelta(hours=2, minutes=58), created_before=now),
    }


@pytest.mark.parametrize("name", filters())
@pytest.mark.parametrize("is_next_page", [False, True], ids=["first page", "next page"])
async def test_a_page_of_jobs_reads_index_ranges(full: Connection, name: str, is_next_page: bool) -> None:
    retention, job_filter = Retention(), filters()[name]
    before_id = None
    if is_next_page:
        page = await listings.list_job_ids(full, job_filter, retention=retention, max_rows=51, before_id=None)
        before_id = page[-1]
    statement = listings._page(job_filter, retention=retention, max_rows=51, before_id=before_id)
    plan = await explain(full, statement)
    # Ready jobs are in the order of the claim: all of them are sorted, or newer jobs passed over.
    is_sorted = job_filter.state is JobState.READY
    plan.assert_index_ranges(max_rows=2 * EACH + 600 if is_sorted else 600)


@pytest.mark.slow
@pytest.mark.parametrize("name", holder_statements(0))
async def test_a_plan_made_while_the_tables_were_empty_serves_when_they_are_full(
    database_url: str, name: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        # As autovacuum leaves a queue that has run dry: no pages, and known to have no rows.
        connection.execute("VACUUM (TRUNCATE, ANALYZE)")
    statement, members = holder_statements(20)[name]
    database = Database(database_url, pool_size=1)
    async with database.upkeep() as conn:
        await prepare(conn, statement)
        nobody = [f"0193a3f0-5c00-7000-8000-{number:012}" for number in range(20)]
        await explain_prepared(conn, statement, tokens(nobody) | members)
        await conn.run(FILL.encode())
        job_ids = await some_ids(conn, "leases", 20)
        plan = await explain_prepared(conn, statement, tokens(job_ids) | members)
    await database.close()
    assert plan.row_count <= 100, dict(plan.rows)
