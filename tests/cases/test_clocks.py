"""Replicas whose wall clocks are wrong, or jump: the database's clock decides and shows everything."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.server import START_SECONDS, ServerProcess
from tests.support.standing_rules import Caller, Seen, Start, until
from tests.support.wall_clocks import WallClock

OFFSET_SECONDS = 600
# What a busy machine may need between the database's now() and the test's look at it.
TOLERANCE_SECONDS = 10.0

StartPair = Callable[..., tuple[Caller, Caller]]


@pytest.fixture(name="database_now")
def _database_now(database_url: str) -> Iterator[Callable[[], datetime]]:
    with psycopg.connect(database_url, autocommit=True) as connection:

        def now() -> datetime:
            [(read_at,)] = connection.execute("SELECT now()").fetchall()
            return _utc(read_at)

        yield now


@pytest.fixture(name="is_now")
def _is_now(database_now: Callable[[], datetime]) -> Callable[..., bool]:
    """Tell whether an answered time is the database's now, or so many seconds after it."""

    def is_now(text: str, *, after_seconds: float = 0) -> bool:
        expected = database_now() + timedelta(seconds=after_seconds)
        return abs((_time(text) - expected).total_seconds()) < TOLERANCE_SECONDS

    return is_now


@pytest.fixture(name="start_pair")
async def _start_pair(start: Start, tmp_path: Path) -> StartPair:
    """Start two replicas, the first one ten minutes ahead, the second one behind."""

    def start_pair(**variables: object) -> tuple[Caller, Caller]:
        ahead, behind = (
            start(
                environ=WallClock(tmp_path / f"clock{offset:+d}", offset_seconds=offset).environ, **variables
            )
            for offset in (OFFSET_SECONDS, -OFFSET_SECONDS)
        )
        return ahead, behind

    return start_pair


async def test_the_clocks_of_these_replicas_are_really_wrong(
    start_pair: StartPair, database_now: Callable[[], datetime]
) -> None:
    """Without this the other tests would show nothing."""
    for caller, offset in zip(start_pair(), (OFFSET_SECONDS, -OFFSET_SECONDS), strict=True):
        assert abs((await _wall_clock(caller) - database_now()).total_seconds() - offset) < TOLERANCE_SECONDS


async def test_every_time_in_an_answer_is_the_databases(
    start_pair: StartPair, is_now: Callable[..., bool]
) -> None:
    ahead, behind = start_pair()
    for producer, worker in ((ahead, behind), (behind, ahead)):
        job = await producer.submit(max_runtime_seconds=300)
        assert is_now(job["created_at"])
        assert is_now(job["run_at"])
        delayed = await producer.submit(queue="later", delay_seconds=100)
        assert _seconds_between(delayed["created_at"], delayed["run_at"]) == 100
        assert delayed["state"] == "scheduled"

        answer = await worker.call("POST", "/v1/leases", {"worker_id": "w", "queues": ["default"]})
        [leased] = answer.json()["jobs"]
        assert is_now(answer.json()["server_time"])
        assert is_now(leased["lease_expires_at"], after_seconds=60)
        assert is_now(leased["deadline_at"], after_seconds=300)
        empty = await worker.call("POST", "/v1/leases", {"worker_id": "w", "queues": ["default"]})
        assert is_now(empty.json()["server_time"])

        beat = (await producer.say("heartbeat", leased, extend_seconds=90)).json()
        assert is_now(beat["lease_expires_at"], after_seconds=90)
        assert beat["deadline_at"] == leased["deadline_at"]
        [held] = (await producer.call("GET", "/v1/leases?worker_id=w")).json()["leases"]
        assert held["expires_at"] == beat["lease_expires_at"]

        failed = (
            await worker.say("fail", leased, error={"message": "later"}, retry_after_seconds=200)
        ).json()
        assert is_now(failed["run_at"], after_seconds=200)
        [attempt] = await producer.attempts(job["id"])
        assert is_now(attempt["granted_at"])
        assert is_now(attempt["ended_at"])
        cancelled = await worker.call("POST", f"/v1/jobs/{job['id']}/cancel")
        assert is_now(cancelled.json()["finished_at"])


