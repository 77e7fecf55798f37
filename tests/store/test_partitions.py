"""Partitions by day: there before they are needed, gone when everything in them is past its retention."""

import dataclasses
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import text

from app.domain.calls import JobFilter
from app.domain.job import JobSpec, JobState
from app.domain.retention import Retention
from app.operations import upkeep
from app.operations.context import Context
from app.operations.upkeep import KeyWalk, forget_keys, make_partitions, prune
from app.store import listings, partitions, reads
from app.store.engine import Database
from tests.support.factory import count_rows, job_in, keyed, read

PARENTS = ("finished_succeeded", "finished_dead", "finished_cancelled", "attempts")
KEEP_2_AND_5 = Retention(finished_seconds=2 * 86_400, dead_seconds=5 * 86_400)


@pytest.fixture(autouse=True)
async def _new_day(context: Context) -> None:
    """Do what the service does each day: the template was made yesterday when the run goes past midnight."""
    await make_partitions(context)


async def today(database: Database) -> date:
    async with database.begin() as conn:
        return await partitions.read_today(conn)


async def partition_names(database: Database) -> set[str]:
    async with database.begin() as conn:
        rows = await conn.execute(
            text("""
                SELECT c.relname FROM pg_inherits i
                JOIN pg_class c ON c.oid = i.inhrelid AND c.relkind = 'r'
                JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'fencepost'
            """)
        )
        return {row.relname for row in rows}


def names_of(days: list[date], *parents: str) -> set[str]:
    return {f"{parent}_{day:%Y%m%d}" for parent in parents or PARENTS for day in days}


async def add_past_partitions(database: Database, *, days_back: int) -> None:
    """Make the partitions that this service would have made, had it run for so many days."""
    day = await today(database)
    existing = await partition_names(database)
    async with database.begin() as conn:
        for back in range(2, days_back + 1):
            past = day - timedelta(days=back)
            for parent in PARENTS:
                name = f"{parent}_{past:%Y%m%d}"
                if name in existing:
                    continue
                await conn.execute(partitions._create(parent, name))
                await conn.execute(partitions._attach(parent, name, past))


async def add_finished(database: Database, *, state: JobState, ages: list[timedelta]) -> list[str]:
    """Insert jobs that were created and finished so long ago; return their ids in that order."""
    ids = []
    async with database.begin() as conn:
        for age in ages:
            row = await conn.execute(
                text("""
                    WITH job AS (
                        INSERT INTO fencepost.jobs (
                            job_id, created_at, run_at, max_attempts, priority, queue, kind
                        )
                        SELECT fencepost.new_job_id(at), at, at, 3, 0, 'default', 'old'
                        FROM (SELECT now() - CAST(:age AS interval) AS at) AS t
                        RETURNING *
                    )
                    INSERT INTO fencepost.finished (
                        job_id, finished_at, lease_version, attempt, has_key, state, queue, kind
                    )
                    SELECT job_id, created_at, 1, 1, false, :state, queue, kind FROM job
                    RETURNING job_id
                """),
                {"age": age, "state": state.value},
            )
            ids.append(row[0][0])
    return ids


async def test_partitions_are_there_from_yesterday_to_a_week_ahead(context: Context) -> None:
    day = await today(context.database)
    days = [day + timedelta(days=offset) for offset in range(-1, 8)]
    names = await partition_names(context.database)
    assert names_of(days) <= names
    # Of the day before where the template is of yesterday.
    assert names - names_of(days) <= names_of([day - timedelta(days=2)])


async def test_making_partitions_again_makes_only_what_is_missing(context: Context) -> None:
    assert await make_partitions(context) == []
    day = await today(context.database)
    missing = f"attempts_{day + timedelta(days=7):%Y%m%d}"
    async with context.database.begin() as conn:
        await conn.execute(partitions._drop(missing))
    assert await make_partitions(context) == [missing]


async def test_a_partition_made_ahead_has_the_indexes_of_its_parent(context: Context) -> None:
    day = await today(context.database)
    async with context.database.begin() as conn:
        rows = await conn.execute(
            text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'fencepost' AND tablename = :name"),
            {"name": f"finished_dead_{day + timedelta(days=7):%Y%m%d}"},
        )
        assert len(list(rows)) == 5


