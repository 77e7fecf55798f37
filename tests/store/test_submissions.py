"""Ids tell the order in which jobs came, and the time at which they did."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from app.domain.job import Job, JobSpec
from app.operations.context import Context
from app.store.engine import Connection
from app.store.reads import created_at_of
from tests.support.factory import keyed, submit

BATCH = 1000


async def test_the_order_of_ids_is_the_order_of_creation_and_within_a_batch_of_the_input(
    context: Context,
) -> None:
    jobs: list[Job] = []
    for _ in range(3):
        specs = [JobSpec(kind=f"kind{index}") for index in range(BATCH)]
        # Keys are claimed in their own order, which must not become the order of the jobs.
        specs = [
            keyed(spec, f"{len(jobs)}-{BATCH - index:04}") if index % 3 == 0 else spec
            for index, spec in enumerate(specs)
        ]
        batch = await submit(context, *specs)
        assert [job.kind for job in batch] == [spec.kind for spec in specs]
        jobs += batch
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    created = [job.created_at for job in jobs]
    assert created == sorted(set(created))


async def test_an_id_is_a_uuid_of_version_7_that_holds_the_time_of_creation(context: Context) -> None:
    for job in await submit(context, *[JobSpec(kind="test")] * 50):
        parsed = UUID(job.id)
        assert (parsed.version, parsed.variant) == (7, "specified in RFC 4122")
        made = datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC)
        assert timedelta(0) <= job.created_at - made < timedelta(milliseconds=1)


async def test_the_first_id_at_a_time_divides_the_jobs_before_it_from_those_at_or_after_it(
    conn: Connection,
) -> None:
    rows = await conn.execute(
        text("""
            SELECT fencepost.new_job_id(at) AS id,
                   fencepost.new_job_id(at) >= fencepost.first_job_id_at(at) AS is_not_before,
                   fencepost.new_job_id(at)
                       < fencepost.first_job_id_at(at + interval '1 microsecond') AS is_before
            FROM generate_series(1, 5000) AS n, LATERAL (
                SELECT timestamptz '2026-07-01 23:59:59.997+00' + n * interval '1 microsecond' AS at
            ) AS t
        """)
    )
    assert all(row.is_not_before and row.is_before for row in rows)


def test_the_time_of_an_id_outside_the_calendar_is_unknown() -> None:
    assert created_at_of("ffffffff-ffff-7fff-bfff-ffffffffffff") is None
    assert created_at_of("00000000-0000-0000-0000-000000000000") is not None
