"""Measure what parked polls cost while nothing happens, and how a burst of jobs reaches them.

Two replicas on one database: the polls wait at the first, and the burst comes in at either.
"""

import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click
import psutil
import psycopg
import uvloop

from app.embedded.server import BundledServer
from benchmarks.load import Connection
from benchmarks.measures import Target
from benchmarks.running import running_on

# The longest that a poll may wait: all of a situation has to fit in.
WAIT_SECONDS = 30
LEASE_SECONDS = 600
# Until each poll of a thousand has had its claim.
ARRIVAL_SECONDS = 2
# A session of PostgreSQL that is idle writes down what it did only after ten seconds.
STATISTICS_SECONDS = 11


class Waiting:
    """Polls for one job each, parked at one replica, spread over so many queues."""

    def __init__(self, connections: list[Connection], *, queue_count: int) -> None:
        self._connections = connections
        self._queue_count = queue_count
        self._polls: list[asyncio.Task[int]] = []

    @classmethod
    async def at(cls, port: int, *, poll_count: int, queue_count: int) -> "Waiting":
        waiting = cls([await Connection.open(port) for _ in range(poll_count)], queue_count=queue_count)
        waiting._polls = [asyncio.create_task(waiting._poll(number)) for number in range(poll_count)]
        await asyncio.sleep(ARRIVAL_SECONDS)
        return waiting

    async def _poll(self, number: int) -> int:
        wish = {
            "worker_id": f"w{number}",
            "queues": [f"q{number % self._queue_count}"],
            "wait_seconds": WAIT_SECONDS,
            "lease_seconds": LEASE_SECONDS,
        }
        answer = await self._connections[number].call_json("/v1/leases", wish, expect=200)
        return len(answer["jobs"])

    async def answered(self) -> int:
        """Wait for every answer; return how many jobs they were."""
        return sum(await asyncio.gather(*self._polls))

    async def leave(self) -> None:
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)
        for connection in self._connections:
            connection.close()


class Database:
    """Counts what the service asks of its database."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def transactions(self) -> int:
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        row = self._connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._connection.close()


async def idle_cost(
    service: Target, database: Database, *, poll_count: int, queue_count: int, seconds: float
) -> str:
    """Return a row: what a replica takes a second while its polls wait for nothing."""
    waiting = await Waiting.at(service.port, poll_count=poll_count, queue_count=queue_count)
    await asyncio.sleep(STATISTICS_SECONDS)
    process = psutil.Process(service.pid)
    transactions, cpu_seconds = database.transactions(), sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    cpu_milliseconds = (sum(process.cpu_times()[:2]) - cpu_seconds) / seconds * 1000
    committed = (database.transactions() - transactions) / seconds
    megabytes = process.memory_info().rss / 1e6
    await waiting.leave()
    queues = f"{queue_count:,} queues" if queue_count > 1 else "one queue"
    name = f"{poll_count:,} polls for {queues}" if poll_count else "nobody"
    return f"| {name} | {cpu_milliseconds:.1f} | {committed:.1f} | {megabytes:.0f} |"


async def burst(service: Target, producer: Target, *, poll_count: int) -> float:
    """Return the milliseconds from the call that submits a job for each poll to the last answer."""
    waiting = await Waiting.at(service.port, poll_count=poll_count, queue_count=1)
    connection = await Connection.open(producer.port)
    body = json.dumps({"jobs": [{"kind": "bench", "queue": "q0"}] * poll_count}).encode()
    sent_at = time.perf_counter()
    await connection.call("/v1/jobs/batch", body)
    count = await waiting.answered()
    milliseconds = (time.perf_counter() - sent_at) * 1000
    connection.close()
    await waiting.leave()
    if count != poll_count:
        raise RuntimeError(f"{count} polls of {poll_count} had a job")
    return milliseconds


async def measure(service: Target, other: Target, database: Database, *, seconds: float) -> None:
    print("| waiting | CPU (ms/s) | transactions/s, both replicas | memory (MB) |\n|---|---:|---:|---:|")
    for poll_count, queue_count in ((0, 1), (1000, 1), (1000, 1000)):
        print(
            await idle_cost(
                service, database, poll_count=poll_count, queue_count=queue_count, seconds=seconds
            )
        )
    print("\n| 1,000 jobs in one call, until 1,000 polls have one | ms |\n|---|---:|")
    for name, producer in (("submitted where they wait", service), ("submitted at the other replica", other)):
        print(f"| {name} | {await burst(service, producer, poll_count=1000):.0f} |")


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(1, 16),
    default=16.0,
    show_default=True,
    help="How long each situation is watched.",
)
def main(seconds: float) -> None:
    """Measure parked polls on a bundled PostgreSQL of its own."""
    with tempfile.TemporaryDirectory(prefix="fencepost-parked-") as folder, ExitStack() as stack:
        server = BundledServer(Path(folder))
        url = server.start()
        stack.callback(server.stop)
        service, other = (
            stack.enter_context(running_on("target", url)),
            stack.enter_context(running_on("target", url)),
        )
        database = Database(url)
        stack.callback(database.close)
        uvloop.run(measure(service, other, database, seconds=seconds))


if __name__ == "__main__":
    main()
