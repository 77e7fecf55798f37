"""Measure what each client adds to HTTP: an empty handler through its worker, beside a plain loop of calls.

``python -m benchmarks.clients``. The plain loop leases as many jobs as a worker has slots, and completes them
in one call; a worker does the same with all that makes it one. Both are measured by the database, from the
first grant to the last finish. The workers are the adapters of the conformance suite; what they tell of their
handlers goes nowhere. ``fencepost work`` runs ``true`` for each job, and so does the loop beside it.
"""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from app.embedded.server import BundledServer
from benchmarks import measures
from benchmarks.load import Connection
from benchmarks.measures import Target
from benchmarks.running import running
from clients.conformance.adapters import ROOT, Adapter, declared

RAW = "loop of calls"
RAW_COMMANDS = "loop of calls that runs true"
_PATIENCE_SECONDS = 120
_END_SECONDS = 30

# Of one queue: how many have finished, and the seconds from the first grant to the last finish.
_FINISHED = (
    "SELECT count(*) FROM fencepost.finished f JOIN fencepost.jobs j USING (job_id) WHERE j.queue = '{}'"
)
_SECONDS = (
    "SELECT extract(epoch FROM max(f.finished_at) - min(f.granted_at))"
    " FROM fencepost.finished f JOIN fencepost.jobs j USING (job_id) WHERE j.queue = '{}'"
)


@dataclass(frozen=True)
class Contender:
    """A worker to measure: ``start`` takes url, queue and slots; ``loop`` is what it is measured against."""

    name: str
    start: Callable[[str, str, int], "subprocess.Popen[bytes]"]
    loop: str
    share: float = 1.0


def of_an_adapter(adapter: Adapter) -> Contender:
    """Return the worker of a client whose adapter has been built."""

    def start(url: str, queue: str, slots: int) -> "subprocess.Popen[bytes]":
        worker = {
            "queues": [queue],
            "concurrency": slots,
            "lease_seconds": 60,
            "wait_seconds": 5,
            "drain_seconds": 5,
            "grace_seconds": 1,
        }
        description = {"url": url, "events": os.devnull, "role": "worker", "worker": worker}
        environ = {**adapter.environment, "CONFORMANCE": json.dumps(description)}
        return _started(adapter.run, environ)

    return Contender(adapter.name, start, RAW)


def _start_commands(url: str, queue: str, slots: int) -> "subprocess.Popen[bytes]":
    options = [f"--url={url}", f"--queue={queue}", f"--concurrency={slots}"]
    return _started([sys.executable, "-m", "app", "work", *options, "--", "true"], {})


# A process a job costs more than all of HTTP: fewer of them say as much.
COMMANDS = Contender("fencepost work", _start_commands, RAW_COMMANDS, share=0.25)


def _started(command: Sequence[str], environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def through_a_worker(target: Target, contender: Contender, *, queue: str, slots: int, jobs: int) -> float:
    """Return jobs a second through a worker; ``jobs`` must be enqueued, of kind ``scripted``."""
    process = contender.start(f"http://127.0.0.1:{target.port}", queue, slots)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while target.number(_FINISHED.format(queue)) < jobs:
            if time.monotonic() > deadline or process.poll() is not None:
                raise click.ClickException(f"{contender.name} has not done its jobs")
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(_END_SECONDS)
    return jobs / target.number(_SECONDS.format(queue))


async def _loop(target: Target, *, queue: str, slots: int, jobs: int, runs_true: bool) -> None:
    """Lease and complete, one after the other on one connection."""
    connection = await Connection.open(target.port)
    wish = {"worker_id": "loop", "queues": [queue], "max_jobs": slots, "lease_seconds": 60}
    done = 0
    while done < jobs:
        leased = (await connection.call_json("/v1/leases", wish, expect=200))["jobs"]
        if runs_true:
            _run_true(len(leased))
        items = [{"job_id": job["id"], "lease_version": job["lease_version"]} for job in leased]
        await connection.call_json("/v1/leases/complete", {"items": items}, expect=200)
        done += len(leased)
    connection.close()


def _run_true(count: int) -> None:
    """Run so many processes at once, and wait for their end."""
    for pid in [os.posix_spawnp("true", ["true"], os.environ) for _ in range(count)]:
        os.waitpid(pid, 0)


def _enqueue(target: Target, *, queue: str, jobs: int) -> None:
    asyncio.run(
        measures.batch_enqueue(
            target,
            queue=queue,
            clients=1,
            batches=jobs // measures.BATCH,
            kind="scripted",
            payload={"steps": []},
        )
    )


def one_round(
    target: Target, contenders: Sequence[Contender], *, number: int, slots: int, jobs: int
) -> dict[str, float]:
    """Measure all once, one after the other, each on a queue of its own."""
    found: dict[str, float] = {}
    for name, share in ((RAW, 1.0), (RAW_COMMANDS, COMMANDS.share)):
        count = int(jobs * share)
        queue = f"{slots}-{number}-loop-{count}"
        _enqueue(target, queue=queue, jobs=count)
        asyncio.run(_loop(target, queue=queue, slots=slots, jobs=count, runs_true=name == RAW_COMMANDS))
        found[name] = count / target.number(_SECONDS.format(queue))
    for index, contender in enumerate(contenders):
        count = int(jobs * contender.share)
        queue = f"{slots}-{number}-{index}"
        _enqueue(target, queue=queue, jobs=count)
        found[contender.name] = through_a_worker(target, contender, queue=queue, slots=slots, jobs=count)
    return found


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--jobs", default=4, show_default=True, help="Thousands of jobs a measurement, by fours.")
@click.option("--slots", default=[10, 100], show_default=True, multiple=True, help="Handlers at once.")
def main(rounds: int, jobs: int, slots: list[int]) -> None:
    """Measure an empty handler through every client that can be built here."""
    contenders = [COMMANDS]
    for adapter in declared():
        # Its adapter starts an interpreter for each job.
        if adapter.name != COMMANDS.name:
            if adapter.missing:
                raise click.ClickException(f"{adapter.name} needs {adapter.missing}")
            adapter.make()
            contenders.append(of_an_adapter(adapter))
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = BundledServer(Path(folder))
        try:
            with running("target", server.start(), "clients") as target:
                found = {
                    count: [
                        one_round(target, contenders, number=number, slots=count, jobs=jobs * measures.BATCH)
                        for number in range(rounds)
                    ]
                    for count in slots
                }
        finally:
            server.stop()
    print(f"Python {platform.python_version()}; medians of {rounds} rounds of {jobs},000 jobs.\n")
    print(f"| | {' | '.join(f'{count} slots (jobs/s) | ratio to the loop' for count in slots)} |")
    print("|---" + "|---:|---:" * len(slots) + "|")
    for name, loop in [
        *((each.name, each.loop) for each in contenders),
        (RAW, RAW),
        (RAW_COMMANDS, RAW_COMMANDS),
    ]:
        cells = [cell for rows in found.values() for cell in _cells(rows, name, loop)]
        print(f"| {name} | {' | '.join(cells)} |")


def _cells(rows: Sequence[Mapping[str, float]], name: str, loop: str) -> tuple[str, str]:
    """Return the median of the rates, and of the ratios of the rounds with their range."""
    rate = statistics.median(row[name] for row in rows)
    ratios = [row[name] / row[loop] for row in rows]
    return f"{rate:,.0f}", f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
