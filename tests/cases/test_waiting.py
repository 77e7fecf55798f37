"""Parked polls, seen from outside: who is woken, how fast, and what becomes of those who went away."""

import asyncio
import os
import random
import signal
import statistics
import time
from datetime import datetime

import psutil
import psycopg
import pytest

from tests.support.raw_calls import RawCall
from tests.support.sessions import listener_pids, read_sessions
from tests.support.standing_rules import Caller, Json, Start, until

# What the polls' fallback promises when wake-ups fail.
FALLBACK_SECONDS = 5.0
# Long enough for a call on the loopback to be parked, and for its end to be seen.
SETTLE_SECONDS = 0.05


@pytest.mark.slow
@pytest.mark.parametrize("gone_seconds", [SETTLE_SECONDS, 0.0])
async def test_a_poller_that_has_gone_is_not_handed_the_job(start: Start, gone_seconds: float) -> None:
    """BO-05; also with no time between the cut and the job, when the dead may hold it for an instant."""
    caller = start()
    for _ in range(15):
        dead = [await RawCall.lease(caller.url, worker_id=f"d{n}", wait_seconds=30) for n in range(10)]
        await asyncio.sleep(SETTLE_SECONDS)
        for call in dead:
            call.cut()
        await asyncio.sleep(gone_seconds)
        alive = asyncio.create_task(caller.lease_one(worker_id="alive", wait_seconds=30))
        await asyncio.sleep(gone_seconds)
        job = await caller.submit()
        leased = await asyncio.wait_for(alive, 1)
        assert (leased["id"], leased["attempt"]) == (job["id"], 1)
        if gone_seconds:
            assert leased["lease_version"] == 1
        await caller.complete(leased)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_job_between_the_look_and_the_wait_is_not_missed(start: Start, replicas: int) -> None:
    """BO-06."""
    worker = start()
    producer = start() if replicas == 2 else worker
    slowest = 0.0
    for _ in range(500):
        offset = random.uniform(-0.005, 0.005)
        poll = asyncio.create_task(_after(max(offset, 0.0), worker))
        submitted = asyncio.create_task(_submit_after(max(-offset, 0.0), producer))
        job, submitted_at = await submitted
        leased, leased_at = await poll
        assert leased["id"] == job["id"]
        slowest = max(slowest, leased_at - submitted_at)
    assert slowest < 1.5


async def _after(seconds: float, worker: Caller) -> tuple[Json, float]:
    await asyncio.sleep(seconds)
    leased = await worker.lease_one(wait_seconds=10, lease_seconds=600)
    return leased, time.monotonic()


async def _submit_after(seconds: float, producer: Caller) -> tuple[Json, float]:
    await asyncio.sleep(seconds)
    job = await producer.submit()
    return job, time.monotonic()


@pytest.mark.slow
async def test_parked_polls_hold_no_connections(start: Start, database_url: str) -> None:
    """BO-42."""
    caller = start()
    held = await caller.submit(queue="held")
    lease = await caller.lease_one(queues=["held"])
    parked = [await RawCall.lease(caller.url, queues=[f"q{n}"], wait_seconds=30) for n in range(150)]
    for number in range(50):
        for call in (
            caller.call("POST", "/v1/jobs", {"kind": "case", "queue": "other"}),
            caller.call("GET", f"/v1/jobs/{held['id']}"),
            caller.call("GET", "/v1/jobs"),
            caller.say("heartbeat", lease),
            caller.call("GET", "/readyz"),
        ):
            began = time.monotonic()
            answer = await call
            assert answer.status_code in (200, 201)
            assert time.monotonic() - began < 1
        if number % 10 == 0:
            sessions = read_sessions(database_url)
            assert len(sessions) <= 4 + 1
            assert sum(session.is_listening for session in sessions) == 1
            assert not [s for s in sessions if s.state == "idle in transaction" and s.state_seconds > 1]
    for number, poll in enumerate(parked):
        job = await caller.submit(queue=f"q{number}")
        status, _, body = await asyncio.wait_for(poll.answer(), 1)
        assert (status, [leased["id"] for leased in body["jobs"]]) == (200, [job["id"]])


