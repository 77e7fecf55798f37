"""Jobs in any legal state, made by the verbs themselves, and the clock moved by hand.

submit, lease, complete, fail, release    one call of a verb, with what the test does not care about filled in
job_in                                    a job in a given state
read, records                             what a test looks at
elapse, elapse_since_finish               time, without waiting for it
"""

import json
from collections.abc import Sequence

import msgspec
from sqlalchemy import text

from app.domain.calls import Completion, Heartbeat, LeaseRequest, RenewedLease
from app.domain.errors import FencepostError
from app.domain.idempotency import fingerprint, submit_fingerprint
from app.domain.job import Attempt, Job, JobSpec, JobState, LeasedJob, Outcome, Token
from app.domain.machine import Ending
from app.operations import manage
from app.operations.context import Context
from app.operations.heartbeat import heartbeat_leases
from app.operations.lease import Wish, lease_jobs, lease_jobs_once
from app.operations.settle import Closing, Completing, Settled, complete_leases, end_leases
from app.operations.submit import Submitted, submit_jobs
from app.operations.upkeep import examine
from app.store import reads

UNKNOWN_ID = "0193a3f0-5c00-7000-8000-000000000000"


def keyed(spec: JobSpec, key: str, *, caller: str = "anonymous") -> JobSpec:
    """Return the spec as it comes with an Idempotency-Key header."""
    spec = msgspec.structs.replace(spec, caller=caller, idempotency_key=key)
    return msgspec.structs.replace(spec, fingerprint=submit_fingerprint(spec))


async def submit(context: Context, *specs: JobSpec) -> list[Job]:
    """Submit specs that must all be accepted."""
    return [accepted(answer).job for answer in await submit_jobs(context, specs or [JobSpec(kind="test")])]


def accepted(answer: Submitted | FencepostError) -> Submitted:
    assert isinstance(answer, Submitted), answer
    return answer


def wish(
    *queues: str,
    worker_id: str = "worker",
    max_jobs: int = 1,
    lease_seconds: float = 60.0,
    request_id: str | None = None,
) -> Wish:
    names = queues or ("default",)
    request = None
    if request_id is not None:
        members = {"queues": sorted(names), "max_jobs": max_jobs, "lease_seconds": lease_seconds}
        request = LeaseRequest(worker_id, request_id, fingerprint("lease", members, opaque={}), lease_seconds)
    return Wish(worker_id, names, max_jobs, lease_seconds, request)


async def lease_once(context: Context, asked: Wish) -> list[LeasedJob]:
    """Lease by one poll with a request_id; raise its refusal."""
    grants = await lease_jobs_once(context, [asked])
    if grants.refused:
        raise grants.refused[0]
    return grants.jobs.get(0, [])


async def lease(
    context: Context, *queues: str, max_jobs: int = 1, worker_id: str = "worker", lease_seconds: float = 60.0
) -> list[LeasedJob]:
    """Lease by one poll."""
    asked = wish(*queues, max_jobs=max_jobs, worker_id=worker_id, lease_seconds=lease_seconds)
    return (await lease_jobs(context, [asked])).jobs.get(0, [])


async def leased(context: Context, spec: JobSpec | None = None, *, lease_seconds: float = 60.0) -> LeasedJob:
    """Submit a job to an empty queue and lease it."""
    [job] = await submit(context, spec or JobSpec(kind="test"))
    [granted] = await lease(context, job.queue, lease_seconds=lease_seconds)
    assert granted.id == job.id
    return granted


def token_of(job: LeasedJob) -> Token:
    return Token(job.id, job.lease_version)


def completing(token: Token, result: str | None = None, enqueue: Sequence[JobSpec] = ()) -> Completing:
    kinds = {"enqueue": [spec.kind for spec in enqueue]}
    meaning = fingerprint("complete", kinds, opaque={"result": result})
    return Completing(Completion(token, result, meaning), tuple(enqueue))


def failing(
    token: Token,
    message: str = "broken",
    *,
    retryable: bool = True,
    retry_after_seconds: float | None = None,
) -> Closing:
    error = json.dumps({"type": None, "message": message, "details": None}, separators=(",", ":"))
    ending = Ending(Outcome.FAILED, error=error, retryable=retryable, retry_after_seconds=retry_after_seconds)
    members = {"retryable": retryable, "retry_after_seconds": retry_after_seconds}
    return Closing(token, ending, fingerprint("fail", members, opaque={"error": error}))


def releasing(token: Token, *, delay_seconds: float = 0.0, reason: str | None = None) -> Closing:
    error = None
    if reason is not None:
        error = json.dumps({"type": "released", "message": reason, "details": None}, separators=(",", ":"))
    ending = Ending(Outcome.RELEASED, error=error, delay_seconds=delay_seconds)
    members = {"delay_seconds": delay_seconds, "reason": reason}
    return Closing(token, ending, fingerprint("release", members, opaque={}))


