"""Measure the service in interleaved rounds and print medians, ranges and ratios as a Markdown table."""

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

ROUND = dict[str, float]


async def one_round(coalesced: Target, plain: Target, *, scale: float) -> ROUND:
    """Measure everything once; the pair that is compared runs back to back."""
    singles, bulk = int(8000 * scale), max(4, int(30 * scale))
    found: ROUND = {}
    found["single enqueue, 1 client (jobs/s)"] = await measures.single_enqueue(
        coalesced, clients=1, jobs=singles // 8
    )
    found["single enqueue, 32 clients (jobs/s)"] = await measures.single_enqueue(
        coalesced, clients=32, jobs=singles
    )
    found["the same, coalescing off (jobs/s)"] = await measures.single_enqueue(
        plain, clients=32, jobs=singles // 2
    )
    found["coalescing on / off (ratio)"] = (
        found["single enqueue, 32 clients (jobs/s)"] / found["the same, coalescing off (jobs/s)"]
    )
    coalesced.number("SELECT 1 FROM (SELECT pg_switch_wal()) s")

    async def enqueue_and_drain() -> None:
        found["batch enqueue, 1000 a call (jobs/s)"] = await measures.batch_enqueue(
            coalesced, queue="bulk", clients=2, batches=bulk
        )
        found["drain, 100 a call, 4 workers (jobs/s)"] = await measures.drain(
            coalesced, queue="bulk", clients=4, max_jobs=100, jobs=bulk * measures.BATCH
        )

    found["WAL, enqueue + drain, 200-byte payload (bytes/job)"] = await measures.wal_bytes(
        coalesced, enqueue_and_drain, jobs=bulk * measures.BATCH
    )
    drains = ((100, 4, bulk, True), (10, 8, max(2, bulk // 4), False), (10, 8, max(2, bulk // 4), True))
    single = max(1, bulk // 10)
    for max_jobs, clients, batches, combined in (*drains, (1, 16, single, False), (1, 16, single, True)):
        await measures.batch_enqueue(coalesced, queue=f"q{max_jobs}", clients=2, batches=batches)
        how = ", completed by the next lease call" if combined else ""
        found[f"drain, {max_jobs} a call, {clients} workers{how} (jobs/s)"] = await measures.drain(
            coalesced,
            queue=f"q{max_jobs}",
            clients=clients,
            max_jobs=max_jobs,
            jobs=batches * measures.BATCH,
            combined=combined,
        )
    latencies = await measures.pick_up_latencies(coalesced, samples=int(200 * scale) or 20)
    for percent in (50, 95, 99):
        index = min(len(latencies) - 1, len(latencies) * percent // 100)
        found[f"pick-up latency p{percent} (ms)"] = latencies[index]
    found["HOT share of heartbeats (ratio)"] = await measures.hot_ratio(coalesced, leases=500, beats=10)
    return found


def table(rounds: list[ROUND]) -> str:
    """Return a Markdown table: median, then the range over the rounds."""
    lines = ["| measurement | median | range |", "|---|---:|---:|"]
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        digits = 2 if max(values) < 100 else 0
        low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
        lines.append(f"| {name} | {statistics.median(values):,.{digits}f} | {low} to {high} |")
    return "\n".join(lines)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--scale", default=1.0, show_default=True, help="How much work a round is.")
def main(rounds: int, scale: float) -> None:
    """Measure the service on a bundled PostgreSQL of its own."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = BundledServer(Path(folder))
        url = server.start()
        try:
            with (
                running("target", url, "coalesced") as coalesced,
                running("target", url, "plain", "--uncoalesced") as plain,
            ):
                version = psycopg.connect(url).execute("SHOW server_version").fetchone()
                found = [uvloop.run(one_round(coalesced, plain, scale=scale)) for _ in range(rounds)]
        finally:
            server.stop()
    print(f"PostgreSQL {version[0] if version else '?'}, Python {platform.python_version()},")
    print(f"{rounds} rounds at scale {scale:g}; service, database and load share this machine's cores.\n")
    print(table(found))


if __name__ == "__main__":
    main()
