"""Random commands against the real store and a small model of it, compared as a whole after each.

The model keeps its own books: where every job is, its counters, what ended each version and by which call.
It takes from the database only what it cannot know, ids and instants, and holds each instant to the bounds
of the call that made it. Time goes by through ``factory.elapse``: the rows move into the past.

Stale calls of every kind come by themselves, since a holder call draws from all versions ever granted.
"""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from app.domain.calls import Edit, Heartbeat, JobFilter, RenewedLease
from app.domain.errors import FencepostError, IdempotencyKeyReused, LeaseLost
from app.domain.failure import clock_error
from app.domain.job import Backoff, BackoffType, Job, JobSpec, JobState, LeasedJob, Outcome, Parent, Token
from app.domain.retention import Retention
from app.operations import manage
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.heartbeat import verify_leases
from app.operations.settle import Closing, Completing, Settled, complete_leases
from app.operations.submit import Submitted, submit_jobs
from app.operations.upkeep import examine, promote_jobs
from app.store import listings, reads
from app.store.engine import Database
from tests.support import factory
from tests.support.signals import RecordedSignals

PROFILE = settings(
    max_examples=80,
    stateful_step_count=35,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

T = TypeVar("T")

REASONS = {
    Outcome.SUCCEEDED: "finished",
    Outcome.FAILED: "failed",
    Outcome.RELEASED: "released",
    Outcome.LEASE_EXPIRED: "expired",
    Outcome.STALLED: "stalled",
    Outcome.DEADLINE_EXCEEDED: "deadline_exceeded",
    Outcome.CANCELLED: "cancelled",
}


@dataclass
class Ended:
    """What ended a version; ``request`` is the holder's call, None for a clock and a forced cancel."""

    outcome: Outcome
    attempt: int
    request: Completing | Closing | None


@dataclass
class Held:
    """A lease as the model knows it."""

    worker_id: str
    lease_seconds: float
    expires_at: datetime
    stalls_at: datetime | None
    deadline_at: datetime | None
    progress: tuple[int, float | None, str | None] | None = None
    cancel_requested: bool = False
    cancel_reason: str | None = None


@dataclass
class ModelJob:
    id: str
    spec: JobSpec
    state: JobState
    run_at: datetime
    priority: int
    max_attempts: int
    attempt: int = 0
    version: int = 0
    held: Held | None = None
    result: str | None = None
    error: Any = None
    checkpoint: str | None = None
    previous: Any = None
    ended: dict[int, Ended] = field(default_factory=dict)

    def facts(self) -> tuple[object, ...]:
        lease = None
        if self.held is not None:
            lease = (
                self.held.worker_id,
                self.version,
                self.held.expires_at,
                self.held.deadline_at,
                self.held.progress,
                self.held.cancel_requested,
            )
        return (
            self.state,
            self.spec.queue,
            self.priority,
            self.run_at,
            self.attempt,
            self.max_attempts,
            self.version,
            self.result,
            self.error,
            self.checkpoint,
            self.spec.parent,
            self.spec.idempotency_key,
            self.state.is_terminal,
            lease,
        )


def stored_facts(job: Job) -> tuple[object, ...]:
    lease = None
    if job.lease is not None:
        progress = job.lease.progress
        lease = (
            job.lease.worker_id,
            job.lease.lease_version,
            job.lease.expires_at,
            job.lease.deadline_at,
            None if progress is None else (progress.seq, progress.percent, progress.message),
            job.lease.cancel_requested,
        )
    return (
        job.state,
        job.queue,
        job.priority,
        job.run_at,
        job.attempt,
        job.max_attempts,
        job.lease_version,
        job.result,
        None if job.error is None else json.loads(job.error),
        job.checkpoint,
        job.parent,
        job.idempotency_key,
        job.finished_at is not None,
        lease,
    )


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# Without jitter, so that the model can tell when a job is due.
NO_WAIT = Backoff(BackoffType.FIXED, base_seconds=0.0, jitter=0.0)
queues = st.sampled_from(["a", "a", "b"])
picks = st.integers(0, 10_000)
specs = st.builds(
    JobSpec,
    kind=st.just("test"),
    queue=queues,
    priority=st.sampled_from([0, 0, 1]),
    delay_seconds=st.sampled_from([None, None, 0.0, 20.0]),
    max_attempts=st.integers(1, 3),
    backoff=st.sampled_from([0.0, 15.0]).map(lambda base: Backoff(BackoffType.FIXED, base, jitter=0.0)),
    max_runtime_seconds=st.sampled_from([None, 30.0]),
    progress_timeout_seconds=st.sampled_from([None, 20.0]),
)


class World:
    """The real store, on one event loop."""

    def __init__(self, runner: asyncio.Runner, context: Context) -> None:
        self.runner = runner
        self.context = context

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)