async def complete(
    context: Context, token: Token, *, result: str | None = None, enqueue: Sequence[JobSpec] = ()
) -> Settled | FencepostError:
    [answer] = await complete_leases(context, [completing(token, result, enqueue)], with_jobs=True)
    return answer


async def end(context: Context, *closings: Closing) -> list[Settled | FencepostError]:
    return await end_leases(context, closings, with_jobs=True)


async def fail(
    context: Context,
    token: Token,
    message: str = "broken",
    *,
    retryable: bool = True,
    retry_after_seconds: float | None = None,
) -> Settled | FencepostError:
    [answer] = await end(
        context, failing(token, message, retryable=retryable, retry_after_seconds=retry_after_seconds)
    )
    return answer


async def release(context: Context, token: Token, *, delay_seconds: float = 0.0) -> Settled | FencepostError:
    [answer] = await end(context, releasing(token, delay_seconds=delay_seconds))
    return answer


async def heartbeat(context: Context, beat: Heartbeat) -> RenewedLease | FencepostError:
    [answer] = await heartbeat_leases(context, [beat])
    return answer


def settled(answer: Settled | FencepostError) -> Settled:
    assert isinstance(answer, Settled), answer
    return answer


def settled_job(answer: Settled | FencepostError) -> Job:
    job = settled(answer).job
    assert job is not None
    return job


async def job_in(context: Context, state: JobState, spec: JobSpec | None = None) -> Job:
    """Make a job in ``state``; its queue must have no other ready job."""
    spec = spec or JobSpec(kind="test")
    if state is JobState.SCHEDULED:
        return (await submit(context, msgspec.structs.replace(spec, delay_seconds=3600.0)))[0]
    if state is JobState.READY:
        return (await submit(context, spec))[0]
    if state is JobState.CANCELLED:
        [job] = await submit(context, spec)
        return (await manage.cancel_job(context, job.id, reason="not wanted", force=False)).job
    token = token_of(await leased(context, spec))
    if state is JobState.SUCCEEDED:
        settled(await complete(context, token, result='"done"'))
    elif state is JobState.DEAD:
        settled(await fail(context, token, retryable=False))
    return await read(context, token.job_id)


async def read(context: Context, job_id: str) -> Job:
    async with context.database.one_statement() as conn:
        return (await reads.read_jobs(conn, [job_id], retention=context.retention))[job_id]


async def records(context: Context, job_id: str) -> list[Attempt]:
    """Return every grant of the job."""
    async with context.database.one_statement() as conn:
        return await reads.read_attempts(conn, job_id, after_version=0, max_rows=200)


async def assert_healthy(context: Context) -> None:
    """Hold the invariants that ``fencepost doctor`` looks for."""
    assert await examine(context) == []


async def elapse(context: Context, seconds: float) -> None:
    """Let time go by for unfinished jobs: every time that is stored of them moves into the past.

    The database's clock cannot be turned, so the rows are: what was due, expiring or remembered at T is
    so at T - seconds. Ids, created_at and finished jobs stay as they are.
    """
    shifts = {
        "ready": ["run_at"],
        "scheduled": ["run_at"],
        "leases": ["granted_at", "expires_at", "stalls_at", "deadline_at"],
        "lease_requests": ["expires_at"],
    }
    async with context.database.begin() as conn:
        for table, columns in shifts.items():
            moved = ", ".join(f"{name} = {name} - make_interval(secs => :seconds)" for name in columns)
            await conn.execute(text(f"UPDATE fencepost.{table} SET {moved}"), {"seconds": seconds})  # noqa: S608
        await conn.execute(
            text("""
                UPDATE fencepost.jobs j SET run_at = run_at - make_interval(secs => :seconds)
                WHERE NOT EXISTS (SELECT FROM fencepost.finished f WHERE f.job_id = j.job_id)
            """),
            {"seconds": seconds},
        )


async def elapse_since_finish(context: Context, seconds: float) -> None:
    """Let every finished job have finished so much earlier; the partition of that day must be there."""
    earlier = "UPDATE fencepost.finished SET finished_at = finished_at - make_interval(secs => :seconds)"
    async with context.database.begin() as conn:
        await conn.execute(text(earlier), {"seconds": seconds})


async def count_rows(context: Context, table: str) -> int:
    async with context.database.one_statement() as conn:
        count: int = (await conn.execute(text(f"SELECT count(*) FROM fencepost.{table}")))[0][0]  # noqa: S608
    return count
