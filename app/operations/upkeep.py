"""Promote due jobs; make and drop partitions; forget keys and answers whose time is over."""

from datetime import UTC, datetime

from app.domain.errors import Unavailable
from app.domain.job import JobState
from app.operations.context import Context
from app.store import doctor, lease_requests, partitions, reads, schedule
from app.store.schedule import NextDue

MAX_JOBS_A_STEP = 1000
MAX_KEYS_A_STEP = 10_000
MAX_DELETED_A_STEP = 5_000
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


async def read_now(context: Context) -> datetime:
    """Return the database's time."""
    async with context.database.one_statement() as conn:
        return await reads.read_now(conn)


async def promote_jobs(context: Context) -> NextDue:
    """Move every job whose time has come; return when the next one is due, by the database's clock."""
    while True:
        async with context.database.begin() as conn:
            counts = await schedule.promote_jobs(conn, max_jobs=MAX_JOBS_A_STEP)
        for queue in counts:
            context.heads.placed(queue)
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


class KeyWalk:
    """How far the finished jobs have been walked for keys to forget; one per process, begun anew with it."""

    def __init__(self) -> None:
        begin = datetime(1970, 1, 1, tzinfo=UTC)
        self.after = dict.fromkeys((JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED), begin)


async def forget_keys(context: Context, walk: KeyWalk) -> bool:
    """Walk one step through each state and forget the keys whose time is over; True when more may follow."""
    retention = context.retention
    has_more = False
    for state in walk.after:
        kept = retention.dead_seconds if state is JobState.DEAD else retention.finished_seconds
        async with context.database.upkeep() as conn:
            count, walk.after[state] = await partitions.delete_old_keys(
                conn,
                state,
                kept_seconds=min(kept, retention.idempotency_seconds),
                after=walk.after[state],
                max_jobs=MAX_KEYS_A_STEP,
            )
        has_more |= count == MAX_KEYS_A_STEP
    return has_more


async def prune(context: Context) -> list[str]:
    """Run one pass over what is past its time; return the partitions that were dropped.

    Keys are to be forgotten before the partitions that name them are dropped. A partition that somebody
    reads just now is left to the next pass.
    """
    async with context.database.upkeep() as conn:
        await lease_requests.delete_old_lease_requests(conn)
        old = await partitions.read_old_partitions(conn, retention=context.retention)
    dropped = []
    for name in old:
        try:
            if name.startswith("finished"):
                await _delete_jobs_of(context, name)
            async with context.database.upkeep() as conn:
                await partitions.drop_partition(conn, name)
        except Unavailable:
            continue
        dropped.append(name)
    return dropped


async def _delete_jobs_of(context: Context, partition: str) -> None:
    """Delete the jobs that ended in a partition, in steps, so that nothing is locked for long.

    What was deleted before an interruption is passed over quickly the next time.
    """
    last_id, count = _FIRST_ID, MAX_DELETED_A_STEP
    while count == MAX_DELETED_A_STEP:
        async with context.database.upkeep() as conn:
            count, last_id = await partitions.delete_jobs_of(
                conn, partition, after_id=last_id, max_jobs=MAX_DELETED_A_STEP
            )


async def examine(context: Context) -> list[str]:
    """Return one sentence for each job that breaks an invariant of the schema."""
    async with context.database.snapshot() as conn:
        return await doctor.examine(conn)
