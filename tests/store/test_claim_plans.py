"""A claim reads what it takes, and nothing of what else is there."""

from typing import Any

import pytest
from sqlalchemy import text

from app.store import leases
from app.store.engine import Connection
from app.store.leases import NO_HEADS, Demand, Place
from tests.support.plans import Plan, explain

FILL = text("""
WITH new AS (
    INSERT INTO fencepost.jobs (job_id, created_at, run_at, max_attempts, priority, queue, kind)
    SELECT fencepost.new_job_id(at), at, at, 3, n % :priority_count, 'q' || n % :queue_count, 'kind'
    FROM (
        SELECT n, now() - interval '1 hour' + n * interval '1 ms' AS at
        FROM generate_series(1, :job_count) AS n
    ) AS numbered
    RETURNING job_id, run_at, priority, queue
)
INSERT INTO fencepost.ready (job_id, run_at, lease_version, attempt, priority, queue)
SELECT job_id, run_at, 0, 0, priority, queue FROM new
""")

SCHEDULE = text("""
INSERT INTO fencepost.scheduled (job_id, run_at, lease_version, attempt, priority, queue)
SELECT fencepost.new_job_id(now()), now() + interval '1 hour', 0, 0, 0, 'q0' FROM generate_series(1, 1000)
""")


@pytest.fixture(params=["without statistics", "analyzed"])
def is_analyzed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "analyzed")


async def fill(
    conn: Connection, *, is_analyzed: bool, jobs: int, queues: int = 1, priorities: int = 1
) -> list[Place]:
    """Make jobs ready; return their places in the order of a queue."""
    parameters = {"job_count": jobs, "queue_count": queues, "priority_count": priorities}
    await conn.execute(FILL, parameters)
    if is_analyzed:
        await conn.run(b"ANALYZE fencepost.jobs, fencepost.ready")
    rows = await conn.run(b"SELECT priority, run_at, job_id FROM fencepost.ready ORDER BY 1, 2, 3")
    return [Place(*row) for row in rows]


async def explain_claim(
    conn: Connection, demands: list[Demand], heads: dict[str, Place] | None = None
) -> Plan:
    columns = [[getattr(demand, name) for demand in demands] for name in Demand.__struct_fields__]
    names = ("polls", "queues", "firsts", "lasts", "worker_ids", "lease_seconds")
    queues = [demand.queue for demand in demands]
    return await explain(
        conn, leases.LEASE_JOBS, dict(zip(names, columns, strict=True)) | places(queues, heads)
    )


async def explain_sharing(
    conn: Connection, polls: list[tuple[int, list[str]]], heads: dict[str, Place] | None = None
) -> Plan:
    """``polls`` are (max_jobs, queues)."""
    pairs = [(poll, queue, count) for poll, (count, queues) in enumerate(polls) for queue in queues]
    columns = dict(zip(("polls", "queues", "max_jobs"), map(list, zip(*pairs, strict=True)), strict=True))
    parameters = columns | places([queue for _, queue, _ in pairs], heads)
    return await explain(conn, leases.SHARE_QUEUES, parameters)


def places(queues: list[str], heads: dict[str, Place] | None) -> dict[str, Any]:
    known = [(heads or {}).get(queue, (None, None, None)) for queue in queues]
    names = ("head_priorities", "head_run_ats", "head_ids")
    return dict(zip(names, map(list, zip(*known, strict=True)), strict=True))


def demand(queue: str, *, poll: int = 0, jobs: int) -> Demand:
    return Demand(poll, queue, 1, jobs, "worker", 60.0)


async def leased_ids(conn: Connection) -> set[str]:
    return {row.job_id for row in await conn.run(b"SELECT job_id FROM fencepost.leases")}


async def test_a_claim_begins_at_its_head(conn: Connection, is_analyzed: bool) -> None:
    order = await fill(conn, is_analyzed=is_analyzed, jobs=5_000)
    plan = await explain_claim(conn, [demand("q0", jobs=100)], {"q0": order[3_000]})
    assert await leased_ids(conn) == {place.job_id for place in order[3_000:3_100]}
    # Each is found once by the index and once by its address.
    assert plan.rows["ready"] <= 200
    plan.assert_index_ranges(max_rows=300)


