"""The service as processes: told to end, killed, started again, several behind one address."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from app.embedded.server import BundledServer
from tests.support import announcements
from tests.support.processes import answers_of
from tests.support.raw_calls import RawCall
from tests.support.server import ServerProcess
from tests.support.standing_rules import Caller, Json, Seen, Start, check, until

END_SECONDS = 10.0
POLLS = 20


async def test_sigterm_answers_parked_polls_and_loses_no_grant(start: Start, database_url: str) -> None:
    """BO-45."""
    survivor = start()
    for round_number in range(5):
        ending = start()
        queue = f"q{round_number}"
        held = await survivor.submit(queue="held")
        lease = await ending.lease_one(queues=["held"], worker_id="holder", lease_seconds=600)
        # The survivor hears of them too, so that its jobs are announced.
        own = [f"{queue}-{number}" for number in range(POLLS)]
        async with announcements.parked(database_url, *own):
            polls = [await RawCall.lease(ending.url, queues=[queue, each], wait_seconds=30) for each in own]
        began = time.monotonic()
        ending.server.terminate()
        await asyncio.sleep(random.choice([0.0, random.uniform(0, 0.15)]))
        created = {job["id"] for job in await survivor.submit_many(POLLS, queue=queue)}
        granted: set[str] = set()
        for poll in polls:
            status, headers, body = await asyncio.wait_for(poll.answer(), END_SECONDS)
            assert status == 200
            if not body["jobs"]:
                assert headers["retry-after"] == "1"
            granted |= {leased["id"] for leased in body["jobs"]}
        assert await asyncio.to_thread(ending.server.wait) == 0
        assert time.monotonic() - began < END_SECONDS
        rest: list[Json] = []
        while len(granted) + len(rest) < POLLS:
            found = await survivor.lease(queues=[queue], max_jobs=POLLS, wait_seconds=10)
            assert found, "a job was granted into the void"
            rest += found
        assert {leased["attempt"] for leased in rest} <= {1}
        assert granted | {leased["id"] for leased in rest} == created
        after = await survivor.job(held["id"])
        assert after["lease"]["lease_version"] == lease["lease_version"]
        assert (await survivor.complete(lease))["attempt"] == 1


async def test_a_restart_takes_no_live_lease_for_an_orphan(start: Start) -> None:
    """BO-09: the service comes back on its old port, so nothing but its memory is new."""
    service = start(reaper_interval_seconds=0.1)
    port = service.server.port
    job = await service.submit()
    lease = await service.lease_one(worker_id="a", lease_seconds=3600)
    rival = _Rival()
    rival.callers.append(service)
    polling = asyncio.create_task(rival.poll_all_the_time())
    await rival.polls_again()

    service.server.kill()
    # In a thread, so that the rival polls while it starts.
    service = await asyncio.to_thread(start, port=port, reaper_interval_seconds=0.1)
    # The first caller reaches it as well: it is the same address.
    await rival.polls_again()
    replica = await asyncio.to_thread(start, reaper_interval_seconds=0.1)
    rival.callers.append(replica)
    await rival.polls_again()
    await asyncio.to_thread(replica.server.end)
    await rival.polls_again()

    assert (await service.say("heartbeat", lease)).status_code == 200
    await rival.polls_again()
    assert (await service.complete(lease))["attempt"] == 1
    rival.is_over = True
    await polling
    assert rival.granted == []
    assert [a["outcome"] for a in await service.attempts(job["id"])] == ["succeeded"]


class _Rival:
    """A second worker, which polls every replica it knows in turn; the dead ones are no answer."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.granted: list[Json] = []
        self.is_over = False
        self._answered: dict[Caller, int] = {}

    async def poll_all_the_time(self) -> None:
        while not self.is_over:
            for caller in list(self.callers):
                with suppress(httpx.TransportError):
                    self.granted += await caller.lease(worker_id="b", wait_seconds=0.2)
                    self._answered[caller] = self._answered.get(caller, 0) + 1
            await asyncio.sleep(0.01)

    async def polls_again(self) -> None:
        """Return when every replica that runs has answered some more polls."""
        goals = {
            caller: self._answered.get(caller, 0) + 3
            for caller in self.callers
            if caller.server.process.poll() is None or caller is self.callers[0]
        }

        async def are_answered() -> bool:
            return all(self._answered.get(caller, 0) >= goal for caller, goal in goals.items())

        await until(are_answered)


