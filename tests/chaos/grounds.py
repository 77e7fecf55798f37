"""What scenarios are played on: replicas on one PostgreSQL, or a service with its bundled one.

Both are made of real processes, and taken down in order at the end; what is said of that ends up among the
complaints.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.embedded.server import BundledServer
from tests.chaos.fleet import Database, Replica
from tests.chaos.network import Cable, NetworkUnavailable, cabled_namespace

REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Outpost:
    """A cable, and the replica that listens at this end of it."""

    cable: Cable
    replica: Replica


@dataclass(slots=True, kw_only=True)
class Ground:
    """``database_url`` gives the way to its database, which runs."""

    replicas: list[Replica]
    database_url: Callable[[], str]


@dataclass(slots=True, kw_only=True)
class SharedGround(Ground):
    """``outpost`` is None where no namespace can be made; ``skipped`` says why."""

    database: Database
    outpost: Outpost | None = None
    skipped: list[str] = field(default_factory=list)


def service_environment(**settings: str) -> dict[str, str]:
    """Return this process's environment for the service: its settings are these, and a quick reaper."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    return inherited | {"FENCEPOST_REAPER_INTERVAL_SECONDS": "0.2"} | settings


@asynccontextmanager
async def replicas_on_one_database(folder: Path, complaints: list[str]) -> AsyncIterator[SharedGround]:
    """Give three replicas on one PostgreSQL with fsync on, and a fourth for a network namespace."""
    database = Database(folder / "data")
    await database.start()
    with ExitStack() as stack:
        stack.callback(database.close)
        environ = service_environment(FENCEPOST_DATABASE_URL=database.url)
        ground = SharedGround(
            replicas=[Replica(f"r{number}", folder=folder, environ=environ) for number in range(REPLICAS)],
            database_url=lambda: database.url,
            database=database,
        )
        everywhere = list(ground.replicas)
        try:
            cable = stack.enter_context(cabled_namespace())
        except NetworkUnavailable as error:
            ground.skipped.append(f"network cut: {error}")
        else:
            listener = Replica(
                "outpost", folder=folder, environ=environ, host=cable.host, options=["--insecure"]
            )
            ground.outpost = Outpost(cable, listener)
            everywhere.append(listener)
        async with _running(everywhere, complaints):
            yield ground


@asynccontextmanager
async def service_with_its_own_database(folder: Path, complaints: list[str]) -> AsyncIterator[Ground]:
    """Give one service of two server processes that runs its bundled PostgreSQL itself."""
    data_dir = folder / "own-data"
    options = [f"--data-dir={data_dir}", "--processes=2"]
    replica = Replica("service", folder=folder, environ=service_environment(), options=options)
    async with _running([replica], complaints):
        # It runs already, so that this only asks where.
        yield Ground(replicas=[replica], database_url=BundledServer(data_dir).start)


@asynccontextmanager
async def _running(replicas: Sequence[Replica], complaints: list[str]) -> AsyncIterator[None]:
    """Start replicas, start them again whenever they have ended, and end them in order."""

    async def keep() -> None:
        while True:
            for replica in replicas:
                replica.keep_running()
            await asyncio.sleep(0.1)

    for replica in replicas:
        replica.start()
    keeper = asyncio.create_task(keep())
    try:
        await asyncio.gather(*(replica.until_ready() for replica in replicas))
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await asyncio.gather(*(replica.end() for replica in replicas))
        for replica in replicas:
            complaints += replica.complaints