async def test_a_claim_with_a_head_finds_what_is_more_urgent(conn: Connection, is_analyzed: bool) -> None:
    order = await fill(conn, is_analyzed=is_analyzed, jobs=5_000, priorities=2)
    heads = {"q0": order[4_000]}
    plan = await explain_claim(conn, [demand("q0", jobs=100)], heads)
    assert await leased_ids(conn) == {place.job_id for place in order[:100]}
    # One more by the look for what is more urgent.
    assert plan.rows["ready"] <= 201


async def test_a_claim_does_not_look_at_scheduled_jobs(conn: Connection, is_analyzed: bool) -> None:
    await fill(conn, is_analyzed=is_analyzed, jobs=1_000)
    await conn.execute(SCHEDULE)
    plan = await explain_claim(conn, [demand("q0", jobs=100)])
    assert set(plan.rows) == {"ready", "jobs"}
    plan = await explain_sharing(conn, [(100, ["q0", "q1"])])
    assert set(plan.rows) == {"ready"}


@pytest.mark.parametrize("with_heads", [False, True], ids=["from the top", "with heads"])
async def test_a_poll_of_many_queues_reads_their_heads_and_takes_what_it_may(
    conn: Connection, is_analyzed: bool, with_heads: bool
) -> None:
    await fill(conn, is_analyzed=is_analyzed, jobs=32 * 200, queues=32)
    queues = [f"q{number}" for number in range(32)]
    heads = await heads_of(conn, 100) if with_heads else {}
    plan = await explain_sharing(conn, [(10, queues)], heads)
    plan.assert_index_ranges(max_rows=32 * 10)
    shares = await leases.share_queues(conn, [(0, 10, queues)], heads=heads)
    assert sum(count for _, _, count in shares) == 10
    plan = await explain_claim(conn, [demand(queue, jobs=count) for _, queue, count in shares], heads)
    assert plan.rows["ready"] <= 20
    assert len(await leased_ids(conn)) == 10


async def test_polls_of_many_queues_are_not_compared_with_each_other(
    conn: Connection, is_analyzed: bool
) -> None:
    await fill(conn, is_analyzed=is_analyzed, jobs=32 * 200, queues=32)
    queues = [f"q{number}" for number in range(32)]
    plan = await explain_sharing(conn, [(2, queues)] * 64, await heads_of(conn, 100))
    assert plan.busiest_rows <= 64 * 32 * 2


async def test_many_polls_of_a_queue_each_read_only_the_heads(conn: Connection, is_analyzed: bool) -> None:
    await fill(conn, is_analyzed=is_analyzed, jobs=64 * 100, queues=64)
    demands = [demand(f"q{number}", poll=number, jobs=1) for number in range(64)]
    plan = await explain_claim(conn, demands, await heads_of(conn, 50))
    assert plan.rows["ready"] <= 128
    plan.assert_index_ranges(max_rows=192)


async def test_a_claim_goes_through_many_priorities_in_order(conn: Connection, is_analyzed: bool) -> None:
    order = await fill(conn, is_analyzed=is_analyzed, jobs=100 * 40, priorities=100)
    plan = await explain_claim(conn, [demand("q0", jobs=100)])
    assert await leased_ids(conn) == {place.job_id for place in order[:100]}
    plan.assert_index_ranges(max_rows=300)
    [(_, job)] = await leases.lease_jobs(conn, [demand("q0", jobs=1)], heads=NO_HEADS)
    assert job.id == order[100].job_id


async def heads_of(conn: Connection, number: int) -> dict[str, Place]:
    """Return for each queue the place that so many come before."""
    rows = await conn.execute(
        text("""
            SELECT queue, priority, run_at, job_id FROM (
                SELECT r.*, row_number() OVER (PARTITION BY queue ORDER BY priority, run_at, job_id) AS place
                FROM fencepost.ready r
            ) numbered
            WHERE place = :place
        """),
        {"place": number + 1},
    )
    return {row.queue: Place(row.priority, row.run_at, row.job_id) for row in rows}