@pytest.mark.slow
async def test_a_listening_connection_that_is_closed_is_replaced(start: Start, database_url: str) -> None:
    """BO-43, closed."""
    worker, listener_pid, producer = await _worker_and_producer(start, database_url)
    polls = [asyncio.create_task(worker.lease(wait_seconds=30)) for _ in range(5)]
    await asyncio.sleep(SETTLE_SECONDS)
    process = psutil.Process(worker.server.process.pid)
    cpu_before = sum(process.cpu_times()[:2])
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [listener_pid])
    began = time.monotonic()
    first = await producer.submit()
    assert await _first_ids(polls, timeout_seconds=FALLBACK_SECONDS) == [first["id"]]

    async def listens_again() -> bool:
        return len(listener_pids(database_url) - {listener_pid}) == 2

    await until(listens_again)
    # It says at once what it waits for, since that may have been forgotten meanwhile.
    await asyncio.sleep(SETTLE_SECONDS)
    second = await producer.submit()
    assert await _first_ids(polls, timeout_seconds=1) == [second["id"]]
    assert sum(process.cpu_times()[:2]) - cpu_before < 0.5 * (time.monotonic() - began) + 0.3
    assert "the listening connection is gone" in worker.server.log
    assert "loop listener works again" in worker.server.log
    await _answer_all(producer, polls)


@pytest.mark.slow
@pytest.mark.skipif(
    "FENCEPOST_TEST_DATABASE_URL" in os.environ, reason="only a process of this machine can be frozen"
)
async def test_a_listening_connection_that_falls_silent_is_replaced(start: Start, database_url: str) -> None:
    """BO-43, silent: its backend is frozen, so that the socket stays open and nothing comes."""
    worker, listener_pid, producer = await _worker_and_producer(start, database_url)
    polls = [asyncio.create_task(worker.lease(wait_seconds=30)) for _ in range(5)]
    await asyncio.sleep(SETTLE_SECONDS)
    os.kill(listener_pid, signal.SIGSTOP)
    try:
        first = await producer.submit()
        assert await _first_ids(polls, timeout_seconds=FALLBACK_SECONDS) == [first["id"]]

        async def listens_again() -> bool:
            return len(listener_pids(database_url) - {listener_pid}) == 2

        await until(listens_again, timeout_seconds=30)
        await asyncio.sleep(SETTLE_SECONDS)
        second = await producer.submit()
        assert await _first_ids(polls, timeout_seconds=1) == [second["id"]]
    finally:
        os.kill(listener_pid, signal.SIGCONT)
    await _answer_all(producer, polls)


async def _worker_and_producer(start: Start, database_url: str) -> tuple[Caller, int, Caller]:
    """Start two replicas; the number is the backend that listens for the first one."""
    worker = start()

    async def listens() -> bool:
        return len(listener_pids(database_url)) == 1

    await until(listens)
    (listener_pid,) = listener_pids(database_url)
    return worker, listener_pid, start()


