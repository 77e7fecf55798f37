"""Submit jobs: at most one job a key, no child without its parent's lease, ids in input order."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec

from app.domain.errors import FencepostError, IdempotencyKeyReused, LeaseLost, Unavailable
from app.domain.job import Job, JobSpec, JobState, Token
from app.domain.retention import Retention
from app.operations.context import Context
from app.operations.patience import patient
from app.operations.refusals import explain
from app.operations.retries import retried
from app.store import bulk, reads, submissions
from app.store.bulk import COPY_FROM
from app.store.columns import metadata_text
from app.store.engine import Connection
from app.store.leases import Place
from app.store.submissions import InsertedJob, TakenKey

# A key can change hands only when its time is over; more rounds than these mean something is wrong.
_KEY_ROUNDS = 5

Key = tuple[str, str]


class Submitted(msgspec.Struct, frozen=True):
    """``created`` False: the key was known, and ``job`` is that job as it is now."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which keys this call may use (with their new job's id), and which belong to other jobs."""

    claimed: dict[Key, str]
    taken: dict[Key, TakenKey]


@retried
async def submit_jobs(context: Context, specs: Sequence[JobSpec]) -> list[Submitted | FencepostError]:
    """Create jobs in one transaction; each spec is answered or refused by itself."""
    async with _transaction(context, specs) as conn:
        answers, inserted = await _submit(conn, specs, retention=context.retention)
    announce_inserted(context, [(specs[index], row) for index, row in inserted.items()])
    return answers


@patient
@retried
async def submit_batch(context: Context, specs: Sequence[JobSpec]) -> list[Submitted]:
    """Create all of the jobs or none; raises the first refusal, its pointer naming the item."""
    async with _transaction(context, specs) as conn:
        answers, inserted = await _submit(conn, specs, retention=context.retention)
        submitted = []
        for index, answer in enumerate(answers):
            if isinstance(answer, FencepostError):
                answer.pointer = f"/jobs/{index}{_refused_member(answer)}"
                raise answer
            submitted.append(answer)
    announce_inserted(context, [(specs[index], row) for index, row in inserted.items()])
    return submitted


def _transaction(context: Context, specs: Sequence[JobSpec]) -> AbstractAsyncContextManager[Connection]:
    """Open what these specs need: a few without a key or a parent are written by one statement."""
    is_plain = len(specs) < COPY_FROM and all(
        spec.idempotency_key is None and spec.parent is None for spec in specs
    )
    return context.database.one_write() if is_plain else context.database.begin()


def _refused_member(refusal: FencepostError) -> str:
    return "/parent" if isinstance(refusal, LeaseLost) else "/idempotency_key"


def announce_inserted(context: Context, inserted: Sequence[tuple[JobSpec, InsertedJob]]) -> None:
    """Tell who waits of new jobs; after the commit."""
    counts: dict[str, int] = {}
    for spec, row in inserted:
        if row.is_due:
            counts[spec.queue] = counts.get(spec.queue, 0) + 1
            context.heads.placed(spec.queue, Place(spec.priority, row.run_at, row.job_id))
    if counts:
        context.signals.jobs_ready(counts)
    waits = [row.due_in_seconds for _, row in inserted if not row.is_due]
    if waits:
        context.signals.job_scheduled(min(waits))


async def _submit(
    conn: Connection, specs: Sequence[JobSpec], *, retention: Retention
) -> tuple[list[Submitted | FencepostError], dict[int, InsertedJob]]:
    lost = await _lost_parents(conn, specs, retention=retention)
    leaders = _leaders(specs, lost)
    keys = await _resolve_keys(conn, specs, leaders, lost, retention=retention)
    new = [
        (index, spec, keys.claimed.get(key) if (key := _key(spec)) else None)
        for index, spec in enumerate(specs)
        if (
            index not in lost
            if (key := _key(spec)) is None
            else key in keys.claimed and leaders[key] == index
        )
    ]
    inserted = await insert_jobs(conn, new) if new else {}
    known_ids = {taken.job_id for taken in keys.taken.values()}
    known = await reads.read_jobs(conn, sorted(known_ids), retention=retention)
    created = {index: new_job(specs[index], row) for index, row in inserted.items()}
    answers: list[Submitted | FencepostError] = []
    for index, spec in enumerate(specs):
        key = _key(spec)
        if index in created:
            answers.append(Submitted(created[index], created=True))
        elif key in keys.taken:
            answers.append(_replay(spec, keys.taken[key].fingerprint, known[keys.taken[key].job_id]))
        elif key in keys.claimed:
            leader = leaders[key]
            answers.append(_replay(spec, specs[leader].fingerprint, created[leader]))
        else:
            answers.append(lost[index])
    return answers, inserted


