"""Replicas on one database, called over HTTP; the standing rules are checked after every test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.support.server import ServerProcess
from tests.support.standing_rules import Caller, Seen, Start, check, until


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def start(serve: Callable[..., ServerProcess], database_url: str, seen: Seen) -> AsyncIterator[Start]:
    """Start replicas of one service; keyword arguments are FENCEPOST_ variables.

    After the test one that still runs (or else a new one) must pass the standing rules.
    """
    callers: list[Caller] = []
    async with AsyncExitStack() as stack:

        def start_replica(**variables: object) -> Caller:
            server = serve(**variables)
            callers.append(Caller(server.url, seen, server=server))
            stack.push_async_exit(callers[-1])
            return callers[-1]

        yield start_replica
        running = [caller for caller in callers if caller.server.process.poll() is None]
        await check(running[0] if running else start_replica(), database_url=database_url)


@pytest.fixture
async def client(
    client: httpx.AsyncClient, seen: Seen, database_url: str
) -> AsyncIterator[httpx.AsyncClient]:
    """The service in this process; every answer is seen, and the standing rules are checked at the end."""

    async def is_ready() -> bool:
        return (await client.get("/readyz")).status_code == 200

    async def note(answer: httpx.Response) -> None:
        await answer.aread()
        seen.note(answer)

    await until(is_ready)
    client.event_hooks["response"].append(note)
    yield client
    await check(Caller("http://test", seen, http=client), database_url=database_url)