async def test_the_first_answer_of_a_replica_shows_the_databases_time(
    database_url: str,
    database_now: Callable[[], datetime],
    is_now: Callable[..., bool],
    tmp_path: Path,
) -> None:
    clock = WallClock(tmp_path / "clock", offset_seconds=OFFSET_SECONDS)
    with psycopg.connect(database_url) as connection:
        # No pass of the promoter, which reads the clock, can succeed.
        connection.execute("LOCK TABLE fencepost.scheduled IN ACCESS EXCLUSIVE MODE")
        server = ServerProcess(
            {"database_url": database_url}, log_path=tmp_path / "early.log", environ=clock.environ
        )
        try:
            async with Caller(server.url, Seen(), server=server) as caller:
                await until(_is_answering(caller), timeout_seconds=START_SECONDS)
                empty = await caller.call("POST", "/v1/leases", {"worker_id": "w", "queues": ["empty"]})
                assert is_now(empty.json()["server_time"])
                connection.rollback()
                server.wait_until_ready()
                ready = (await caller.call("GET", "/readyz")).json()
                shown = [at for loop in ready["loops"].values() if (at := loop["last_success_at"])]
                # Some of them have succeeded a while ago, and one is the reaper's.
                assert max(map(_time, shown)) - database_now() < timedelta(seconds=TOLERANCE_SECONDS)
        finally:
            server.end()


async def test_ids_sort_by_creation_whichever_replica_made_them(start_pair: StartPair) -> None:
    pair = start_pair()
    created = [await pair[number % 2].submit(queue="order") for number in range(20)]
    ids = [job["id"] for job in created]
    assert sorted(ids) == ids
    for caller in pair:
        assert [job["id"] async for job in caller.pages(queue="order")] == ids[::-1]
        after, before = created[5]["created_at"], created[15]["created_at"]
        between = [job["id"] async for job in caller.pages(created_after=after, created_before=before)]
        assert between == ids[5:15][::-1]
        # Of equal priority the oldest is granted first.
        assert (await caller.lease_one(queues=["order"]))["id"] == ids[pair.index(caller)]


async def test_a_job_is_granted_when_the_database_says_that_it_is_due(
    start_pair: StartPair, database_now: Callable[[], datetime]
) -> None:
    ahead, behind = start_pair()
    for producer, worker in ((ahead, behind), (behind, ahead), (ahead, ahead), (behind, behind)):
        at_a_time = {"run_at": (database_now() + timedelta(seconds=2)).isoformat()}
        for members in (at_a_time, {"delay_seconds": 1.5}):
            job = await producer.submit(**members)
            leased = await worker.lease_one(wait_seconds=20)
            granted_at = (await producer.job(job["id"]))["lease"]["granted_at"]
            assert leased["id"] == job["id"]
            assert 0 <= _seconds_between(job["run_at"], granted_at) < TOLERANCE_SECONDS
        backoff = {"type": "fixed", "base_seconds": 1, "jitter": 0}
        job = await producer.submit(queue="failing", backoff=backoff)
        first = await worker.lease_one(queues=["failing"])
        failed = (await worker.say("fail", first, error={"message": "again"})).json()
        again = await producer.lease_one(queues=["failing"], wait_seconds=20)
        [attempt, _] = await worker.attempts(job["id"])
        assert _seconds_between(attempt["ended_at"], failed["run_at"]) == pytest.approx(1, abs=0.01)
        granted_at = (await worker.job(job["id"]))["lease"]["granted_at"]
        assert 0 <= _seconds_between(failed["run_at"], granted_at) < TOLERANCE_SECONDS
        assert again["attempt"] == 2


