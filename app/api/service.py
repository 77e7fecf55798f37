"""What the routes are given: the verbs, coalesced, and those who wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Protocol

from app.api.requests import Limits
from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError, JobNotFound
from app.domain.job import Job, JobSpec, Token
from app.operations.coalescer import MAX_WEIGHT_BYTES, Coalescer
from app.operations.context import Context
from app.operations.finishes import Finishes
from app.operations.heartbeat import heartbeat_leases, verify_leases
from app.operations.polls import Polls
from app.operations.retries import retried
from app.operations.server_clock import ServerClock
from app.operations.settle import Closing, Completing, Settled, complete_leases, end_leases
from app.operations.submit import Submitted, submit_jobs
from app.store.reads import read_jobs, read_schema_version

# Without coalescing every call may have a connection of its own, or the comparison is unfair.
_UNCOALESCED_IN_FLIGHT = 64
# What a job weighs is known only when it is read.
_MAX_READ_ITEMS = 32
# What an item of a call counts at least, so that about a thousand of them share a flush.
_ITEM_BYTES = MAX_WEIGHT_BYTES // 1000


class LoopStatus(Protocol):
    """What readiness asks of a background loop."""

    @property
    def name(self) -> str: ...
    @property
    def is_alive(self) -> bool: ...
    @property
    def last_success_at(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Service:
    """One process's service. ``schema_version`` is the one this code was written for."""

    context: Context
    limits: Limits
    polls: Polls
    finishes: Finishes
    clock: ServerClock
    loops: Sequence[LoopStatus]
    schema_version: str
    submit: Coalescer[JobSpec, Submitted]
    heartbeat: Coalescer[Heartbeat, RenewedLease]
    complete: Coalescer[Completing, Settled]
    complete_calls: Coalescer[Sequence[Completing], Sequence[Settled | FencepostError]]
    end: Coalescer[Closing, Settled]
    verify: Coalescer[Token, None]
    read: Coalescer[str, Job]
    read_version: Coalescer[None, str]

    def drain(self) -> None:
        """Answer everybody who waits, and let nobody wait any more: shutdown has begun."""
        self.polls.drain()
        self.finishes.drain()


def make_service(
    context: Context,
    *,
    limits: Limits,
    polls: Polls,
    finishes: Finishes,
    clock: ServerClock,
    loops: Sequence[LoopStatus],
    schema_version: str,
    max_coalesced_items: int,
) -> Service:
    """Wire the verbs; ``max_coalesced_items`` 1 turns coalescing off (for the benchmark that measures it)."""

    in_flight = 2 if max_coalesced_items > 1 else _UNCOALESCED_IN_FLIGHT
    return Service(
        context=context,
        limits=limits,
        polls=polls,
        finishes=finishes,
        clock=clock,
        loops=loops,
        schema_version=schema_version,
        submit=Coalescer(
            partial(submit_jobs, context),
            weigh=_spec_bytes,
            max_items=max_coalesced_items,
            max_in_flight=in_flight,
        ),
        heartbeat=Coalescer(
            partial(heartbeat_leases, context),
            weigh=lambda beat: len(beat.checkpoint or ""),
            max_items=max_coalesced_items,
            max_in_flight=in_flight,
        ),
        complete=Coalescer(
            partial(complete_leases, context, with_jobs=True),
            weigh=_completing_bytes,
            max_items=max_coalesced_items,
            max_in_flight=in_flight,
        ),
        complete_calls=Coalescer(
            partial(_complete_calls, context),
            weigh=lambda call: sum(_ITEM_BYTES + _completing_bytes(item) for item in call),
            max_items=max_coalesced_items,
            # Those who are answered together lease together: one at a time makes larger shares of both.
            max_in_flight=1 if max_coalesced_items > 1 else in_flight,
            max_slow=2,
        ),
        end=Coalescer(
            partial(end_leases, context, with_jobs=True),
            weigh=lambda closing: len(closing.ending.error or ""),
            max_items=max_coalesced_items,
            max_in_flight=in_flight,
        ),
        verify=Coalescer(
            partial(verify_leases, context), max_items=max_coalesced_items, max_in_flight=in_flight
        ),
        read=Coalescer(
            partial(_read_jobs, context),
            max_items=min(max_coalesced_items, _MAX_READ_ITEMS),
            max_in_flight=in_flight,
        ),
        # Anybody may ask for readiness: one look at a time is for all who ask.
        read_version=Coalescer(partial(_read_version, context), max_in_flight=1),
    )


def _spec_bytes(spec: JobSpec) -> int:
    return len(spec.payload or "")


def _completing_bytes(completing: Completing) -> int:
    return len(completing.completion.result or "") + sum(map(_spec_bytes, completing.enqueue))


async def _complete_calls(
    context: Context, calls: Sequence[Sequence[Completing]]
) -> list[list[Settled | FencepostError]]:
    """Complete the items of many calls; each call is answered with those of its own."""
    given = iter(await complete_leases(context, [item for call in calls for item in call], with_jobs=False))
    return [list(islice(given, len(call))) for call in calls]


@retried
async def _read_version(context: Context, askers: Sequence[None]) -> list[str | FencepostError]:
    async with context.database.one_statement() as conn:
        version = await read_schema_version(conn)
    return [version for _ in askers]


@retried
async def _read_jobs(context: Context, job_ids: Sequence[str]) -> list[Job | FencepostError]:
    async with context.database.one_statement() as conn:
        jobs = await read_jobs(conn, sorted(set(job_ids)), retention=context.retention)
    return [jobs.get(job_id) or JobNotFound(job_id) for job_id in job_ids]
