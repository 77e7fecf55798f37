"""See whether a job costs more when there are many of them, and print Markdown tables.

    python -m benchmarks.growth               up to a million jobs, about six minutes
    python -m benchmarks.growth --full        ten million finished ones as well
    python -m benchmarks.growth --scale 0.01  a look whether it runs

A bundled PostgreSQL with fsync on, of its own. The first three tables are the operations without HTTP in one
process on one connection; the last is the service as it is served.
"""

import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import psycopg
import uvloop

from app.embedded.server import BundledServer
from benchmarks.ground import ground
from benchmarks.meter import Spent
from benchmarks.pinned import Lane, measure_pinned
from benchmarks.pools import measure_pools
from benchmarks.stocks import FINISHED, READY, Stock
from benchmarks.strain import measure_strain
from benchmarks.verbs import VERBS, measure_verbs

READY_COUNTS = (1_000, 10_000, 100_000, 1_000_000)
FINISHED_COUNTS = (100_000, 1_000_000)
MOST_FINISHED = 10_000_000
SCHEDULED_COUNT = 1_000_000
QUEUE_COUNT = 10_000
CHURN_COUNT = 100_000
# Beside finished jobs some are always ready.
_LIVE = 1_000
_MIN_TURNS = 2


async def cost_table(server_url: str, stocks: Sequence[Stock], *, turns: int) -> str:
    """Return what a job costs in each verb, a line a stock."""
    rows = []
    for stock in stocks:
        async with ground(server_url, stock) as place:
            if stock.statement is FINISHED:
                Stock(READY, _LIVE).fill(place.connection)
            spent = await measure_verbs(place, turns=turns)
        kind = "ready" if stock.statement is READY else "finished"
        rows.append([f"{stock.job_count:,} {kind}", *(_cost(spent[verb]) for verb in VERBS)])
    return table(["jobs in the table", *VERBS], rows)


def _cost(spent: Spent) -> str:
    return f"{spent.wall_us_a_job:,.1f} / {spent.cpu_us_a_job:,.1f} / {spent.wal_bytes_a_job:,.0f}"


def strain_table(found: dict[str, Spent]) -> str:
    """Return what claims took, a line a situation."""
    return table(
        ["claim", "median (ms)", "CPU (µs/job)", "WAL (bytes/job)"],
        [
            [name, f"{spent.median_ms:,.2f}", f"{spent.cpu_us_a_job:,.1f}", f"{spent.wal_bytes_a_job:,.0f}"]
            for name, spent in found.items()
        ],
    )


def pinned_table(lanes: Sequence[Lane]) -> str:
    """Return the first and the last round of each lane; the ratio is of its rate to that of its free twin."""
    rows = []
    free = lanes[0]
    for lane in lanes:
        free = free if lane.is_pinned else lane
        rows.append(
            [
                lane.name,
                f"{lane.claim_ms[0]:,.2f} to {lane.claim_ms[-1]:,.2f}",
                f"{lane.jobs_a_second[0]:,.0f} to {lane.jobs_a_second[-1]:,.0f}",
                f"{lane.jobs_a_second[-1] / free.jobs_a_second[-1]:.2f}",
            ]
        )
    return table(["churn", "claim, first to last round (ms)", "jobs/s", "last round, to the free twin"], rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its first column to the left."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def measure(
    folder: Path, server_url: str, *, is_full: bool, scale: float, say: Callable[[str], None]
) -> None:
    """Measure everything, and say each table as soon as it is there."""

    def scaled(count: int) -> int:
        return max(int(count * scale), _LIVE)

    finished = (*FINISHED_COUNTS, MOST_FINISHED) if is_full else FINISHED_COUNTS
    stocks = [Stock(READY, scaled(count)) for count in READY_COUNTS]
    stocks += [Stock(FINISHED, scaled(count)) for count in finished]
    costs = await cost_table(server_url, stocks, turns=max(int(30 * scale), _MIN_TURNS))
    say(f"A job in calls of 100: wall µs / CPU µs of the backend / bytes of log.\n\n{costs}\n")
    strain = await measure_strain(
        server_url,
        claims=max(int(300 * scale), 10),
        scheduled=scaled(SCHEDULED_COUNT),
        queues=scaled(QUEUE_COUNT),
    )
    say(f"{strain_table(strain)}\n")
    lanes = await measure_pinned(server_url, jobs=scaled(CHURN_COUNT), rounds=5)
    say(f"{pinned_table(lanes)}\n")
    pools = await measure_pools(folder, jobs=scaled(5_000), rounds=3 if scale >= 1 else 1)
    say(
        table(
            [
                "processes, connections each",
                "single enqueue, 32 clients (jobs/s)",
                "drain, 100 a call (jobs/s)",
            ],
            [
                [f"{processes}, {pool_size}", *(f"{rate:,.0f}" for rate in rates)]
                for (processes, pool_size), rates in pools.items()
            ],
        )
    )


@click.command()
@click.option("--full", is_flag=True, help="Ten million finished jobs as well.")
@click.option("--scale", default=1.0, show_default=True, help="How many jobs, and how many calls.")
def main(*, full: bool, scale: float) -> None:
    """Measure what many jobs cost each other, on a bundled PostgreSQL of its own."""
    with tempfile.TemporaryDirectory(prefix="fencepost-growth-") as name:
        folder = Path(name)
        server = BundledServer(folder / "operations")
        url = server.start()
        try:
            with psycopg.connect(url) as connection:
                version = connection.info.parameter_status("server_version")
            print(f"PostgreSQL {version}, Python {platform.python_version()}, scale {scale:g}.\n", flush=True)
            uvloop.run(
                measure(
                    folder / "service",
                    url,
                    is_full=full,
                    scale=scale,
                    say=lambda text: print(text, flush=True),
                )
            )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
