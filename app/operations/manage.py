"""Cancel, redrive and edit one job: what people do with curl."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from app.domain.calls import Edit
from app.domain.errors import (
    AlreadyFinished,
    InvalidRequest,
    JobNotFound,
    NotEditable,
    NotRedrivable,
    Unavailable,
)
from app.domain.job import Job, JobState, Outcome
from app.domain.machine import Decision, Ending
from app.operations.context import Context
from app.operations.patience import LeaseBusy, patient
from app.operations.retries import retried
from app.store import endings, reads
from app.store import jobs as stored_jobs
from app.store.endings import EndedLease
from app.store.engine import Connection
from app.store.jobs import LockedJob, Placed

T = TypeVar("T")

# A job that moves between the look at one table and the next is looked for again.
_LOCK_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Cancelled:
    job: Job

    @property
    def is_requested(self) -> bool:
        """Whether the job runs on until its holder hears of it."""
        return self.job.state is JobState.RUNNING


async def cancel_job(context: Context, job_id: str, *, reason: str | None, force: bool) -> Cancelled:
    """Cancel a job, or ask its holder to stop; a forced cancel voids the lease at once.

    Raises JobNotFound, AlreadyFinished (unless it is cancelled already, which is the answer).
    """

    async def cancel(conn: Connection, locked: LockedJob) -> bool:
        if locked.state is JobState.CANCELLED:
            return False
        if locked.state.is_terminal:
            raise AlreadyFinished(job_id=job_id, job_state=locked.state.value)
        if locked.state is not JobState.RUNNING:
            await stored_jobs.cancel_waiting(
                conn, locked.token, error=_cancel_error(reason), version_step=int(force)
            )
            return True
        if force and not await endings.lock_leases(conn, [locked.token]):
            raise LeaseBusy
        await stored_jobs.request_cancel(conn, locked.token, reason=reason)
        if force:
            ending = Ending(Outcome.CANCELLED)
            decision = Decision(JobState.CANCELLED, locked.attempt)
            await endings.end_leases(conn, [EndedLease(locked.token, ending, decision, version_step=1)])
        return force

    is_finished, job = await _with_locked_job(context, job_id, cancel)
    if is_finished:
        context.signals.jobs_finished([job_id])
    return Cancelled(job)


def _cancel_error(reason: str | None) -> str | None:
    if reason is None:
        return None
    return json.dumps({"type": "cancelled", "message": reason, "details": None})


async def redrive_job(context: Context, job_id: str, *, run_at: datetime | None) -> Job:
    """Make a dead or cancelled job ready again, or scheduled when ``run_at`` is ahead.

    Raises JobNotFound, NotRedrivable.
    """

    async def redrive(conn: Connection, locked: LockedJob) -> Placed:
        if locked.state not in (JobState.DEAD, JobState.CANCELLED):
            raise NotRedrivable(job_id=job_id, job_state=locked.state.value)
        return await stored_jobs.redrive_job(conn, locked.token, run_at=run_at)

    placed, job = await _with_locked_job(context, job_id, redrive)
    _announce(context, placed)
    return job


async def edit_job(context: Context, job_id: str, edit: Edit) -> Job:
    """Change a job that waits. Raises JobNotFound, NotEditable, InvalidRequest (no attempt would be left)."""

    async def change(conn: Connection, locked: LockedJob) -> Placed:
        if locked.state not in (JobState.SCHEDULED, JobState.READY):
            raise NotEditable(job_id=job_id, job_state=locked.state.value)
        if edit.max_attempts is not None and edit.max_attempts <= locked.attempt:
            raise InvalidRequest(
                f"{locked.attempt} attempts are used already; more must be allowed",
                pointer="/max_attempts",
            )
        return await stored_jobs.edit_job(conn, locked.token, edit)

    placed, job = await _with_locked_job(context, job_id, change)
    _announce(context, placed)
    return job


def _announce(context: Context, placed: Placed) -> None:
    if placed.is_due:
        context.heads.placed(placed.queue)
        context.signals.jobs_ready({placed.queue: 1})
    else:
        context.signals.job_scheduled(placed.due_in_seconds)


@patient
@retried
async def _with_locked_job(
    context: Context, job_id: str, write: Callable[[Connection, LockedJob], Awaitable[T]]
) -> tuple[T, Job]:
    """Lock the job where it is, write, and return what was written with the job as it is then."""
    for _ in range(_LOCK_ROUNDS):
        async with context.database.begin() as conn:
            locked = await stored_jobs.lock_job(conn, job_id, retention=context.retention)
            if locked is None:
                known = await reads.read_jobs(conn, [job_id], retention=context.retention)
                if not known:
                    raise JobNotFound(job_id)
                if known[job_id].state is JobState.RUNNING:
                    raise LeaseBusy
                continue
            written = await write(conn, locked)
            after = await reads.read_jobs(conn, [job_id], retention=context.retention)
            return written, after[job_id]
    raise Unavailable("The job keeps moving.")
