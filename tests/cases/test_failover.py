"""A primary that ends or turns read-only and its standby; a lock that is held; a disk that is full."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from app.embedded.binaries import binary_folder
from app.embedded.server import BundledServer
from tests.support import announcements
from tests.support.programs import needed_program
from tests.support.server import ServerProcess
from tests.support.standing_rules import Caller, Json, Seen, check, until
from tests.support.stopwatch import quick_answer
from tests.support.switch import Switch
from tests.support.waiting import DEADLINE_SECONDS

ANSWER_SECONDS = 5.0
RECOVERY_SECONDS = 15.0
_QUICK = {"fsync": "off", "full_page_writes": "off"}


@pytest.fixture(name="primary")
def _primary(tmp_path: Path) -> Iterator[BundledServer]:
    server = BundledServer(tmp_path / "primary", settings=_QUICK)
    server.start()
    yield server
    server.stop()


@pytest.fixture(name="standby")
def _standby(primary: BundledServer, tmp_path: Path) -> Iterator[BundledServer]:
    """A standby that streams from the primary."""
    url = primary.start()
    folder = tmp_path / "standby"
    folder.mkdir()
    owner = (tmp_path / "primary" / "postgres").stat()
    if os.getuid() == 0:
        os.chown(folder, owner.st_uid, owner.st_gid)
    command = [
        str(binary_folder() / "pg_basebackup"),
        f"--dbname={url}",
        f"--pgdata={folder / 'postgres'}",
        "--wal-method=stream",
        "--checkpoint=fast",
        "--write-recovery-conf",
    ]
    subprocess.run(
        command,
        check=True,
        user=owner.st_uid if os.getuid() == 0 else None,
        group=owner.st_gid if os.getuid() == 0 else None,
        cwd="/",
    )
    server = BundledServer(folder, settings=_QUICK)
    server.start()
    yield server
    server.stop()


@pytest.fixture(name="switch")
def _switch(primary: BundledServer) -> Iterator[Switch]:
    with Switch() as switch:
        switch.set(primary.start())
        yield switch


@pytest.fixture(name="caller")
async def _caller(switch: Switch, tmp_path: Path) -> AsyncIterator[Caller]:
    """A service that reaches its database through the switch; the standing rules hold in the end."""
    server = ServerProcess(
        {"database_url": switch.url, "reaper_interval_seconds": 0.5}, log_path=tmp_path / "service.log"
    )
    try:
        server.wait_until_ready()
        async with Caller(server.url, Seen(), server=server) as caller:
            yield caller
            caller.seen.expects_unavailable = False
            await check(caller, database_url=switch.url)
    finally:
        server.end()


async def test_the_service_follows_a_failover(
    primary: BundledServer, standby: BundledServer, switch: Switch, caller: Caller
) -> None:
    held = await caller.submit(queue="held")
    lease = await caller.lease_one(queues=["held"], lease_seconds=300)
    waiting = await caller.submit(queue="waiting")
    async with announcements.parked(primary.start(), "later"):
        parked = asyncio.create_task(caller.lease_one(queues=["later"], wait_seconds=30))
    caller.seen.expects_unavailable = True
    primary.stop()
    standby_url = standby.start()
    switch.set(standby_url)

    # The address leads to a server that takes no writes yet.
    for _ in range(3):
        await _is_unavailable(caller)
    with psycopg.connect(standby_url, autocommit=True) as admin:
        admin.execute("SELECT pg_promote()")
    began = time.monotonic()
    await until(lambda: _is_ready(caller), timeout_seconds=RECOVERY_SECONDS)

    assert (await caller.lease_one(queues=["waiting"]))["id"] == waiting["id"]
    later = await caller.submit(queue="later")
    assert (await asyncio.wait_for(parked, RECOVERY_SECONDS))["id"] == later["id"]
    assert (await caller.complete(lease))["id"] == held["id"]
    assert time.monotonic() - began < RECOVERY_SECONDS


async def test_no_connection_stays_with_a_primary_that_turned_read_only(
    primary: BundledServer, standby: BundledServer, switch: Switch, caller: Caller
) -> None:
    """The old primary runs on, its connections stay open: nothing but its refusals tells."""
    job = await caller.submit(queue="waiting")
    primary_url, standby_url = primary.start(), standby.start()
    with psycopg.connect(standby_url, autocommit=True) as admin:
        _wait_for_all_rows(admin, job["id"])
        admin.execute("SELECT pg_promote()")
    _set_read_only(primary_url, value="on")
    switch.set(standby_url)
    caller.seen.expects_unavailable = True
    began = time.monotonic()
    await until(lambda: _is_submitted(caller), timeout_seconds=RECOVERY_SECONDS)
    await until(lambda: _is_left(primary_url), timeout_seconds=RECOVERY_SECONDS)
    assert time.monotonic() - began < RECOVERY_SECONDS
    assert (await caller.lease_one(queues=["waiting"]))["id"] == job["id"]


async def test_a_primary_that_is_read_only_for_a_while_is_used_again(
    caller: Caller, primary: BundledServer
) -> None:
    url = primary.start()
    _set_read_only(url, value="on")
    caller.seen.expects_unavailable = True
    await until(lambda: _is_unavailable(caller))
    assert (await caller.call("GET", "/livez")).status_code == 200
    assert (await caller.call("GET", "/readyz")).status_code == 503
    _set_read_only(url, value="off")
    await until(lambda: _is_ready(caller), timeout_seconds=RECOVERY_SECONDS)
    await caller.submit()


@pytest.mark.parametrize("table", ["ready", "leases"])
async def test_a_lock_that_is_held_for_long_is_503_in_time_and_no_more(
    caller: Caller, primary: BundledServer, table: str
) -> None:
    """Longer than a statement may wait; calls that do not need the table go on."""
    await caller.submit(queue="held")
    lease = await caller.lease_one(queues=["held"], lease_seconds=300)
    caller.seen.expects_unavailable = True
    calls: list[tuple[str, str, Json | None]] = [
        ("POST", "/v1/jobs", {"kind": "w", "queue": "submitted"}),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["nothing"]}),
        ("POST", f"/v1/jobs/{lease['id']}/heartbeat", {"lease_version": lease["lease_version"]}),
        ("GET", f"/v1/jobs/{lease['id']}", None),
        ("GET", "/v1/jobs", None),
        ("GET", "/livez", None),
    ]
    with psycopg.connect(primary.start()) as rival:
        rival.execute(f"LOCK TABLE fencepost.{table} IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            answers = await asyncio.gather(*(_answered_in_time(caller, *call) for call in calls))
            statuses = {path: answer.status_code for (_, path, _), answer in zip(calls, answers, strict=True)}
            assert set(statuses.values()) <= {200, 201, 503}
            assert 503 in statuses.values()
            assert statuses["/livez"] == 200
    began = time.monotonic()
    await until(lambda: _is_ready(caller), timeout_seconds=RECOVERY_SECONDS)
    assert (await caller.complete(lease))["state"] == "succeeded"
    assert time.monotonic() - began < RECOVERY_SECONDS


async def _answered_in_time(caller: Caller, method: str, path: str, body: Json | None) -> httpx.Response:
    answer = await quick_answer(lambda: caller.call(method, path, body), seconds=ANSWER_SECONDS)
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) >= 1
    return answer


async def _is_unavailable(caller: Caller) -> bool:
    answer = await _answered_in_time(caller, "POST", "/v1/jobs", {"kind": "w", "queue": "maybe"})
    return answer.status_code == 503


async def _is_submitted(caller: Caller) -> bool:
    return not await _is_unavailable(caller)


async def _is_ready(caller: Caller) -> bool:
    return (await caller.call("GET", "/readyz")).status_code == 200


async def _is_left(url: str) -> bool:
    """Whether none of the service's connections is on this server."""
    with psycopg.connect(url) as admin:
        count = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^fencepost'")
        return count.fetchone() == (0,)


