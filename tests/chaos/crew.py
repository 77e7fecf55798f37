"""One process of clients: ``python -m tests.chaos.crew DESCRIPTION``, its orders on stdin.

A line means that the producers end, and is answered by a line when they have; the end of the input means that
the workers end too, and the process with them. All choices follow from the seed and the crew's name.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec

from tests.chaos.caller import Caller, Mind
from tests.chaos.history import Log
from tests.chaos.producer import Producer
from tests.chaos.worker import Worker

# The impatient ones give up on a replica that stands still before it moves again.
_TIMEOUTS_SECONDS = (1.5, 3.0, 8.0)


class Crew(msgspec.Struct, frozen=True):
    """``replicas`` are addresses by name; ``history`` is the file of this process alone.

    ``is_scripted`` says that the jobs are for programs (see ``scripts``), not for the workers of a crew.
    """

    name: str
    seed: str
    history: str
    replicas: dict[str, str]
    queues: list[str]
    lease_seconds: list[float]
    producer_count: int = 0
    worker_count: int = 0
    is_scripted: bool = False


async def serve(crew: Crew) -> None:
    """Be the crew until the orders end."""
    log = Log(Path(crew.history))
    async with httpx.AsyncClient() as http:
        producers = [Producer(*_pair(crew, f"p{n}", http, log)) for n in range(crew.producer_count)]
        workers = [Worker(_pair(crew, f"w{n}", http, log)[0]) for n in range(crew.worker_count)]
        await _work(producers, workers)
    log.close()


def _pair(crew: Crew, role: str, http: httpx.AsyncClient, log: Log) -> tuple[Mind, Caller]:
    """Return who acts in this role, and a second client of the same mind."""
    chance = random.Random(f"{crew.seed} {crew.name} {role}")
    callers = [
        Caller(
            f"{crew.name}.{role}{suffix}",
            http=http,
            replicas=crew.replicas,
            log=log,
            chance=chance,
            timeout_seconds=chance.choice(_TIMEOUTS_SECONDS),
        )
        for suffix in ("", "twin")
    ]
    return Mind(callers[0], crew.queues, crew.lease_seconds, chance, crew.is_scripted), callers[1]


async def _work(producers: Sequence[Producer], workers: Sequence[Worker]) -> None:
    quiet, over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_obey(quiet, over))
        producing = [group.create_task(each.run(is_over=quiet)) for each in producers]
        for worker in workers:
            group.create_task(worker.run(is_over=over))
        await quiet.wait()
        await asyncio.gather(*producing)
        sys.stdout.write("produced\n")
        sys.stdout.flush()


async def _obey(quiet: asyncio.Event, over: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.readline()
    quiet.set()
    await reader.read()
    over.set()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Crew)))