async def test_a_lease_ends_when_the_database_says_so(start_pair: StartPair) -> None:
    pair = start_pair(reaper_interval_seconds=0.1)
    kept = []
    for caller in pair:
        await caller.submit(
            queue="kept", max_attempts=1, max_runtime_seconds=300, progress_timeout_seconds=300
        )
        kept.append(await caller.lease_one(queues=["kept"], lease_seconds=300))
    clocks: list[tuple[str, dict[str, Any], int]] = [
        ("lease_expired", {}, 1),
        ("deadline_exceeded", {"max_runtime_seconds": 1}, 60),
        ("stalled", {"progress_timeout_seconds": 1}, 60),
    ]
    # Both reapers have looked at every lease many times when these three are back.
    for holder, other in (pair, pair[::-1]):
        for outcome, members, lease_seconds in clocks:
            job = await holder.submit(queue="lost", backoff={"type": "fixed", "base_seconds": 0}, **members)
            await holder.lease_one(queues=["lost"], lease_seconds=lease_seconds)
            again = await other.lease_one(queues=["lost"], wait_seconds=20)
            assert (again["id"], again["attempt"]) == (job["id"], 2)
            ended = (await holder.attempts(job["id"]))[0]
            assert ended["outcome"] == outcome
            assert 1 <= _seconds_between(ended["granted_at"], ended["ended_at"]) < TOLERANCE_SECONDS
            await holder.complete(again)
    for lease in kept:
        assert [(await caller.say("verify", lease)).status_code for caller in pair] == [204, 204]


async def test_a_wait_lasts_as_long_as_it_was_asked_for(start_pair: StartPair) -> None:
    pair = start_pair()
    job = await pair[0].submit(queue="waited-for")
    for caller in pair:
        assert _is_about(await _seconds_of(caller.lease(wait_seconds=2)), 2)
        path = f"/v1/jobs/{job['id']}?wait_seconds=2"
        assert _is_about(await _seconds_of(caller.call("GET", path)), 2)


async def test_jobs_and_keys_are_kept_as_long_as_the_database_says(start_pair: StartPair) -> None:
    kept_seconds = OFFSET_SECONDS / 2
    pair = start_pair(
        retention_seconds=kept_seconds, dead_retention_seconds=4, idempotency_ttl_seconds=kept_seconds
    )
    for caller, other in (pair, pair[::-1]):
        queue = f"of-{caller.server.port}"
        succeeded = await caller.submit(queue=queue)
        await caller.complete(await other.lease_one(queues=[queue]))
        keyed = {"kind": "keyed", "queue": queue, "max_attempts": 1}
        headers = {"Idempotency-Key": caller.url}
        dead = (await caller.call("POST", "/v1/jobs", keyed, headers=headers)).json()
        leased = await other.lease_one(queues=[queue])
        replayed = await other.call("POST", "/v1/jobs", keyed, headers=headers)
        assert (replayed.status_code, replayed.json()["id"]) == (200, dead["id"])
        assert (await caller.say("fail", leased, error={"message": "no"})).json()["state"] == "dead"
        assert (await other.call("GET", f"/v1/jobs/{dead['id']}")).status_code == 200
        caller.seen.purged_ids.add(dead["id"])
        for replica in pair:
            await until(_is_status(replica, f"/v1/jobs/{dead['id']}", 404))
            assert (await replica.job(succeeded["id"]))["state"] == "succeeded"
        # The key went with its job, and not before.
        anew = await other.call("POST", "/v1/jobs", keyed, headers=headers)
        assert anew.status_code == 201


@pytest.fixture(name="clock")
def _clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock")


@pytest.fixture(name="jumpy")
async def _jumpy(start: Start, clock: WallClock) -> AsyncIterator[Caller]:
    """A replica under a clock that the test moves; it has been ready all the time."""
    caller = start(environ=clock.environ, reaper_interval_seconds=0.1)
    answers = []

    async def watch() -> None:
        while True:
            answers.append((await caller.call("GET", "/readyz")).text)
            await asyncio.sleep(0.1)

    watcher = asyncio.create_task(watch())
    yield caller
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    assert answers
    # A 503 is seen by the standing rules too; this one tells which part it was.
    assert [text for text in answers if '"ready":true' not in text] == []


