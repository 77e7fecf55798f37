"""What the service does while its database is empty, away or frozen, and right after."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from app.embedded.server import BundledServer
from app.main import migrate
from tests.support.processes import answers_of
from tests.support.raw_calls import RawCall
from tests.support.server import ServerProcess
from tests.support.standing_rules import Caller, Json, Seen, check, until
from tests.support.stopwatch import quick_answer

ANSWER_SECONDS = 5.0
OUTAGE_SECONDS = 10.0
RECOVERY_SECONDS = 15.0
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


async def test_four_replicas_start_on_an_empty_database_at_once(
    new_database: Callable[..., str], tmp_path: Path
) -> None:
    """BO-46; the second round finds the schema that the first one made."""
    database_url = new_database()
    seen = Seen()
    for start in range(2):
        with ExitStack() as stack:
            servers = [
                ServerProcess({"database_url": database_url}, log_path=tmp_path / f"{start}{number}.log")
                for number in range(4)
            ]
            for server in servers:
                stack.callback(server.end)
            for server in servers:
                server.wait_until_ready(timeout_seconds=60)
            for server in servers:
                async with Caller(server.url, seen) as caller:
                    await check(caller, database_url=database_url)
            assert [server.process.poll() for server in servers] == [None] * 4
    _expect_one_head(database_url)


def test_migrations_that_run_at_once_leave_one_schema(new_database: Callable[..., str]) -> None:
    """BO-46, the migration alone, five times."""
    for _ in range(5):
        database_url = new_database()
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(migrate, [database_url] * 6))
        _expect_one_head(database_url)


def _expect_one_head(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM fencepost.schema_version").fetchall() == [(1,)]


@pytest.fixture(name="database_server")
def _database_server(tmp_path: Path) -> Iterator[BundledServer]:
    server = BundledServer(tmp_path / "private", settings=_FAST)
    server.start()
    yield server
    server.stop()


@pytest.fixture(name="caller")
async def _caller(database_server: BundledServer, tmp_path: Path) -> AsyncIterator[Caller]:
    """A service on a database server of its own; the standing rules hold in the end."""
    url = database_server.start()
    server = ServerProcess(
        {"database_url": url, "reaper_interval_seconds": 0.5}, log_path=tmp_path / "service.log"
    )
    try:
        server.wait_until_ready()
        async with Caller(server.url, Seen(), server=server) as caller:
            yield caller
            await check(caller, database_url=url)
    finally:
        server.end()


@contextmanager
def _stopped(server: BundledServer) -> Iterator[None]:
    server.stop()
    yield
    # Not in a thread: the server would end with it.
    server.start()


@contextmanager
def _frozen(server: BundledServer) -> Iterator[None]:
    """Nothing is refused and nothing answered, as behind a cut network."""
    postmaster = psutil.Process(server.pid)
    frozen: set[psutil.Process] = set()
    # Twice: a process may have been born while the others were stopped.
    for _ in range(2):
        others = {postmaster, *postmaster.children()} - frozen
        frozen |= answers_of(others, lambda process: process.send_signal(signal.SIGSTOP)).keys()
    try:
        yield
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("outage", [_stopped, _frozen])
async def test_the_service_outlasts_an_outage_of_its_database(
    caller: Caller,
    database_server: BundledServer,
    outage: Callable[[BundledServer], AbstractContextManager[None]],
) -> None:
    """BO-44: the service is not touched."""
    vanished = await caller.submit(queue="a")
    await caller.lease_one(queues=["a"], lease_seconds=5)
    delayed = await caller.submit(queue="b", delay_seconds=10)
    held = await caller.submit(queue="held")
    lease = await caller.lease_one(queues=["held"], lease_seconds=300)
    parked = asyncio.create_task(caller.lease_one(queues=["c"], wait_seconds=30))
    await asyncio.sleep(0.05)

    caller.seen.expects_unavailable = True
    began = time.monotonic()
    with outage(database_server):
        await asyncio.gather(*(_expect_unavailable(caller, *call) for call in _calls(lease)))
        # Long enough for every loop to fail more than once.
        await asyncio.sleep(max(began + OUTAGE_SECONDS - time.monotonic(), 0))
        ready = await caller.call("GET", "/readyz")
        assert "database" in ready.json()["failing"]
        assert (await caller.call("GET", "/livez")).status_code == 200

    began = time.monotonic()

    async def all_answer() -> bool:
        answers = [await caller.call(*call) for call in _reads(lease)]
        return all(answer.status_code == 200 for answer in answers)

    await until(all_answer, timeout_seconds=RECOVERY_SECONDS)
    caller.seen.expects_unavailable = False
    for queue, job in (("a", vanished), ("b", delayed)):
        leased = await caller.lease_one(queues=[queue], wait_seconds=10)
        assert leased["id"] == job["id"]
        await caller.complete(leased)
    job = await caller.submit(queue="c")
    leased = await asyncio.wait_for(parked, RECOVERY_SECONDS)
    assert leased["id"] == job["id"]
    assert time.monotonic() - began < RECOVERY_SECONDS
    assert (await caller.complete(lease))["id"] == held["id"]


@pytest.mark.parametrize("outage", [_stopped, _frozen])
async def test_the_service_ends_in_order_while_its_database_is_away(
    database_server: BundledServer,
    tmp_path: Path,
    outage: Callable[[BundledServer], AbstractContextManager[None]],
) -> None:
    server = ServerProcess({"database_url": database_server.start()}, log_path=tmp_path / "service.log")
    try:
        server.wait_until_ready()
        with outage(database_server):
            for _ in range(5):
                await RawCall.lease(server.url, wait_seconds=30)
            await asyncio.sleep(0.5)
            began = time.monotonic()
            server.terminate()
            assert await asyncio.to_thread(server.wait) == 0
            assert time.monotonic() - began < 10
    finally:
        server.end()


async def _expect_unavailable(
    caller: Caller, method: str, path: str, body: Json | None = None
) -> httpx.Response:
    answer = await quick_answer(lambda: caller.call(method, path, body), seconds=ANSWER_SECONDS)
    assert (path, answer.status_code) == (path, 503)
    assert int(answer.headers["Retry-After"]) >= 1
    return answer


def _reads(lease: Json) -> list[tuple[str, str] | tuple[str, str, Json]]:
    token = {"lease_version": lease["lease_version"]}
    return [
        ("GET", "/readyz"),
        ("GET", f"/v1/jobs/{lease['id']}"),
        ("GET", f"/v1/jobs/{lease['id']}/attempts"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/leases?worker_id=worker"),
        ("POST", f"/v1/jobs/{lease['id']}/heartbeat", token),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["nothing"]}),
    ]


def _calls(lease: Json) -> list[tuple[str, str] | tuple[str, str, Json]]:
    token = {"lease_version": lease["lease_version"]}
    item = {"job_id": lease["id"], **token}
    error = {"error": {"message": "no"}}
    return [
        *_reads(lease),
        ("POST", "/v1/jobs", {"kind": "lost", "queue": "lost"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"kind": "lost", "queue": "lost"}]}),
        ("POST", f"/v1/jobs/{lease['id']}/verify", token),
        ("POST", f"/v1/jobs/{lease['id']}/redrive"),
        ("PATCH", f"/v1/jobs/{lease['id']}", {"priority": 1}),
        ("POST", "/v1/leases/heartbeat", {"items": [item]}),
        ("POST", f"/v1/jobs/{lease['id']}/fail", {"lease_version": 9, **error}),
        ("POST", "/v1/leases/fail", {"items": [{**item, **error, "lease_version": 9}]}),
    ]
