"""``fencepost serve`` over HTTP with one and two server processes, and pools of several sizes."""

import statistics
from pathlib import Path

from app.embedded.server import BundledServer
from benchmarks import measures
from benchmarks.measures import Target
from benchmarks.soak import running_service

SIZES = tuple((processes, pool_size) for processes in (1, 2) for pool_size in (1, 2, 4, 8))
_CLIENTS = 32
_WORKERS = 4


async def measure_pools(folder: Path, *, jobs: int, rounds: int) -> dict[tuple[int, int], list[float]]:
    """Return the medians, by processes and pool size: single enqueue and drain, jobs/s each."""
    found: dict[tuple[int, int], list[list[float]]] = {sizes: [] for sizes in SIZES}
    for number in range(rounds):
        for sizes in SIZES if number % 2 else reversed(SIZES):
            found[sizes].append(await _measure(folder, *sizes, jobs=jobs))
    return {
        sizes: [statistics.median(values) for values in zip(*rates, strict=True)]
        for sizes, rates in found.items()
    }


async def _measure(folder: Path, processes: int, pool_size: int, *, jobs: int) -> list[float]:
    batches = max(1, jobs // measures.BATCH)
    variables = {"FENCEPOST_POOL_SIZE": str(pool_size)}
    with running_service(folder, processes=processes, variables=variables) as (process, port):
        # The server runs already: this finds out its address.
        target = Target(port, process.pid, BundledServer(folder).start())
        single = await measures.single_enqueue(target, clients=_CLIENTS, jobs=jobs)
        await measures.batch_enqueue(target, queue="bulk", clients=2, batches=batches)
        drained = await measures.drain(
            target, queue="bulk", clients=_WORKERS, max_jobs=100, jobs=batches * measures.BATCH
        )
    return [single, drained]
