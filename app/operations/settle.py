"""Complete, fail and release: what a holder says at the end, accepted once, repeatable for ever after.

Each is fenced by (job_id, lease_version). A call that finds its version ended is a repeat when the record
of that attempt carries the same fingerprint; then it is answered, and nothing changes. Anything else
is 409 lease_lost, and nothing changes either. A lease that is locked is neither: LeaseBusy.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from app.domain.calls import Completion
from app.domain.errors import FencepostError
from app.domain.job import Job, JobSpec, JobState, Token
from app.domain.machine import Ending, decide, is_repeat
from app.operations.context import Context
from app.operations.refusals import explain
from app.operations.retries import retried
from app.operations.rounds import MAX_JOBS_A_ROUND, rounds
from app.operations.submit import announce_inserted, insert_jobs
from app.store import endings, leases, reads
from app.store.endings import EndedLease, Moved
from app.store.engine import Connection
from app.store.submissions import InsertedJob


class Completing(msgspec.Struct, frozen=True):
    """``enqueue`` are the follow-up jobs, created with the completion or not at all."""

    completion: Completion
    enqueue: tuple[JobSpec, ...] = ()

    @property
    def token(self) -> Token:
        return self.completion.token

    @property
    def fingerprint(self) -> bytes:
        return self.completion.fingerprint


class Closing(msgspec.Struct, frozen=True):
    """A fail or a release; ``fingerprint`` is None where the service itself gives a lease back."""

    token: Token
    ending: Ending
    fingerprint: bytes | None


# COMPLETE_LEASES compares nothing pairwise.
MAX_COMPLETED_A_ROUND = 1000

R = TypeVar("R", Completing, Closing)


class Settled(msgspec.Struct, frozen=True):
    """``job`` is None when the caller did not ask for it; ``is_replay`` True when nothing changed."""

    state: JobState
    is_replay: bool
    job: Job | None


@dataclass(slots=True)
class _Effects:
    """What to tell after the commit."""

    moved: list[Moved] = field(default_factory=list)
    finished_ids: list[str] = field(default_factory=list)
    inserted: list[tuple[JobSpec, InsertedJob]] = field(default_factory=list)

    def announce(self, context: Context) -> None:
        announce_moves(context, self.moved)
        announce_inserted(context, self.inserted)
        if self.finished_ids:
            context.signals.jobs_finished(self.finished_ids)


def announce_moves(context: Context, moved: Sequence[Moved]) -> None:
    """Tell who waits of jobs whose attempt ended; after the commit."""
    counts: dict[str, int] = {}
    for move in moved:
        if move.state is JobState.READY:
            counts[move.queue] = counts.get(move.queue, 0) + 1
            context.heads.placed(move.queue)
    if counts:
        context.signals.jobs_ready(counts)
    waits = [move.due_in_seconds for move in moved if move.due_in_seconds is not None]
    if waits:
        context.signals.job_scheduled(min(waits))
    finished_ids = [move.job_id for move in moved if move.state.is_terminal]
    if finished_ids:
        context.signals.jobs_finished(finished_ids)


@retried
async def complete_leases(
    context: Context, requests: Sequence[Completing], *, with_jobs: bool
) -> list[Settled | FencepostError]:
    """Record success under the fence, follow-up jobs with it; each item is answered by itself."""
    effects = _Effects()

    async def write(conn: Connection, batch: Sequence[Completing]) -> dict[str, JobState]:
        done = await leases.complete_leases(conn, [request.completion for request in batch])
        effects.finished_ids += done
        children = [spec for request in batch if request.token.job_id in done for spec in request.enqueue]
        if children:
            # Positions go on from round to round, so that ids within the transaction keep their order.
            start = len(effects.inserted)
            rows = await insert_jobs(
                conn, [(start + index, spec, None) for index, spec in enumerate(children)]
            )
            effects.inserted += [(spec, rows[start + index]) for index, spec in enumerate(children)]
        return dict.fromkeys(done, JobState.SUCCEEDED)

    is_plain = not any(request.enqueue for request in requests)
    answers = await _settle(
        context,
        requests,
        write,
        with_jobs=with_jobs,
        max_jobs=MAX_COMPLETED_A_ROUND,
        is_one_statement=is_plain,
    )
    effects.announce(context)
    return answers


@retried
async def end_leases(
    context: Context, requests: Sequence[Closing], *, with_jobs: bool
) -> list[Settled | FencepostError]:
    """Fail or release under the fence: the machine decides, the store writes."""
    effects = _Effects()

    async def write(conn: Connection, batch: Sequence[Closing]) -> dict[str, JobState]:
        locked = await endings.lock_leases(conn, [request.token for request in batch])
        ended = []
        for request in batch:
            lease = locked.get(request.token.job_id)
            if lease is not None:
                decision = decide(
                    request.ending,
                    attempt=lease.attempt,
                    max_attempts=lease.max_attempts,
                    cancel_requested=lease.cancel_requested,
                    backoff=lease.backoff,
                    roll=random.random(),
                )
                ended.append(EndedLease(request.token, request.ending, decision, request.fingerprint))
        moved = await endings.end_leases(conn, ended) if ended else []
        effects.moved += moved
        return {move.job_id: move.state for move in moved}

    answers = await _settle(context, requests, write, with_jobs=with_jobs)
    effects.announce(context)
    return answers


async def _settle(
    context: Context,
    requests: Sequence[R],
    write: Callable[[Connection, Sequence[R]], Awaitable[dict[str, JobState]]],
    *,
    with_jobs: bool,
    max_jobs: int = MAX_JOBS_A_ROUND,
    is_one_statement: bool = False,
) -> list[Settled | FencepostError]:
    """``is_one_statement`` tells that ``write`` is, so that it needs no transaction around it."""
    answers: dict[int, Settled | FencepostError] = {}
    turns = list(rounds([request.token.job_id for request in requests], max_jobs=max_jobs))
    database = context.database
    async with database.one_write() if is_one_statement and len(turns) == 1 else database.begin() as conn:
        for indexes in turns:
            states = await write(conn, [requests[index] for index in indexes])
            jobs = {}
            if with_jobs:
                jobs = await reads.read_jobs(conn, list(states), retention=context.retention)
            missing = [requests[i].token for i in indexes if requests[i].token.job_id not in states]
            explanations = await explain(conn, missing, retention=context.retention, with_payload=with_jobs)
            for index in indexes:
                token = requests[index].token
                if token.job_id in states:
                    answers[index] = Settled(
                        states[token.job_id], is_replay=False, job=jobs.get(token.job_id)
                    )
                    continue
                known = explanations[token]
                is_known = is_repeat(known.record, fingerprint=requests[index].fingerprint)
                # A job that still runs was read before the commit that the record was read after.
                if is_known and known.job is not None and known.held_job is None:
                    answers[index] = Settled(known.job.state, is_replay=True, job=known.job)
                else:
                    answers[index] = known.refusal
    return [answers[index] for index in range(len(requests))]
