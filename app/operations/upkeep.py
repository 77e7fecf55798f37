"""Promote due jobs; make and drop partitions; forget keys and answers whose time is over."""

from app.operations.context import Context
from app.store import doctor, lease_requests, partitions, schedule
from app.store.schedule import NextDue

MAX_JOBS_A_STEP = 1000
MAX_KEYS_A_STEP = 10_000


async def promote_jobs(context: Context) -> NextDue:
    """Move every job whose time has come; return when the next one is due, by the database's clock."""
    while True:
        async with context.database.begin() as conn:
            counts = await schedule.promote_jobs(conn, max_jobs=MAX_JOBS_A_STEP)
        if counts:
            context.signals.jobs_ready(counts)
        if sum(counts.values()) < MAX_JOBS_A_STEP:
            break
    async with context.database.one_statement() as conn:
        return await schedule.read_next_due(conn)


async def make_partitions(context: Context) -> list[str]:
    """Create the partitions of the days ahead; return the names that are new."""
    async with context.database.begin() as conn:
        return await partitions.make_partitions(conn)


async def prune(context: Context, *, look_back_seconds: float) -> list[str]:
    """Run one pass over what is past its time; return the partitions that were dropped.

    Keys go before the partitions that name them. ``look_back_seconds`` bounds how far before the end of
    their time keys are looked for, counted from the finish of their jobs.
    """
    while True:
        async with context.database.upkeep() as conn:
            count = await partitions.delete_old_keys(
                conn,
                retention=context.retention,
                look_back_seconds=look_back_seconds,
                max_keys=MAX_KEYS_A_STEP,
            )
        if count < MAX_KEYS_A_STEP:
            break
    async with context.database.upkeep() as conn:
        await lease_requests.delete_old_lease_requests(conn)
    async with context.database.upkeep() as conn:
        return await partitions.drop_partitions(conn, retention=context.retention)


async def examine(context: Context) -> list[str]:
    """Return one sentence for each job that breaks an invariant of the schema."""
    async with context.database.snapshot() as conn:
        return await doctor.examine(conn)
