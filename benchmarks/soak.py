"""Keep the service under a steady load, and see whether what it takes stays what it was.

    python -m benchmarks.soak --minutes 5

``fencepost serve`` runs on its bundled PostgreSQL in a temporary folder (fsync on, autovacuum as shipped).
After a warm-up of a third of the time, the first window (a sixth) is compared with the last one: memory,
descriptors and threads of each process, the hot tables and their dead tuples, sessions, and the time of every
call. Whatever is not flat (flatness.py says what that means) is named, and the exit code is 1. So it is when
a call got no answer or one that it must not get, and when a job is left over in the end.

Idempotency keys are kept for some seconds here, so that they come and go as well. Finished jobs and attempts
stay: their partitions are whole days. They are shown as bytes a row.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import httpx
import psycopg
import uvloop

from app.embedded.server import BundledServer
from benchmarks.churn import Client, Log, idle, produce, work
from benchmarks.flatness import Row, Window, compare, table
from benchmarks.footprint import Footprint, Gauges
from benchmarks.running import reserved_port

# So many that slow answers cost the rate nothing, and leave no work behind.
PRODUCERS = 12
WORKERS = 32
IDLERS = 10
KEY_SECONDS = 10
LOOK_SECONDS = 1.0
READY_SECONDS = 60.0
DRAIN_SECONDS = 60.0
END_SECONDS = 60.0

WARM_UP_SHARE = 1 / 3
WINDOW_SHARE = 1 / 6


@dataclass(frozen=True, slots=True)
class Report:
    """The rows, and one sentence for everything else that must not be."""

    rows: list[Row]
    faults: list[str]
    summary: str

    @property
    def verdicts(self) -> list[str]:
        """What is wrong, none of it is success."""
        return [f"not flat: {row.name}" for row in self.rows if not row.is_flat] + self.faults


async def read_window(footprint: Footprint, log: Log, *, seconds: float) -> Window:
    """Look again and again for so long."""
    began_at = time.monotonic()
    before = footprint.read_updates()
    greatest: Gauges = {}
    while time.monotonic() < began_at + seconds:
        # In a thread: the load goes on meanwhile.
        now = await asyncio.to_thread(footprint.read)
        greatest |= {key: max(greatest.get(key, 0), value) for key, value in now.items()}
        await asyncio.sleep(LOOK_SECONDS)
    after = footprint.read_updates()
    ended_at = time.monotonic()
    updates = after.total - before.total
    return Window(
        gauges=greatest,
        calls={
            name: [spent for at, spent in calls if began_at <= at <= ended_at]
            for name, calls in log.calls.items()
        },
        hot_ratio=(after.hot - before.hot) / updates if updates else None,
        jobs_a_second=sum(began_at <= at <= ended_at for at in log.submitted) / (ended_at - began_at),
        grown=footprint.read_grown(),
    )


@contextmanager
def running_service(
    folder: Path, *, processes: int, variables: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start ``fencepost serve``; give its process and port; end it in order, by its id."""
    with reserved_port() as port:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        environ |= {"FENCEPOST_LOG_LEVEL": "warning", **variables}
        options = [f"--port={port}", f"--data-dir={folder}", f"--processes={processes}"]
        process = subprocess.Popen([sys.executable, "-m", "app", "serve", *options], env=environ)
        try:
            _wait_until_ready(process, port)
            yield process, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_SECONDS)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the service is not ready")


async def run(folder: Path, *, seconds: float, calls_a_second: float, processes: int) -> Report:
    """Load the service for so long, work off what is left, and compare."""
    variables = {"FENCEPOST_IDEMPOTENCY_TTL_SECONDS": str(KEY_SECONDS)}
    with running_service(folder, processes=processes, variables=variables) as (process, port):
        # The server runs already: this finds out its address.
        database_url = BundledServer(folder).start()
        with psycopg.connect(database_url, autocommit=True) as connection:
            footprint = Footprint(process.pid, connection)
            log = Log()
            first, last, left = await _load(
                port, footprint, log, seconds=seconds, calls_a_second=calls_a_second
            )
    faults = [f"{count} times {fault}" for fault, count in log.faults.most_common(20) if count]
    if left:
        faults.append(f"{left} jobs have not ended")
    if process.returncode != 0:
        faults.append(f"the service ended with {process.returncode}")
    calls = sum(map(len, log.calls.values()))
    summary = f"{len(log.submitted):,} jobs, {calls:,} calls, {log.conflicts:,} of them 409"
    return Report(compare(first, last), faults, summary)


async def _load(
    port: int, footprint: Footprint, log: Log, *, seconds: float, calls_a_second: float
) -> tuple[Window, Window, int]:
    """Return both windows, and how many jobs are left when nobody has submitted for a while."""
    until = time.monotonic() + seconds
    is_over = asyncio.Event()
    clients = [Client(port, log) for _ in range(PRODUCERS + WORKERS)]
    rate = calls_a_second / PRODUCERS
    workers = [
        asyncio.create_task(work(client, name=f"worker-{number}", is_over=is_over))
        for number, client in enumerate(clients[PRODUCERS:])
    ]
    others = [
        asyncio.create_task(produce(client, log, name=f"producer-{number}", calls_a_second=rate, until=until))
        for number, client in enumerate(clients[:PRODUCERS])
    ]
    others += [
        asyncio.create_task(idle(port, log, name=str(number), until=until)) for number in range(IDLERS)
    ]
    await asyncio.sleep(seconds * WARM_UP_SHARE)
    first = await read_window(footprint, log, seconds=seconds * WINDOW_SHARE)
    await asyncio.sleep(max(until - seconds * WINDOW_SHARE - time.monotonic(), 0))
    last = await read_window(footprint, log, seconds=max(until - time.monotonic(), LOOK_SECONDS))
    await asyncio.gather(*others)
    left = await _drained(footprint)
    is_over.set()
    await asyncio.gather(*workers)
    for client in clients:
        client.close()
    return first, last, left


async def _drained(footprint: Footprint) -> int:
    """Wait until the workers have ended everything; return how many jobs are left in the end."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        left = footprint.count_unfinished()
        if left == 0 or time.monotonic() > deadline:
            return left
        await asyncio.sleep(LOOK_SECONDS)


@click.command()
@click.option("--minutes", default=5.0, show_default=True, help="How long the load lasts.")
@click.option("--rate", default=60.0, show_default=True, help="Calls that submit jobs, a second.")
@click.option("--processes", default=2, show_default=True, help="Server processes.")
@click.option("--seed", default=1, show_default=True, help="Seed of all choices of the load.")
def main(minutes: float, rate: float, processes: int, seed: int) -> None:
    """Soak the service; exit code 1 and the names of the rows when something is not flat."""
    random.seed(seed)
    with tempfile.TemporaryDirectory(prefix="fencepost-soak-") as folder:
        report = uvloop.run(run(Path(folder), seconds=minutes * 60, calls_a_second=rate, processes=processes))
    print(f"{minutes:g} minutes, {rate:g} submitting calls a second, {processes} server processes:")
    print(f"{report.summary}.\n\n{table(report.rows)}")
    for verdict in report.verdicts:
        print(verdict)
    raise SystemExit(1 if report.verdicts else 0)


if __name__ == "__main__":
    main()