async def test_pruning_drops_the_days_past_their_retention_and_no_other(context: Context) -> None:
    database = context.database
    await add_past_partitions(database, days_back=12)
    before = await partition_names(database)
    dropped = set(await prune(Context(database, KEEP_2_AND_5, context.signals)))
    day = await today(database)
    # The day that ended just past the retention stays for one more day; dropping is no hurry.
    short = [day - timedelta(days=back) for back in range(5, 13)]
    long = [day - timedelta(days=back) for back in range(8, 13)]
    assert dropped == names_of(short, "finished_succeeded", "finished_cancelled") | names_of(
        long, "finished_dead", "attempts"
    )
    assert await partition_names(database) == before - dropped


async def test_pruning_never_drops_a_row_within_its_retention(context: Context) -> None:
    await add_past_partitions(context.database, days_back=12)
    almost = timedelta(days=2) - timedelta(minutes=1)
    await add_finished(context.database, state=JobState.SUCCEEDED, ages=[almost])
    await add_finished(context.database, state=JobState.DEAD, ages=[timedelta(days=5) - timedelta(minutes=1)])
    await prune(Context(context.database, KEEP_2_AND_5, context.signals))
    assert await count_rows(context, "finished") == 2


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.CANCELLED, JobState.DEAD])
async def test_finished_jobs_of_several_days_are_read_and_listed_until_their_retention(
    context: Context, state: JobState
) -> None:
    database = context.database
    await add_past_partitions(database, days_back=12)
    ages = [timedelta(hours=hours) for hours in range(1, 12 * 24, 23)]
    ids = await add_finished(database, state=state, ages=ages)
    kept_for = timedelta(days=5 if state is JobState.DEAD else 2)
    kept = [job_id for job_id, age in zip(ids, ages, strict=True) if age < kept_for]
    async with database.begin() as conn:
        found = await reads.read_jobs(conn, ids, retention=KEEP_2_AND_5)
        listed = await listings.list_job_ids(
            conn, JobFilter(state=state), retention=KEEP_2_AND_5, max_rows=200, before_id=None
        )
        everything = await listings.list_job_ids(
            conn, JobFilter(), retention=KEEP_2_AND_5, max_rows=200, before_id=None
        )
    assert set(found) == set(kept)
    assert listed == everything == kept


async def test_a_page_by_creation_time_finds_jobs_of_other_days(context: Context) -> None:
    database = context.database
    await add_past_partitions(database, days_back=12)
    ids = await add_finished(
        database, state=JobState.DEAD, ages=[timedelta(days=days, hours=1) for days in range(5)]
    )
    async with database.begin() as conn:
        found = await reads.read_jobs(conn, ids, retention=Retention())
        page = await listings.list_job_ids(
            conn,
            JobFilter(created_after=found[ids[3]].created_at, created_before=found[ids[1]].created_at),
            retention=Retention(),
            max_rows=200,
            before_id=None,
        )
    # From the first, inclusive, to the last, exclusive.
    assert page == [ids[2], ids[3]]


async def finish_earlier(context: Context, job_id: str, *, age: timedelta) -> None:
    """Move the finish of a job into the past; its partition must be there."""
    async with context.database.begin() as conn:
        await conn.execute(
            text("UPDATE fencepost.finished SET finished_at = finished_at - :age WHERE job_id = :job_id"),
            {"age": age, "job_id": job_id},
        )


async def keys_left(context: Context) -> set[str]:
    async with context.database.begin() as conn:
        return {row.key for row in await conn.execute(text("SELECT key FROM fencepost.idempotency_keys"))}


async def test_the_pruner_forgets_a_key_only_when_its_time_is_over(context: Context) -> None:
    await add_past_partitions(context.database, days_back=12)
    context = dataclasses.replace(
        context,
        retention=Retention(finished_seconds=3 * 86_400, dead_seconds=3_600, idempotency_seconds=86_400),
    )
    cases = {
        "succeeded, within the day": (JobState.SUCCEEDED, timedelta(hours=23)),
        "succeeded, after a day": (JobState.SUCCEEDED, timedelta(hours=25)),
        "cancelled, after a day": (JobState.CANCELLED, timedelta(hours=25)),
        "dead, within its shorter retention": (JobState.DEAD, timedelta(minutes=59)),
        "dead, after its shorter retention": (JobState.DEAD, timedelta(minutes=61)),
    }
    for key, (state, age) in cases.items():
        job = await job_in(context, state, keyed(JobSpec(kind="test", queue=key.split(",")[0]), key))
        await finish_earlier(context, job.id, age=age)
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RUNNING):
        await job_in(context, state, keyed(JobSpec(kind="test", queue=f"queue-{state}"), state.value))

    await forget_keys(context, KeyWalk())

    kept = {"succeeded, within the day", "dead, within its shorter retention"}
    assert await keys_left(context) == kept | {"scheduled", "ready", "running"}