def _set_read_only(url: str, *, value: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        admin.execute("SELECT pg_reload_conf()")


def _wait_for_all_rows(standby: psycopg.Connection, job_id: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not standby.execute("SELECT FROM fencepost.jobs WHERE job_id = %s", [job_id]).fetchall():
        assert time.monotonic() < deadline, "the standby does not follow"
        time.sleep(0.02)


@contextmanager
def _small_disk(folder: Path, *, size_megabytes: int) -> Iterator[Path]:
    """A disk of its own; only root can make one."""
    folder.mkdir()
    options = f"size={size_megabytes}m,mode=755"
    subprocess.run([needed_program("mount"), "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run([needed_program("umount"), "--lazy", folder], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small disk")
async def test_a_full_disk_is_503_and_loses_nothing(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk", size_megabytes=400) as disk:
        server = ServerProcess({"data_dir": disk / "data"}, log_path=tmp_path / "service.log")
        try:
            server.wait_until_ready()
            async with Caller(server.url, Seen(), server=server) as caller:
                await _fill_and_free(caller, disk)
        finally:
            server.end()


async def _fill_and_free(caller: Caller, disk: Path) -> None:
    big = {"kind": "w", "queue": "full", "payload": "x" * 200_000}
    await caller.call("POST", "/v1/jobs", big)
    caller.seen.expects_unavailable = True
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        _fill(file.fileno())

    async def is_full() -> bool:
        return (await _answered_in_time(caller, "POST", "/v1/jobs", big)).status_code == 503

    await until(is_full, timeout_seconds=60)
    for _ in range(5):
        assert (await _answered_in_time(caller, "GET", "/livez", None)).status_code == 200
        await is_full()
    ballast.unlink()
    began = time.monotonic()

    async def has_room() -> bool:
        return not await is_full()

    await until(has_room, timeout_seconds=RECOVERY_SECONDS)
    await until(lambda: _is_ready(caller), timeout_seconds=RECOVERY_SECONDS)
    assert time.monotonic() - began < RECOVERY_SECONDS
    caller.seen.expects_unavailable = False
    listed = {job["id"] async for job in caller.pages()}
    assert caller.seen.job_ids <= listed


def _fill(descriptor: int) -> None:
    """Take all the room that is left."""
    for step in (1 << 20, 1 << 12):
        try:
            while True:
                os.write(descriptor, bytes(step))
        except OSError:
            continue