async def insert_jobs(
    conn: Connection, specs: Sequence[tuple[int, JobSpec, str | None]]
) -> dict[int, InsertedJob]:
    """Insert (position, spec, id of a claimed key or None), by whichever way is quicker for so many."""
    insert = bulk.copy_jobs if len(specs) >= COPY_FROM else submissions.insert_jobs
    return await insert(conn, specs)


def _replay(spec: JobSpec, fingerprint: bytes | None, job: Job) -> Submitted | FencepostError:
    if spec.fingerprint != fingerprint:
        return IdempotencyKeyReused(job_id=job.id)
    return Submitted(job, created=False)


def _key(spec: JobSpec) -> Key | None:
    return None if spec.idempotency_key is None else (spec.caller, spec.idempotency_key)


async def _lost_parents(
    conn: Connection, specs: Sequence[JobSpec], *, retention: Retention
) -> dict[int, FencepostError]:
    """Hold the parents' leases until the commit; return a refusal for each spec whose parent is lost."""
    tokens = {
        index: Token(spec.parent.job_id, spec.parent.lease_version)
        for index, spec in enumerate(specs)
        if spec.parent is not None
    }
    if not tokens:
        return {}
    held = await submissions.lock_parents(conn, list(tokens.values()))
    lost = {index: token for index, token in tokens.items() if token not in held}
    explanations = await explain(conn, list(set(lost.values())), retention=retention)
    return {index: explanations[token].refusal_of_child for index, token in lost.items()}


def _leaders(specs: Sequence[JobSpec], lost: dict[int, FencepostError]) -> dict[Key, int]:
    """Return for each key the spec that would create its job: the first whose parent is held."""
    leaders: dict[Key, int] = {}
    for index, spec in enumerate(specs):
        key = _key(spec)
        if key is not None and (key not in leaders or (leaders[key] in lost and index not in lost)):
            leaders[key] = index
    return leaders


async def _resolve_keys(
    conn: Connection,
    specs: Sequence[JobSpec],
    leaders: dict[Key, int],
    lost: dict[int, FencepostError],
    *,
    retention: Retention,
) -> _Keys:
    """Claim the keys that are free, and read what the others belong to.

    A key whose spec may not create a job (its parent is lost) is only read: a known key is answered
    before the parent's lease counts, a refused request never consumes its key.
    """
    keys = _Keys({}, {})
    unresolved = set(leaders)
    for _ in range(_KEY_ROUNDS):
        claimable = [key for key in unresolved if leaders[key] not in lost]
        if claimable:
            pairs = [(leaders[key], specs[leaders[key]]) for key in claimable]
            keys.claimed.update(await submissions.claim_keys(conn, pairs))
            unresolved -= keys.claimed.keys()
        if not unresolved:
            return keys
        found = await submissions.read_keys(conn, sorted(unresolved), retention=retention)
        keys.taken.update({key: taken for key, taken in found.items() if taken.is_kept})
        over = {key: taken for key, taken in found.items() if not taken.is_kept}
        if over:
            await submissions.forget_keys(conn, over)
        unresolved = {key for key in unresolved - keys.taken.keys() if leaders[key] not in lost}
        if not unresolved:
            return keys
    raise Unavailable("An idempotency key keeps changing hands.")


def new_job(spec: JobSpec, row: InsertedJob) -> Job:
    """Return the job that was just created, without reading it back."""
    return Job(
        id=row.job_id,
        queue=spec.queue,
        kind=spec.kind,
        state=JobState.READY if row.is_due else JobState.SCHEDULED,
        priority=spec.priority,
        payload=spec.payload,
        metadata=metadata_text(spec.metadata),
        run_at=row.run_at,
        created_at=row.created_at,
        finished_at=None,
        attempt=0,
        max_attempts=spec.max_attempts,
        backoff=spec.backoff,
        max_runtime_seconds=spec.max_runtime_seconds,
        progress_timeout_seconds=spec.progress_timeout_seconds,
        lease_version=0,
        lease=None,
        result=None,
        error=None,
        checkpoint=None,
        parent=spec.parent,
        idempotency_key=spec.idempotency_key,
    )
