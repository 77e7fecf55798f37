"""Measure what each client adds to HTTP: an empty handler through its worker, beside a plain loop of calls.

``python -m benchmarks.clients``. The plain loop leases as many jobs as a worker has slots, and completes them
in one call; a worker does the same with all that makes it one. Both are measured by the database, from the
first grant to the last finish. The workers are the adapters of the conformance suite; what they tell of their
handlers goes nowhere.
"""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import click

from app.embedded.server import BundledServer
from benchmarks import measures
from benchmarks.measures import Target
from benchmarks.running import running
from clients.conformance.adapters import Adapter, declared

RAW = "plain loop of calls"
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


def through_a_client(target: Target, adapter: Adapter, *, queue: str, slots: int, jobs: int) -> float:
    """Return jobs a second through an adapter's worker; ``jobs`` must be enqueued, of kind ``scripted``."""
    worker = {
        "queues": [queue],
        "concurrency": slots,
        "lease_seconds": 60,
        "wait_seconds": 5,
        "drain_seconds": 5,
        "grace_seconds": 1,
    }
    description = {
        "url": f"http://127.0.0.1:{target.port}",
        "events": os.devnull,
        "role": "worker",
        "worker": worker,
    }
    process = subprocess.Popen(
        adapter.run,
        cwd=adapter.folder,
        env=os.environ | dict(adapter.environment) | {"CONFORMANCE": json.dumps(description)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while target.number(_FINISHED.format(queue)) < jobs:
            if time.monotonic() > deadline or process.poll() is not None:
                raise click.ClickException(f"{adapter.name} has not done its jobs")
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(_END_SECONDS)
    return jobs / target.number(_SECONDS.format(queue))


def through_calls(target: Target, *, queue: str, slots: int, jobs: int) -> float:
    """Return jobs a second through lease and complete, one after the other on one connection."""
    asyncio.run(measures.drain(target, queue=queue, clients=1, max_jobs=slots, jobs=jobs))
    return jobs / target.number(_SECONDS.format(queue))


def enqueue(target: Target, *, queue: str, jobs: int) -> None:
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
    target: Target, adapters: list[Adapter], *, number: int, slots: int, jobs: int
) -> dict[str, float]:
    """Measure all once, one after the other, each on a queue of its own."""
    found: dict[str, float] = {}
    for index, adapter in enumerate([None, *adapters]):
        queue = f"clients-{slots}-{number}-{index}"
        enqueue(target, queue=queue, jobs=jobs)
        if adapter is None:
            found[RAW] = through_calls(target, queue=queue, slots=slots, jobs=jobs)
        else:
            found[adapter.name] = through_a_client(target, adapter, queue=queue, slots=slots, jobs=jobs)
    return found


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--jobs", default=4, show_default=True, help="Jobs a measurement, in thousands.")
@click.option("--slots", default=[10, 100], show_default=True, multiple=True, help="Handlers at once.")
@click.option("--only", multiple=True, help="Measure this client; may be repeated.")
def main(rounds: int, jobs: int, slots: list[int], only: tuple[str, ...]) -> None:
    """Measure an empty handler through every client that can be built here."""
    adapters = [each for each in declared() if not only or each.name in only]
    for adapter in adapters:
        if adapter.missing:
            raise click.ClickException(f"{adapter.name} needs {adapter.missing}")
        adapter.make()
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = BundledServer(Path(folder))
        try:
            with running("target", server.start(), "clients") as target:
                found = {
                    count: [
                        one_round(target, adapters, number=number, slots=count, jobs=jobs * measures.BATCH)
                        for number in range(rounds)
                    ]
                    for count in slots
                }
        finally:
            server.stop()
    print(
        f"Python {platform.python_version()}; medians of {rounds} rounds of {jobs},000 jobs, ratios to the loop\n"
    )
    print(f"| | {' | '.join(f'{count} slots (jobs/s) | ratio' for count in slots)} |")
    print("|---" + "|---:|---:" * len(slots) + "|")
    for name in [RAW, *(adapter.name for adapter in adapters)]:
        cells = [cell for rows in found.values() for cell in _cells(rows, name)]
        print(f"| {name} | {' | '.join(cells)} |")


def _cells(rows: list[dict[str, float]], name: str) -> tuple[str, str]:
    """Return the median of the rates, and of the ratios of the rounds."""
    rate = statistics.median(row[name] for row in rows)
    ratio = statistics.median(row[name] / row[RAW] for row in rows)
    return f"{rate:,.0f}", f"{ratio:.2f}"


if __name__ == "__main__":
    main()
