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

from tests.support import announcements
from tests.support.raw_calls import RawCall
from tests.support.server import WITHOUT_NETS
from tests.support.sessions import listener_pids, read_sessions
from tests.support.sockets import sockets_of, wait_for_sockets
from tests.support.standing_rules import Caller, Json, Start, until
from tests.support.stopwatch import until_quick

# When wake-ups fail, polls look by themselves after five seconds. A busy machine needs some more.
FALLBACK_SECONDS = 15.0
# Mostly long enough for a call on the loopback to be parked.
SETTLE_SECONDS = 0.05
POLLS = 150


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_poller_that_has_gone_is_not_handed_the_job(
    start: Start, database_url: str, *, is_seen: bool
) -> None:
    """BO-05; also when the job comes before the cut is seen, and the dead may hold it for an instant."""
    caller = start(program=WITHOUT_NETS)
    for round_number in range(15):
        before = sockets_of(caller.server)
        own = [f"own-{round_number}-{number}" for number in range(10)]
        async with announcements.parked(database_url, *own):
            dead = [
                await RawCall.lease(caller.url, worker_id=each, queues=["default", each], wait_seconds=30)
                for each in own
            ]
        for call in dead:
            call.cut()
        if is_seen:
            await asyncio.to_thread(wait_for_sockets, caller.server, before)
        alive = asyncio.create_task(caller.lease_one(worker_id="alive", wait_seconds=30))
        await asyncio.sleep(SETTLE_SECONDS if is_seen else 0.0)
        job = await caller.submit()
        leased = await alive
        assert (leased["id"], leased["attempt"]) == (job["id"], 1)
        if is_seen:
            assert leased["lease_version"] == 1
        await caller.complete(leased)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_job_between_the_look_and_the_wait_is_not_missed(start: Start, replicas: int) -> None:
    """BO-06; a poll that misses its job is answered with nothing in the end."""
    worker = start(program=WITHOUT_NETS)
    producer = start(program=WITHOUT_NETS) if replicas == 2 else worker
    for _ in range(500):
        offset = random.uniform(-0.005, 0.005)
        poll = asyncio.create_task(_after(max(offset, 0.0), worker))
        submitted = asyncio.create_task(_submit_after(max(-offset, 0.0), producer))
        job, _ = await submitted
        leased, _ = await poll
        assert leased["id"] == job["id"]


async def _after(seconds: float, worker: Caller) -> tuple[Json, float]:
    await asyncio.sleep(seconds)
    leased = await worker.lease_one(wait_seconds=30, lease_seconds=3600)
    return leased, time.monotonic()


async def _submit_after(seconds: float, producer: Caller) -> tuple[Json, float]:
    await asyncio.sleep(seconds)
    job = await producer.submit()
    return job, time.monotonic()


async def test_parked_polls_hold_no_connections(start: Start, database_url: str) -> None:
    """BO-42."""
    caller = start()
    held = await caller.submit(queue="held")
    lease = await caller.lease_one(queues=["held"], lease_seconds=3600)
    parked = await _park_many(caller, database_url, prefix="cut")
    seconds = []
    idle: set[int] = set()
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
            seconds.append(time.monotonic() - began)
        if number % 10 == 0:
            sessions = read_sessions(database_url)
            assert len(sessions) <= 4 + 1
            assert sum(session.is_listening for session in sessions) == 1
            was_idle, idle = idle, {each.pid for each in sessions if each.state == "idle in transaction"}
            assert not was_idle & {
                each.pid for each in sessions if each.pid in idle and each.state_seconds > 1
            }
    # Where a connection was missing each of them would wait for one.
    assert statistics.median(seconds) < 1
    for poll in parked:
        poll.cut()
    parked = await _park_many(caller, database_url, prefix="answered")
    jobs = [{"kind": "case", "queue": f"answered-{number}"} for number in range(POLLS)]
    answer = await caller.call("POST", "/v1/jobs/batch", {"jobs": jobs})
    for poll, item in zip(parked, answer.json()["jobs"], strict=True):
        status, _, body = await poll.answer()
        assert (status, [leased["id"] for leased in body["jobs"]]) == (200, [item["job"]["id"]])


async def _park_many(caller: Caller, database_url: str, *, prefix: str) -> list[RawCall]:
    """Return many parked polls, each for a queue of its own."""
    queues = [f"{prefix}-{number}" for number in range(POLLS)]
    async with announcements.parked(database_url, *queues):
        return [await RawCall.lease(caller.url, queues=[queue], wait_seconds=30) for queue in queues]


async def test_a_listening_connection_that_is_closed_is_replaced(start: Start, database_url: str) -> None:
    """BO-43, closed."""
    worker, listener_pid, producer = await _worker_and_producer(start, database_url)
    polls = [asyncio.create_task(worker.lease(wait_seconds=30)) for _ in range(8)]
    await asyncio.sleep(SETTLE_SECONDS)
    process = psutil.Process(worker.server.process.pid)
    cpu_before = sum(process.cpu_times()[:2])
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [listener_pid])
    began = time.monotonic()
    first = await producer.submit()
    assert await _first_ids(polls) == [first["id"]]

    async def listens_again() -> bool:
        return len(listener_pids(database_url) - {listener_pid}) == 2

    await until(listens_again)
    await _expect_to_be_woken(polls, producer)
    assert sum(process.cpu_times()[:2]) - cpu_before < 0.5 * (time.monotonic() - began) + 0.3

    async def is_told() -> bool:
        told = ("the listening connection is gone", "loop listener works again")
        return all(text in worker.server.log for text in told)

    await until(is_told)
    await _answer_all(producer, polls)