@pytest.mark.parametrize("jumps", [(OFFSET_SECONDS, 0), (-OFFSET_SECONDS, 0)], ids=["ahead", "behind"])
async def test_a_clock_that_jumps_and_comes_back_moves_nothing(
    jumpy: Caller, clock: WallClock, is_now: Callable[..., bool], jumps: tuple[int, int]
) -> None:
    await jumpy.submit(queue="kept")
    kept = await jumpy.lease_one(queues=["kept"], lease_seconds=300)
    for jump in jumps:
        parked = asyncio.create_task(_seconds_of(jumpy.lease(queues=["empty"], wait_seconds=3)))
        waiting = asyncio.create_task(_seconds_of(jumpy.call("GET", f"/v1/jobs/{kept['id']}?wait_seconds=3")))
        delayed = await jumpy.submit(queue="delayed", delay_seconds=2)
        abandoned = await jumpy.submit(queue="abandoned")
        await jumpy.lease_one(queues=["abandoned"], lease_seconds=1)
        # All four wait now; the clock is moved under them.
        clock.move(jump)
        again = await jumpy.lease_one(queues=["abandoned"], wait_seconds=20)
        assert (again["id"], again["attempt"]) == (abandoned["id"], 2)
        [expired] = [a for a in await jumpy.attempts(abandoned["id"]) if a["outcome"] == "lease_expired"]
        assert 1 <= _seconds_between(expired["granted_at"], expired["ended_at"]) < TOLERANCE_SECONDS
        due = await jumpy.lease_one(queues=["delayed"], wait_seconds=20)
        assert due["id"] == delayed["id"]
        granted_at = (await jumpy.job(due["id"]))["lease"]["granted_at"]
        assert 0 <= _seconds_between(delayed["run_at"], granted_at) < TOLERANCE_SECONDS
        assert _is_about(await parked, 3)
        assert _is_about(await waiting, 3)
        # Else nothing has been shown.
        await _until_moved(jumpy, jump)
        empty = await jumpy.call("POST", "/v1/leases", {"worker_id": "w", "queues": ["empty"]})
        assert is_now(empty.json()["server_time"])
        for leased in (again, due):
            await jumpy.complete(leased)
    assert (await jumpy.complete(kept))["attempt"] == 1


async def _until_moved(caller: Caller, offset_seconds: int) -> None:
    async def is_moved() -> bool:
        off = await _wall_clock(caller) - datetime.now(UTC)
        return abs(off.total_seconds() - offset_seconds) < TOLERANCE_SECONDS

    await until(is_moved)


async def _wall_clock(caller: Caller) -> datetime:
    """Read the replica's own clock off the Date header, which the HTTP server library writes."""
    answer = await caller.call("GET", "/livez")
    return parsedate_to_datetime(answer.headers["Date"])


def _is_answering(caller: Caller) -> Callable[[], Awaitable[bool]]:
    async def is_answering() -> bool:
        with suppress(httpx.TransportError):
            return (await caller.call("GET", "/livez")).status_code == 200
        return False

    return is_answering


def _is_status(caller: Caller, path: str, status: int) -> Callable[[], Awaitable[bool]]:
    async def is_status() -> bool:
        return (await caller.call("GET", path)).status_code == status

    return is_status


async def _seconds_of(call: Awaitable[object]) -> float:
    began_at = time.monotonic()
    await call
    return time.monotonic() - began_at


def _is_about(seconds: float, expected_seconds: float) -> bool:
    # A timer of the event loop may be a millisecond early.
    return -0.01 < seconds - expected_seconds < TOLERANCE_SECONDS


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _seconds_between(first: str, second: str) -> float:
    return (_time(second) - _time(first)).total_seconds()