@pytest.fixture(name="serve_bundled")
def _serve_bundled(tmp_path: Path) -> Iterator[Callable[[], ServerProcess]]:
    """Start the service on the bundled server of one data folder, again and again."""
    started: list[ServerProcess] = []

    def start() -> ServerProcess:
        log_path = tmp_path / f"service{len(started)}.log"
        started.append(ServerProcess({"data_dir": tmp_path / "data"}, log_path=log_path))
        started[-1].wait_until_ready()
        return started[-1]

    yield start
    for server in started:
        server.end()
    BundledServer(tmp_path / "data").stop()


async def test_a_killed_service_starts_again_with_everything_it_promised(
    serve_bundled: Callable[[], ServerProcess], tmp_path: Path
) -> None:
    seen = Seen()
    lease = None
    job = None
    for _ in range(3):
        server = serve_bundled()
        async with Caller(server.url, seen, server=server) as caller:
            if lease is None:
                job = await caller.submit(queue="held")
                lease = await caller.lease_one(queues=["held"], lease_seconds=300)
            assert (await caller.say("verify", lease)).status_code == 204
            assert await caller.lease(worker_id="rival", queues=["held"]) == []
            producers = [asyncio.create_task(_produce(caller)) for _ in range(4)]
            await asyncio.sleep(0.3)
            server.kill()
            await asyncio.gather(*producers)
    server = serve_bundled()
    async with Caller(server.url, seen, server=server) as caller:
        assert lease is not None
        assert job is not None
        assert (await caller.complete(lease))["id"] == job["id"]
        database_url = BundledServer(tmp_path / "data").start()
        await check(caller, database_url=database_url)
    server.terminate()
    assert await asyncio.to_thread(server.wait) == 0
    assert BundledServer(tmp_path / "data").pid is None


async def _produce(caller: Caller) -> None:
    with suppress(httpx.TransportError):
        while True:
            await caller.submit()


async def test_two_processes_behind_one_address_share_the_work_and_outlive_one_of_them(start: Start) -> None:
    caller = start(processes=2)
    parent = psutil.Process(caller.server.process.pid)
    polls = [
        asyncio.create_task(caller.lease(wait_seconds=30, worker_id=f"w{n}", lease_seconds=600))
        for n in range(20)
    ]
    # Each process accepts some of twenty connections.
    await asyncio.sleep(0.2)
    created = {job["id"] for job in await caller.submit_many(20)}
    leased = [job for jobs in await asyncio.wait_for(asyncio.gather(*polls), 20) for job in jobs]
    assert {job["id"] for job in leased} == created
    children = {child.pid for child in parent.children()}
    assert len(children) == 2
    os.kill(min(children), signal.SIGKILL)

    async def is_replaced() -> bool:
        states = answers_of(parent.children(), lambda child: child.status())
        alive = {child.pid for child, state in states.items() if state != psutil.STATUS_ZOMBIE}
        return len(alive - {min(children)}) == 2

    await until(is_replaced)
    for job in leased:
        answer = await _persistently(caller, job)
        assert answer.status_code == 200


async def _persistently(caller: Caller, leased: Json) -> httpx.Response:
    """Complete over a connection of the killed process if need be, then over another one."""
    for _ in range(20):
        with suppress(httpx.TransportError):
            return await caller.say("complete", leased)
    raise AssertionError("every connection was cut")
