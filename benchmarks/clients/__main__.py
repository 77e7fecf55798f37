"""Measure what each client adds to HTTP: an empty handler through its worker, beside plain loops of calls.

``python -m benchmarks.clients``. A loop leases as many jobs as a worker has slots, and completes them in one
call; a worker does the same with all that makes it one. The loop of a client calls with the same HTTP library
as its worker; the barest one has a client of thirty lines that reads nothing but lengths. All are measured by
the database, from the first grant to the last finish. ``fencepost work`` runs ``true`` for each job. So does
the loop beside it, with the barest client and no pipes: what a worker has to do so that a command learns its
job, can say something and is heard is part of what is measured.

A worker and its own loop are both programs, watched in the same way while they run: asking the database how
far they are takes some of the processors.
"""

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from app.embedded.server import BundledServer
from benchmarks import measures
from benchmarks.clients import bare
from benchmarks.measures import Target
from benchmarks.running import running
from clients.conformance.adapters import ROOT, declared

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
    """A client: how its worker and its plain loop are started. ``share`` is how many of the jobs it gets.

    {url}, {queue}, {slots}, {jobs} and {mode} (worker or loop) are filled in.
    """

    name: str
    worker: Sequence[str]
    loop: Sequence[str]
    share: float = 1.0


_ARGUMENTS = ["{url}", "{queue}", "{slots}", "{jobs}"]


def _empty(name: str, *program: str) -> Contender:
    return Contender(name, [*program, "worker", *_ARGUMENTS], [*program, "loop", *_ARGUMENTS])


# A process a job costs more than all of HTTP: fewer of them say as much.
_OPTIONS = ["--url={url}", "--queue={queue}", "--concurrency={slots}"]
COMMANDS = Contender(
    "fencepost work",
    ["{python}", "-m", "app", "work", *_OPTIONS, "--", "true"],
    ["{python}", "-m", "benchmarks.clients.bare", *_ARGUMENTS],
    share=0.25,
)
CONTENDERS = (
    _empty("python", "{python}", "-m", "benchmarks.clients.empty"),
    _empty("typescript", "node", "benchmarks/clients/empty.mjs"),
    _empty("go", "build/empty-go"),
    COMMANDS,
)
BUILD_GO = ["go", "build", "-C", "clients/go", "-o", "../../build/empty-go", "./internal/empty"]


def _started(command: Sequence[str], **values: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [word.format(python=sys.executable, **values) for word in command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "clients/python/src"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _through(target: Target, command: Sequence[str], *, queue: str, slots: int, jobs: int) -> float:
    """Return jobs a second through a program; ``jobs`` are enqueued here."""
    _enqueue(target, queue=queue, jobs=jobs)
    url = f"http://127.0.0.1:{target.port}"
    process = _started(command, url=url, queue=queue, slots=slots, jobs=jobs)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while target.number(_FINISHED.format(queue)) < jobs:
            if time.monotonic() > deadline or process.poll():
                raise click.ClickException(f"{command[0]} has not done its jobs")
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(_END_SECONDS)
    return jobs / target.number(_SECONDS.format(queue))


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


def _through_the_barest(target: Target, *, queue: str, slots: int, jobs: int) -> float:
    """Return jobs a second through the loop that is run here."""
    _enqueue(target, queue=queue, jobs=jobs)
    asyncio.run(bare.loop(target.port, queue=queue, slots=slots, jobs=jobs, do=bare.nothing))
    return jobs / target.number(_SECONDS.format(queue))


@dataclass(frozen=True)
class Found:
    """Jobs a second through a client's worker, through its own plain loop, and through the barest loop."""

    worker: float
    loop: float
    barest: float


def one_round(target: Target, *, number: int, slots: int, jobs: int) -> dict[str, Found]:
    """Measure all once, one after the other, each on a queue of its own."""
    queue = f"{slots}-{number}"
    barest = _through_the_barest(target, queue=f"{queue}-bare", slots=slots, jobs=jobs)
    found: dict[str, Found] = {}
    for each in CONTENDERS:
        count = int(jobs * each.share)
        own = f"{queue}-{each.name.replace(' ', '-')}"
        worker = _through(target, each.worker, queue=f"{own}-w", slots=slots, jobs=count)
        loop = _through(target, each.loop, queue=f"{own}-l", slots=slots, jobs=count)
        found[each.name] = Found(worker, loop, barest)
    return found


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--jobs", default=4, show_default=True, help="Thousands of jobs a measurement, by fours.")
@click.option("--slots", default=[10, 100], show_default=True, multiple=True, help="Handlers at once.")
def main(rounds: int, jobs: int, slots: list[int]) -> None:
    """Measure an empty handler through every client, beside a plain loop with the same HTTP library."""
    next(each for each in declared() if each.name == "typescript").make()
    subprocess.run(BUILD_GO, cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = BundledServer(Path(folder))
        try:
            with running("target", server.start(), "clients") as target:
                found = {
                    count: [
                        one_round(target, number=number, slots=count, jobs=jobs * measures.BATCH)
                        for number in range(rounds)
                    ]
                    for count in slots
                }
        finally:
            server.stop()
    print(f"Python {platform.python_version()}; medians of {rounds} rounds of {jobs},000 jobs.\n")
    print("| | slots | worker (jobs/s) | own loop (jobs/s) | worker / own loop | worker / barest loop |")
    print("|---|---:|---:|---:|---:|---:|")
    for contender in CONTENDERS:
        for count, rows in found.items():
            print(_row(f"{contender.name} | {count}", [row[contender.name] for row in rows]))


def _row(title: str, found: Sequence[Found]) -> str:
    """Return a row of the table: medians, and the ratios of the rounds with their range."""
    rates = [statistics.median(each) for each in ([f.worker for f in found], [f.loop for f in found])]
    ratios = [[f.worker / f.loop for f in found], [f.worker / f.barest for f in found]]
    spans = [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios]
    return f"| {title} | {rates[0]:,.0f} | {rates[1]:,.0f} | {spans[0]} | {spans[1]} |"


if __name__ == "__main__":
    main()
