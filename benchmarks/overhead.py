"""Measure what the service adds to the least that could answer: single enqueues, beside a bare ASGI route.

Both stand on the same bundled PostgreSQL and use the same statement (see ``bare``), in interleaved rounds.
"""

import platform
import statistics
import tempfile
from pathlib import Path

import click
import psycopg
import uvloop

from app.embedded.server import BundledServer
from benchmarks import measures
from benchmarks.measures import Target
from benchmarks.running import running

# (jobs a second, microseconds of the server process's CPU a job)
Found = tuple[float, float]


async def _measure(target: Target, *, clients: int, jobs: int) -> Found:
    before = target.cpu_seconds()
    rate = await measures.single_enqueue(target, clients=clients, jobs=jobs)
    return rate, (target.cpu_seconds() - before) / jobs * 1e6


async def _round(service: Target, bare: Target, *, clients: int, jobs: int) -> tuple[Found, Found]:
    """Measure both, back to back."""
    return (
        await _measure(service, clients=clients, jobs=jobs),
        await _measure(bare, clients=clients, jobs=jobs),
    )


def _row(clients: int, rounds: list[tuple[Found, Found]]) -> str:
    """Return a row of the table: medians, and the median of the rounds' ratios with their range."""
    rates = [statistics.median(pair[side][0] for pair in rounds) for side in (0, 1)]
    costs = [statistics.median(pair[side][1] for pair in rounds) for side in (0, 1)]
    ratios = [service[0] / bare[0] for service, bare in rounds]
    return (
        f"| {clients} | {rates[0]:,.0f} | {rates[1]:,.0f} | {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f}) | {costs[0]:.0f} | {costs[1]:.0f} |"
    )


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--jobs", default=6000, show_default=True, help="Jobs a measurement.")
@click.option("--clients", default=[1, 16, 64], show_default=True, multiple=True, help="Clients at once.")
def main(rounds: int, jobs: int, clients: list[int]) -> None:
    """Measure single enqueues over HTTP, the service beside a bare route."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = BundledServer(Path(folder))
        url = server.start()
        try:
            with running("target", url, "service") as service, running("bare", url, "bare") as bare:
                version = psycopg.connect(url).execute("SHOW server_version").fetchone()
                found: dict[int, list[tuple[Found, Found]]] = {count: [] for count in clients}
                for _ in range(rounds):
                    for count in clients:
                        measured = _round(service, bare, clients=count, jobs=jobs // (8 if count == 1 else 1))
                        found[count].append(uvloop.run(measured))
        finally:
            server.stop()
    print(f"PostgreSQL {version[0] if version else '?'}, Python {platform.python_version()},")
    print(f"{rounds} rounds of {jobs} jobs; server, database and load share this machine's cores.\n")
    print("| clients | service (jobs/s) | bare (jobs/s) | ratio | service (µs CPU a job) | bare (µs CPU) |")
    print("|---:|---:|---:|---:|---:|---:|")
    for count, pairs in found.items():
        print(_row(count, pairs))


if __name__ == "__main__":
    main()