async def test_a_later_pass_goes_on_where_the_walk_stands(context: Context) -> None:
    await add_past_partitions(context.database, days_back=12)
    context = dataclasses.replace(context, retention=Retention(idempotency_seconds=3_600))
    for hours in (2, 30):
        job = await job_in(context, JobState.CANCELLED, keyed(JobSpec(kind="test"), f"{hours} hours"))
        await finish_earlier(context, job.id, age=timedelta(hours=hours))
    walk = KeyWalk()
    walk.after[JobState.CANCELLED] = datetime.now(UTC) - timedelta(hours=4)
    await forget_keys(context, walk)
    assert await keys_left(context) == {"30 hours"}
    assert walk.after[JobState.CANCELLED] > datetime.now(UTC) - timedelta(hours=3)


async def test_the_walk_for_keys_goes_in_steps_and_tells_whether_more_follow(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MAX_KEYS_A_STEP", 2)
    await add_past_partitions(context.database, days_back=2)
    context = dataclasses.replace(context, retention=Retention(idempotency_seconds=3_600))
    for number in range(3):
        job = await job_in(context, JobState.CANCELLED, keyed(JobSpec(kind="test"), f"key{number}"))
        await finish_earlier(context, job.id, age=timedelta(hours=2 + number))
    walk = KeyWalk()
    assert await forget_keys(context, walk)
    assert await keys_left(context) == {"key0"}
    assert not await forget_keys(context, walk)
    assert await keys_left(context) == set()


async def test_a_partition_that_somebody_reads_is_left_to_the_next_pass(context: Context) -> None:
    await add_past_partitions(context.database, days_back=12)
    context = dataclasses.replace(context, retention=KEEP_2_AND_5)
    async with context.database.snapshot() as reader:
        await reader.execute(text("SELECT count(*) FROM fencepost.finished"))
        dropped = await prune(context)
        assert {name.rpartition("_")[0] for name in dropped} == {"attempts"}
        # And nobody waits for it: a reader that comes afterwards is answered at once.
        async with context.database.begin() as conn:
            await conn.execute(text("SET LOCAL lock_timeout = '100ms'"))
            await conn.execute(text("SELECT count(*) FROM fencepost.finished"))
    assert await prune(context)


async def test_the_pruner_leaves_a_key_that_belongs_to_a_newer_job(context: Context) -> None:
    await add_past_partitions(context.database, days_back=2)
    context = dataclasses.replace(context, retention=Retention(idempotency_seconds=3_600))
    spec = keyed(JobSpec(kind="test"), "again")
    old = await job_in(context, JobState.CANCELLED, spec)
    await finish_earlier(context, old.id, age=timedelta(hours=2))
    new = await job_in(context, JobState.READY, spec)
    assert new.id != old.id
    await forget_keys(context, KeyWalk())
    assert await keys_left(context) == {"again"}


async def test_the_pruner_forgets_answers_to_lease_calls_whose_time_is_over(context: Context) -> None:
    async with context.database.begin() as conn:
        await conn.execute(
            text("""
                INSERT INTO fencepost.lease_requests (
                    worker_id, request_id, fingerprint, expires_at, job_ids, lease_versions
                )
                SELECT 'w', 'request' || n, '', now() + n * interval '1 minute', '{}', '{}'
                FROM generate_series(-1, 1) AS n
            """)
        )
    await prune(context)
    async with context.database.begin() as conn:
        rows = await conn.execute(text("SELECT request_id FROM fencepost.lease_requests"))
        assert [row.request_id for row in rows] == ["request1"]


async def test_a_job_that_is_past_its_retention_is_unknown_before_its_partition_is_dropped(
    context: Context,
) -> None:
    await add_past_partitions(context.database, days_back=12)
    job = await job_in(context, JobState.CANCELLED)
    context = dataclasses.replace(context, retention=Retention(finished_seconds=60.0))
    assert (await read(context, job.id)).state is JobState.CANCELLED
    await finish_earlier(context, job.id, age=timedelta(seconds=61))
    async with context.database.begin() as conn:
        assert await reads.read_jobs(conn, [job.id], retention=context.retention) == {}
    assert await count_rows(context, "finished") == 1


def test_days_are_cut_at_midnight_of_utc() -> None:
    statement = partitions._attach("attempts", "attempts_20260701", datetime(2026, 7, 1).date())  # noqa: DTZ001
    assert "('2026-07-01 00:00Z') TO ('2026-07-02 00:00Z')" in statement.text