class StateMachine(RuleBasedStateMachine):
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, ModelJob] = {}
        self.keys: dict[str, ModelJob] = {}
        self.tokens: list[Token] = []
        self.seen_versions: dict[str, int] = {}
        self.since = datetime.now(UTC)

    # Help.

    @property
    def context(self) -> Context:
        return self.world.context

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        self.since = datetime.now(UTC)
        return self.world.do(call)

    def assert_now(self, at: datetime, *, plus: float) -> None:
        """Hold that an instant was made by the last call, so many seconds ahead of it."""
        assert self.since + seconds(plus) <= at <= datetime.now(UTC) + seconds(plus)

    def pick_job(self, pick: int, *states: JobState) -> ModelJob:
        """Draw from the jobs in these states half of the time, else from all."""
        some = [job for job in self.jobs.values() if job.state in states]
        jobs = some if some and pick % 2 else list(self.jobs.values())
        return jobs[pick // 2 % len(jobs)]

    def pick_token(self, pick: int) -> Token:
        """Draw from the versions that are held two times of three, else from all that were ever granted."""
        held = [token for token in self.tokens if self.holder(token) is not None]
        tokens = held if held and pick % 3 else self.tokens
        return tokens[pick // 3 % len(tokens)]

    def holder(self, token: Token) -> ModelJob | None:
        job = self.jobs[token.job_id]
        return job if job.held is not None and job.version == token.lease_version else None

    def assert_lost(self, answer: object, token: Token) -> None:
        """Hold that a call was refused, with what ended its version."""
        assert isinstance(answer, LeaseLost), answer
        job = self.jobs[token.job_id]
        ended = job.ended.get(token.lease_version)
        assert answer.reason == ("unknown" if ended is None else REASONS[ended.outcome])
        assert (answer.presented_version, answer.current_version) == (token.lease_version, job.version)
        assert answer.job_state == job.state.value

    def add(self, stored: Job, spec: JobSpec) -> ModelJob:
        self.assert_now(stored.created_at, plus=0)
        delay = spec.delay_seconds or 0.0
        assert stored.run_at == (spec.run_at or stored.created_at + seconds(delay))
        job = ModelJob(
            id=stored.id,
            spec=spec,
            state=JobState.SCHEDULED if delay else JobState.READY,
            run_at=stored.run_at,
            priority=spec.priority,
            max_attempts=spec.max_attempts,
        )
        self.jobs[job.id] = job
        return job

    def end(
        self,
        job: ModelJob,
        outcome: Outcome,
        *,
        error: Any = None,
        request: Completing | Closing | None = None,
        wait_seconds: float | None = None,
        retryable: bool = True,
    ) -> None:
        """Move a running job on. ``wait_seconds`` None keeps the time at which it was due."""
        held = job.held
        assert held is not None
        job.ended[job.version] = Ended(outcome, job.attempt, request)
        job.previous = {"attempt": job.attempt, "outcome": outcome.value, "error": error}
        job.held = None
        if outcome is Outcome.RELEASED:
            job.attempt -= 1
        else:
            job.error = error
        if held.cancel_requested:
            if outcome is Outcome.RELEASED and held.cancel_reason is not None:
                job.error = {"type": "cancelled", "message": held.cancel_reason, "details": None}
            job.state = JobState.CANCELLED
        elif job.attempt >= job.max_attempts or not retryable:
            job.state = JobState.DEAD
        elif wait_seconds is None:
            job.state = JobState.READY
        else:
            job.state = JobState.SCHEDULED if wait_seconds else JobState.READY
            job.run_at = self.adopted_run_at(job, plus=wait_seconds)

    def adopted_run_at(self, job: ModelJob, *, plus: float) -> datetime:
        since = self.since
        at = self.world.do(factory.read(self.context, job.id)).run_at
        self.since = since
        self.assert_now(at, plus=plus)
        return at

    def adopt_stalls_at(self, job: ModelJob) -> None:
        assert job.held is not None
        timeout = job.spec.progress_timeout_seconds
        stalls_at = self.world.do(_stalls_at(self.context))[job.id]
        if timeout is None:
            assert stalls_at is None
        else:
            assert stalls_at is not None
            self.assert_now(stalls_at, plus=timeout)
        job.held.stalls_at = stalls_at

    # Produce.

    @initialize(several=st.lists(specs, min_size=2, max_size=5), max_jobs=st.integers(0, 2))
    def begin_with_some_jobs(self, several: list[JobSpec], max_jobs: int) -> None:
        self.world.do(_empty(self.context))
        for number, spec in enumerate(several):
            self.submit(spec, None, is_late=number % 2 == 1)
        if max_jobs:
            self.lease(("a", "b"), max_jobs, 20.0)

    @rule(spec=specs, key=st.sampled_from([None, None, "k1", "k2"]), is_late=st.booleans())
    def submit(self, spec: JobSpec, key: str | None, is_late: bool) -> None:
        if is_late and spec.delay_seconds is None:
            # Due before jobs that were created earlier.
            spec = msgspec.structs.replace(spec, run_at=datetime.now(UTC) - seconds(30))
        self.submit_exactly(spec if key is None else factory.keyed(spec, key))

    @precondition(lambda self: self.keys)
    @rule(pick=picks)
    def submit_again(self, pick: int) -> None:
        self.submit_exactly(list(self.keys.values())[pick % len(self.keys)].spec)

    def submit_exactly(self, spec: JobSpec) -> None:
        key = spec.idempotency_key
        [answer] = self.do(submit_jobs(self.context, [spec]))
        known = self.keys.get(key or "")
        if known is None:
            assert isinstance(answer, Submitted)
            assert answer.created
            job = self.add(answer.job, spec)
            if key is not None:
                self.keys[key] = job
        elif known.spec == spec:
            assert isinstance(answer, Submitted)
            assert (answer.created, answer.job.id) == (False, known.id)
            assert stored_facts(answer.job) == known.facts()
        else:
            assert isinstance(answer, IdempotencyKeyReused)
            assert answer.job_id == known.id

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, spec=specs)
    def submit_child(self, pick: int, spec: JobSpec) -> None:
        token = self.pick_token(pick)
        spec = msgspec.structs.replace(spec, parent=Parent(token.job_id, token.lease_version))
        [answer] = self.do(submit_jobs(self.context, [spec]))
        if self.holder(token) is None:
            self.assert_lost(answer, token)
        else:
            assert isinstance(answer, Submitted)
            self.add(answer.job, spec)

    # Work.

    @precondition(lambda self: any(job.state is JobState.READY for job in self.jobs.values()))
    @rule(
        names=st.sampled_from([("a",), ("b",), ("a", "b")]),
        max_jobs=st.sampled_from([1, 1, 2, 3]),
        lease_seconds=st.sampled_from([10.0, 20.0, 60.0]),
    )
    def lease(self, names: tuple[str, ...], max_jobs: int, lease_seconds: float) -> None:
        due = [job for job in self.jobs.values() if job.state is JobState.READY and job.spec.queue in names]
        expected = sorted(due, key=lambda job: (job.priority, job.run_at, job.id))[:max_jobs]
        granted = self.do(factory.lease(self.context, *names, max_jobs=max_jobs, lease_seconds=lease_seconds))
        assert [each.id for each in granted] == [job.id for job in expected]
        for each in granted:
            self.grant(self.jobs[each.id], each)

    def grant(self, job: ModelJob, granted: LeasedJob) -> None:
        assert granted.lease_version > job.version
        job.version = granted.lease_version
        job.attempt += 1
        job.state = JobState.RUNNING
        assert (granted.attempt, granted.max_attempts) == (job.attempt, job.max_attempts)
        assert granted.checkpoint == job.checkpoint
        assert (None if granted.previous is None else json.loads(granted.previous)) == job.previous
        runtime = job.spec.max_runtime_seconds
        self.assert_now(granted.lease_expires_at, plus=min(granted.lease_seconds, runtime or 1e6))
        if runtime is None:
            assert granted.deadline_at is None
        else:
            assert granted.deadline_at is not None
            self.assert_now(granted.deadline_at, plus=runtime)
        job.held = Held("worker", granted.lease_seconds, granted.lease_expires_at, None, granted.deadline_at)
        self.adopt_stalls_at(job)
        self.tokens.append(factory.token_of(granted))

    @precondition(lambda self: self.tokens)
    @rule(
        pick=picks,
        extend=st.sampled_from([None, 5.0, 100.0]),
        seq=st.sampled_from([None, 0, 1, 2]),
        checkpoint=st.sampled_from([None, '{"page": 1}', "2"]),
    )
    def heartbeat(self, pick: int, extend: float | None, seq: int | None, checkpoint: str | None) -> None:
        token = self.pick_token(pick)
        percent = None if seq is None else 10.0 * seq
        beat = Heartbeat(token, extend, seq, percent, None, checkpoint is not None, checkpoint)
        answer = self.do(factory.heartbeat(self.context, beat))
        job = self.holder(token)
        if job is None or job.held is None:
            self.assert_lost(answer, token)
            return
        assert isinstance(answer, RenewedLease)
        held = job.held
        assert answer.cancel_requested == held.cancel_requested
        assert answer.deadline_at == held.deadline_at
        if held.deadline_at is None or answer.lease_expires_at < held.deadline_at:
            self.assert_now(answer.lease_expires_at, plus=extend or held.lease_seconds)
        else:
            assert answer.lease_expires_at == held.deadline_at
            assert held.deadline_at <= datetime.now(UTC) + seconds(extend or held.lease_seconds)
        held.expires_at = answer.lease_expires_at
        if checkpoint is not None:
            job.checkpoint = checkpoint
        last = -1 if held.progress is None else held.progress[0]
        if seq is not None and seq >= last:
            held.progress = (seq, percent, None)
        if seq is not None and seq > last:
            self.adopt_stalls_at(job)

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def verify(self, pick: int) -> None:
        token = self.pick_token(pick)
        [answer] = self.do(verify_leases(self.context, [token]))
        if self.holder(token) is None:
            self.assert_lost(answer, token)
        else:
            assert answer is None

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, result=st.sampled_from([None, "1", "1.0"]), follow_ups=st.integers(0, 2))
    def complete(self, pick: int, result: str | None, follow_ups: int) -> None:
        token = self.pick_token(pick)
        parent = Parent(token.job_id, token.lease_version)
        children = [
            JobSpec(kind=f"follow-up {number}", queue="a", backoff=NO_WAIT, parent=parent)
            for number in range(follow_ups)
        ]
        self.settle(factory.completing(token, result, children))

    @precondition(lambda self: self.tokens)
    @rule(several=st.lists(picks, min_size=1, max_size=4), result=st.sampled_from([None, "1"]))
    def complete_many(self, several: list[int], result: str | None) -> None:
        """Complete in one transaction, as lease calls do: each item is answered as if it stood alone."""
        requests = [factory.completing(self.pick_token(pick), result) for pick in several]
        answers = self.do(complete_leases(self.context, requests, with_jobs=False))
        for request, answer in zip(requests, answers, strict=True):
            self.assert_settled(request, answer)

    @precondition(lambda self: self.tokens)
    @rule(
        pick=picks, retryable=st.booleans(), retry_after=st.sampled_from([None, None, 0.0, 25.0]), word=queues
    )
    def fail(self, pick: int, retryable: bool, retry_after: float | None, word: str) -> None:
        token = self.pick_token(pick)
        self.settle(factory.failing(token, word, retryable=retryable, retry_after_seconds=retry_after))

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, delay=st.sampled_from([0.0, 0.0, 15.0]), reason=st.sampled_from([None, "home"]))
    def release(self, pick: int, delay: float, reason: str | None) -> None:
        self.settle(factory.releasing(self.pick_token(pick), delay_seconds=delay, reason=reason))

    @precondition(lambda self: self.accepted_requests())
    @rule(pick=picks)
    def repeat_an_accepted_call(self, pick: int) -> None:
        requests = self.accepted_requests()
        self.settle(requests[pick % len(requests)])

    def accepted_requests(self) -> list[Completing | Closing]:
        return [
            ended.request
            for job in self.jobs.values()
            for ended in job.ended.values()
            if ended.request is not None
        ]

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, step=st.sampled_from([-1, 1, 2]))
    def complete_with_a_guessed_version(self, pick: int, step: int) -> None:
        token = self.pick_token(pick)
        self.settle(factory.completing(Token(token.job_id, token.lease_version + step), '"guessed"'))

    def settle(self, request: Completing | Closing) -> None:
        answer: Settled | FencepostError
        if isinstance(request, Completing):
            [answer] = self.do(complete_leases(self.context, [request], with_jobs=True))
        else:
            [answer] = self.do(factory.end(self.context, request))
        self.assert_settled(request, answer)
        if isinstance(answer, Settled):
            assert answer.job is not None
            assert stored_facts(answer.job) == self.jobs[request.token.job_id].facts()

    def assert_settled(self, request: Completing | Closing, answer: Settled | FencepostError) -> None:
        """Hold an answer against the model, and let the model do what the call did."""
        token = request.token
        job = self.jobs[token.job_id]
        if self.holder(token) is None:
            ended = job.ended.get(token.lease_version)
            if ended is None or ended.request is None or ended.request.fingerprint != request.fingerprint:
                self.assert_lost(answer, token)
                return
            assert isinstance(answer, Settled)
            assert answer.is_replay
        else:
            assert isinstance(answer, Settled)
            assert not answer.is_replay
            self.end_by(job, request)
        assert answer.state is job.state

    def end_by(self, job: ModelJob, request: Completing | Closing) -> None:
        if isinstance(request, Completing):
            job.ended[job.version] = Ended(Outcome.SUCCEEDED, job.attempt, request)
            job.state, job.held, job.result = JobState.SUCCEEDED, None, request.completion.result
            self.adopt_follow_ups(job, request)
            return
        ending = request.ending
        error = None if ending.error is None else json.loads(ending.error)
        if ending.outcome is Outcome.RELEASED:
            wait = ending.delay_seconds or None
        else:
            wait = ending.retry_after_seconds
            wait = job.spec.backoff.base_seconds if wait is None else wait
        self.end(
            job, ending.outcome, error=error, request=request, wait_seconds=wait, retryable=ending.retryable
        )

    def adopt_follow_ups(self, job: ModelJob, request: Completing) -> None:
        stored = self.world.do(_children(self.context, job.id))
        new = [each for each in stored if each.id not in self.jobs]
        assert [each.kind for each in new] == [spec.kind for spec in request.enqueue]
        for each, spec in zip(new, request.enqueue, strict=True):
            self.add(each, spec)

    # People.

    @precondition(lambda self: self.jobs)
    @rule(
        pick=picks,
        force=st.sampled_from([False, False, True]),
        reason=st.sampled_from([None, "why", "because"]),
    )
    def cancel(self, pick: int, force: bool, reason: str | None) -> None:
        job = self.pick_job(pick, JobState.RUNNING)
        answer = self.do(_outcome(manage.cancel_job(self.context, job.id, reason=reason, force=force)))
        if job.state in (JobState.SUCCEEDED, JobState.DEAD):
            assert answer == "already_finished"
            return
        assert isinstance(answer, manage.Cancelled)
        if job.held is not None:
            job.held.cancel_requested = True
            job.held.cancel_reason = job.held.cancel_reason or reason
            if force:
                previous_error, kept_reason = job.error, job.held.cancel_reason
                self.end(job, Outcome.CANCELLED)
                job.version += 1
                job.error = previous_error
                if kept_reason is not None:
                    job.error = {"type": "cancelled", "message": kept_reason, "details": None}
        elif job.state is not JobState.CANCELLED:
            job.state = JobState.CANCELLED
            job.version += force
            if reason is not None:
                job.error = {"type": "cancelled", "message": reason, "details": None}
        assert answer.is_requested == (job.state is JobState.RUNNING)
        assert stored_facts(answer.job) == job.facts()

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, ahead=st.sampled_from([None, None, -5.0, 20.0]))
    def redrive(self, pick: int, ahead: float | None) -> None:
        job = self.pick_job(pick, JobState.DEAD, JobState.CANCELLED)
        run_at = None if ahead is None else datetime.now(UTC) + seconds(ahead)
        answer = self.do(_outcome(manage.redrive_job(self.context, job.id, run_at=run_at)))
        if job.state not in (JobState.DEAD, JobState.CANCELLED):
            assert answer == "not_redrivable"
            return
        assert isinstance(answer, Job)
        job.attempt = 0
        job.version += 1
        job.state = JobState.SCHEDULED if (ahead or 0) > 0 else JobState.READY
        if run_at is None:
            self.assert_now(answer.run_at, plus=0)
        job.run_at = answer.run_at if run_at is None else run_at
        assert stored_facts(answer) == job.facts()

    @precondition(lambda self: self.jobs)
    @rule(
        pick=picks,
        priority=st.sampled_from([None, -1, 2]),
        ahead=st.sampled_from([None, None, -5.0, 20.0]),
        max_attempts=st.sampled_from([None, None, 1, 2, 5]),
    )
    def edit(self, pick: int, priority: int | None, ahead: float | None, max_attempts: int | None) -> None:
        job = self.pick_job(pick, JobState.READY, JobState.SCHEDULED)
        run_at = None if ahead is None else datetime.now(UTC) + seconds(ahead)
        before = datetime.now(UTC)
        answer = self.do(
            _outcome(manage.edit_job(self.context, job.id, Edit(priority, run_at, max_attempts)))
        )
        if job.state not in (JobState.SCHEDULED, JobState.READY):
            assert answer == "not_editable"
            return
        if max_attempts is not None and max_attempts <= job.attempt:
            assert answer == "invalid_request"
            return
        assert isinstance(answer, Job)
        job.priority = job.priority if priority is None else priority
        job.max_attempts = max_attempts or job.max_attempts
        job.run_at = run_at or job.run_at
        # An edit looks at the time: a job that is due and was not promoted yet becomes ready.
        assert answer.state is (JobState.READY if job.run_at <= before else JobState.SCHEDULED)
        job.state = answer.state
        assert stored_facts(answer) == job.facts()

    # Time.

    @precondition(lambda self: self.jobs)
    @rule(passed=st.sampled_from([10.0, 20.0, 60.0]), loops=st.sampled_from(["", "", "e", "p", "ep"]))
    def let_time_pass(self, passed: float, loops: str) -> None:
        self.do(factory.elapse(self.context, passed))
        for job in self.jobs.values():
            if job.state.is_terminal:
                continue
            job.run_at -= seconds(passed)
            if job.held is not None:
                job.held.expires_at -= seconds(passed)
                if job.held.stalls_at is not None:
                    job.held.stalls_at -= seconds(passed)
                if job.held.deadline_at is not None:
                    job.held.deadline_at -= seconds(passed)

        if "e" in loops:
            self.expire()
        if "p" in loops:
            self.promote()

    @precondition(lambda self: any(job.held for job in self.jobs.values()))
    @rule()
    def expire(self) -> None:
        ended = [(job, outcome) for job in self.jobs.values() if (outcome := _run_out(job)) is not None]
        count = self.do(expire_leases(self.context))
        assert count == len(ended)
        for job, outcome in ended:
            wait = None if outcome is Outcome.LEASE_EXPIRED else job.spec.backoff.base_seconds
            self.end(job, outcome, error=json.loads(clock_error(outcome)), wait_seconds=wait)

    @precondition(lambda self: any(job.state is JobState.SCHEDULED for job in self.jobs.values()))
    @rule()
    def promote(self) -> None:
        now = datetime.now(UTC)
        self.do(promote_jobs(self.context))
        for job in self.jobs.values():
            if job.state is JobState.SCHEDULED and job.run_at <= now:
                job.state = JobState.READY

    # What always holds.

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        stored = self.world.do(_read_all(self.context, list(self.jobs)))
        assert {job_id: stored_facts(job) for job_id, job in stored.items()} == {
            job_id: job.facts() for job_id, job in self.jobs.items()
        }
        assert self.world.do(_stalls_at(self.context)) == {
            job.id: job.held.stalls_at for job in self.jobs.values() if job.held is not None
        }
        for job in stored.values():
            assert job.attempt <= job.max_attempts
            assert job.lease_version >= self.seen_versions.get(job.id, 0)
            self.seen_versions[job.id] = job.lease_version

    @invariant()
    def the_schema_is_healthy(self) -> None:
        assert self.world.do(examine(self.context)) == []

    def teardown(self) -> None:
        for job in self.jobs.values():
            told = [
                (record.lease_version, record.attempt, record.outcome)
                for record in self.world.do(factory.records(self.context, job.id))
            ]
            known = [(version, each.attempt, each.outcome) for version, each in job.ended.items()]
            if job.held is not None:
                known.append((job.version, job.attempt, Outcome.RUNNING))
            assert told == sorted(known)