@pytest.mark.skipif(
    "FENCEPOST_TEST_DATABASE_URL" in os.environ, reason="only a process of this machine can be frozen"
)
async def test_a_listening_connection_that_falls_silent_is_replaced(start: Start, database_url: str) -> None:
    """BO-43, silent: its backend is frozen, so that the socket stays open and nothing comes."""
    worker, listener_pid, producer = await _worker_and_producer(start, database_url)
    polls = [asyncio.create_task(worker.lease(wait_seconds=30)) for _ in range(8)]
    await asyncio.sleep(SETTLE_SECONDS)
    os.kill(listener_pid, signal.SIGSTOP)
    try:
        first = await producer.submit()
        assert await _first_ids(polls) == [first["id"]]

        async def listens_again() -> bool:
            return len(listener_pids(database_url) - {listener_pid}) == 2

        await until(listens_again)
        await _expect_to_be_woken(polls, producer)
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


async def _expect_to_be_woken(polls: "list[asyncio.Task[list[Json]]]", producer: Caller) -> None:
    """Expect that a job finds its poll sooner than polls look by themselves."""
    for watch in until_quick(seconds=1):
        # What is waited for was said at once, since it may have been forgotten meanwhile.
        await asyncio.sleep(SETTLE_SECONDS)
        job = await producer.submit()
        with watch:
            assert await _first_ids(polls) == [job["id"]]


async def _first_ids(polls: "list[asyncio.Task[list[Json]]]") -> list[str]:
    """Take the first poll that is answered out of the list; return the ids of its jobs."""
    done, _ = await asyncio.wait(polls, timeout=FALLBACK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1, "no poll was answered in time"
    answered = done.pop()
    polls.remove(answered)
    return [leased["id"] for leased in answered.result()]


async def _answer_all(producer: Caller, polls: "list[asyncio.Task[list[Json]]]") -> None:
    await producer.submit_many(len(polls))
    assert [len(leased) for leased in await asyncio.gather(*polls)] == [1] * len(polls)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_poll_is_woken_within_fifty_milliseconds(start: Start, replicas: int) -> None:
    """Within fifty more than calls take just now: the machine may have other work to do."""
    worker = start()
    producer = start() if replicas == 2 else worker
    woken_seconds, call_seconds = [], []
    for _ in range(25):
        poll = asyncio.create_task(_after(0.0, worker))
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        _, submitted_at = await _submit_after(0.0, producer)
        _, leased_at = await poll
        woken_seconds.append(leased_at - submitted_at)
        call_seconds.append(submitted_at - began)
    assert statistics.median(woken_seconds) < 0.05 + 2 * statistics.median(call_seconds)


async def test_a_job_due_in_three_seconds_is_leasable_on_time(start: Start) -> None:
    worker, other = start(), start()
    delays = [2.3, 2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 3.0]
    for number, delay in enumerate(reversed(delays)):
        await (worker if number % 2 else other).submit(delay_seconds=delay, payload=delay)
    late_seconds = []
    for _ in delays:
        leased = await worker.lease_one()
        granted_at = datetime.fromisoformat((await worker.attempts(leased["id"]))[0]["granted_at"])
        late_seconds.append((granted_at - datetime.fromisoformat(leased["run_at"])).total_seconds())
    assert min(late_seconds) >= 0
    # A promoter that only looked once a second would be half a second late.
    assert statistics.median(late_seconds) < 0.3


async def test_a_poll_repeated_after_a_cut_connection_is_granted_once(start: Start) -> None:
    caller = start()
    call = {"worker_id": "w", "request_id": "r1", "wait_seconds": 30, "lease_seconds": 600}
    cut = await RawCall.lease(caller.url, **call)
    await asyncio.sleep(SETTLE_SECONDS)
    cut.cut()
    twins = [asyncio.create_task((await RawCall.lease(caller.url, **call)).answer()) for _ in range(2)]
    # Whichever arrived first is replaced by the other, long before its time is over.
    (replaced,), (repeated,) = await asyncio.wait(
        twins, timeout=FALLBACK_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    status, _, body = replaced.result()
    assert (status, body["jobs"]) == (200, [])
    job = await caller.submit()
    _, _, body = await repeated
    assert [(leased["id"], leased["lease_version"]) for leased in body["jobs"]] == [(job["id"], 1)]


async def test_an_answer_that_was_lost_is_given_again_under_its_request_id(start: Start) -> None:
    caller = start()
    jobs = await caller.submit_many(3)
    call: Json = {"worker_id": "w", "request_id": "r1", "max_jobs": 2, "lease_seconds": 600}
    # It is on its way when the connection is cut.
    await (await RawCall.lease(caller.url, **call)).answer()
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
        before = sockets_of(caller.server)
        leaver = await RawCall.lease(caller.url, worker_id="leaver", wait_seconds=20, **repeatable)

        async def is_claiming() -> bool:
            return any(session.wait_event_type == "Lock" for session in read_sessions(database_url))

        await until(is_claiming)
        leaver.cut()
        await asyncio.to_thread(wait_for_sockets, caller.server, before)
    leased = await caller.lease_one(worker_id="stayer")
    assert (leased["id"], leased["attempt"]) == (job["id"], 1)
    outcomes = [attempt["outcome"] for attempt in await caller.attempts(job["id"])]
    assert outcomes == ["released", "running"]
