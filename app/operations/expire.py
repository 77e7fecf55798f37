"""End leases whose clock ran out: lease, progress or deadline."""

import random

from app.domain.failure import clock_error
from app.domain.machine import Ending, decide, run_out_clock
from app.operations.context import Context
from app.operations.settle import announce_moves
from app.store import clocks, endings
from app.store.endings import EndedLease, LockedLease

# Thousands of leases may run out at once; each step is a short transaction of its own.
MAX_LEASES_A_STEP = 500


async def expire_leases(context: Context) -> int:
    """Run one pass: end every lease of which a clock has run out; return how many.

    Leases that somebody holds a lock on are left to the next pass.
    """
    total = 0
    while True:
        count = await _expire_step(context)
        total += count
        if count < MAX_LEASES_A_STEP:
            return total


async def _expire_step(context: Context) -> int:
    async with context.database.begin() as conn:
        locked = await clocks.lock_run_out_leases(conn, max_leases=MAX_LEASES_A_STEP)
        ended = [item for lease in locked if (item := _ended(lease)) is not None]
        moved = await endings.end_leases(conn, ended) if ended else []
    announce_moves(context, moved)
    return len(moved)


def _ended(lease: LockedLease) -> EndedLease | None:
    outcome = run_out_clock(
        now=lease.now,
        expires_at=lease.expires_at,
        stalls_at=lease.stalls_at,
        deadline_at=lease.deadline_at,
    )
    if outcome is None:
        return None
    ending = Ending(outcome, error=clock_error(outcome))
    decision = decide(
        ending,
        attempt=lease.attempt,
        max_attempts=lease.max_attempts,
        cancel_requested=lease.cancel_requested,
        backoff=lease.backoff,
        roll=random.random(),
    )
    return EndedLease(lease.token, ending, decision)