def _run_out(job: ModelJob) -> Outcome | None:
    """Return the clock of a running job that ran out first, by the model's own reckoning."""
    if job.held is None:
        return None
    clocks = [
        (job.held.deadline_at, Outcome.DEADLINE_EXCEEDED),
        (job.held.stalls_at, Outcome.STALLED),
        (job.held.expires_at, Outcome.LEASE_EXPIRED),
    ]
    now = datetime.now(UTC)
    run_out = [(at, number) for number, (at, _) in enumerate(clocks) if at is not None and at <= now]
    return clocks[min(run_out)[1]][1] if run_out else None


async def _outcome(call: Coroutine[Any, Any, T]) -> T | str:
    """Return the answer of a call, or the code of its refusal."""
    try:
        return await call
    except FencepostError as refusal:
        return refusal.code


async def _read_all(context: Context, job_ids: list[str]) -> dict[str, Job]:
    async with context.database.one_statement() as conn:
        return await reads.read_jobs(conn, job_ids, retention=context.retention)


async def _children(context: Context, parent_id: str) -> list[Job]:
    """Return the children of a job in the order of their ids."""
    async with context.database.one_statement() as conn:
        ids = await listings.list_job_ids(
            conn,
            JobFilter(parent_id=parent_id),
            retention=context.retention,
            max_rows=200,
            before_id=None,
        )
        jobs = await reads.read_jobs(conn, ids, retention=context.retention)
    return [jobs[job_id] for job_id in sorted(ids)]


async def _stalls_at(context: Context) -> dict[str, datetime | None]:
    """Return when each running job will have stalled, which no answer tells."""
    async with context.database.one_statement() as conn:
        rows = await conn.execute(text("SELECT job_id, stalls_at FROM fencepost.leases"))
        return {row.job_id: row.stalls_at for row in rows}


async def _empty(context: Context) -> None:
    tables = (
        "jobs",
        "ready",
        "scheduled",
        "leases",
        "finished",
        "attempts",
        "idempotency_keys",
        "lease_requests",
    )
    async with context.database.begin() as conn:
        for table in tables:
            await conn.execute(text(f"DELETE FROM fencepost.{table}"))  # noqa: S608


@pytest.mark.slow
def test_the_store_does_what_the_model_does(database_url: str) -> None:
    with asyncio.Runner() as runner:
        database = Database(database_url, pool_size=1)
        context = Context(database, Retention(), RecordedSignals())
        StateMachine.world = World(runner, context)
        try:
            run_state_machine_as_test(StateMachine, settings=PROFILE)
        finally:
            runner.run(database.close())