async def _first_ids(polls: "list[asyncio.Task[list[Json]]]", *, timeout_seconds: float) -> list[str]:
    """Take the first poll that is answered out of the list; return the ids of its jobs."""
    done, _ = await asyncio.wait(polls, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1, "no poll was answered in time"
    answered = done.pop()
    polls.remove(answered)
    return [leased["id"] for leased in answered.result()]


async def _answer_all(producer: Caller, polls: "list[asyncio.Task[list[Json]]]") -> None:
    await producer.submit_many(len(polls))
    assert [len(leased) for leased in await asyncio.gather(*polls)] == [1] * len(polls)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_poll_is_woken_within_fifty_milliseconds(start: Start, replicas: int) -> None:
    worker = start()
    producer = start() if replicas == 2 else worker
    seconds = []
    for _ in range(25):
        poll = asyncio.create_task(_after(0.0, worker))
        await asyncio.sleep(SETTLE_SECONDS)
        _, submitted_at = await _submit_after(0.0, producer)
        _, leased_at = await poll
        seconds.append(leased_at - submitted_at)
    assert statistics.median(seconds) < 0.05


@pytest.mark.slow
async def test_a_job_due_in_three_seconds_is_leasable_on_time(start: Start) -> None:
    worker, other = start(), start()
    delays = [2.3, 2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 3.0]
    began = time.monotonic()
    for number, delay in enumerate(reversed(delays)):
        await (worker if number % 2 else other).submit(delay_seconds=delay, payload=delay)
    submitting_seconds = time.monotonic() - began
    late_seconds = []
    for delay in delays:
        leased = await worker.lease_one(wait_seconds=10)
        passed_seconds = time.monotonic() - began
        assert leased["payload"] == delay
        assert delay < passed_seconds < delay + 0.1 + submitting_seconds
        granted_at = datetime.fromisoformat((await worker.attempts(leased["id"]))[0]["granted_at"])
        late_seconds.append((granted_at - datetime.fromisoformat(leased["run_at"])).total_seconds())
    assert min(late_seconds) >= 0
    assert max(late_seconds) < 0.1


async def test_a_poll_repeated_after_a_cut_connection_is_granted_once(start: Start) -> None:
    caller = start()
    call = {"worker_id": "w", "request_id": "r1", "wait_seconds": 10, "lease_seconds": 30}
    cut = await RawCall.lease(caller.url, **call)
    await asyncio.sleep(SETTLE_SECONDS)
    cut.cut()
    replaced = await RawCall.lease(caller.url, **call)
    await asyncio.sleep(SETTLE_SECONDS)
    repeated = await RawCall.lease(caller.url, **call)
    status, _, body = await asyncio.wait_for(replaced.answer(), 1)
    assert (status, body["jobs"]) == (200, [])
    job = await caller.submit()
    _, _, body = await asyncio.wait_for(repeated.answer(), 1)
    assert [(leased["id"], leased["lease_version"]) for leased in body["jobs"]] == [(job["id"], 1)]


async def test_an_answer_that_was_lost_is_given_again_under_its_request_id(start: Start) -> None:
    caller = start()
    jobs = await caller.submit_many(3)
    call: Json = {"worker_id": "w", "request_id": "r1", "max_jobs": 2, "lease_seconds": 30}
    lost = await RawCall.lease(caller.url, **call)
    await asyncio.sleep(SETTLE_SECONDS)
    lost.cut()
    first = await caller.lease(**call)
    assert [(leased["id"], leased["lease_version"]) for leased in first] == [
        (job["id"], 1) for job in jobs[:2]
    ]
    assert await caller.lease(**call) == first
    await caller.complete(first[0])
    assert await caller.lease(**call) == first[1:]
    other = await caller.call("POST", "/v1/leases", {"queues": ["default"], **call, "max_jobs": 3})
    assert (other.status_code, other.json()["code"]) == (422, "invalid_request")
    assert [leased["id"] for leased in await caller.lease(worker_id="other", max_jobs=5)] == [jobs[2]["id"]]


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_what_is_granted_to_a_client_that_goes_away_meanwhile_is_given_back(
    start: Start, database_url: str, request_id: str | None
) -> None:
    caller = start()
    job = await caller.submit()
    repeatable = {} if request_id is None else {"request_id": request_id}
    with psycopg.connect(database_url) as blocker:
        # The claim stands in front of its INSERT until this transaction ends.
        blocker.execute("LOCK TABLE fencepost.leases IN SHARE MODE")
        leaver = await RawCall.lease(caller.url, worker_id="leaver", wait_seconds=20, **repeatable)

        async def is_claiming() -> bool:
            return any(session.wait_event_type == "Lock" for session in read_sessions(database_url))

        await until(is_claiming)
        leaver.cut()
        await asyncio.sleep(SETTLE_SECONDS)
    leased = await caller.lease_one(worker_id="stayer", wait_seconds=2)
    assert (leased["id"], leased["attempt"]) == (job["id"], 1)
    outcomes = [attempt["outcome"] for attempt in await caller.attempts(job["id"])]
    assert outcomes == ["released", "running"]
