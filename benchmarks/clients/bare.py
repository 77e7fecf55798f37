"""The least that does a worker's part over HTTP: ``python -m benchmarks.clients.bare URL QUEUE SLOTS JOBS``.

Run as a program it starts ``true`` for each job, without any pipe, all those of an answer at once: what
``fencepost work`` stands beside.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

from benchmarks.load import Connection

# Looked for once, as a worker does.
_TRUE = shutil.which("true") or "/bin/true"


def nothing(_: int) -> None:
    """Do so many jobs that are empty."""


def run_true(count: int) -> None:
    """Run so many processes at once, and wait for their end."""
    for pid in [os.posix_spawn(_TRUE, ["true"], os.environ) for _ in range(count)]:
        os.waitpid(pid, 0)


async def loop(port: int, *, queue: str, slots: int, jobs: int, do: Callable[[int], None]) -> None:
    """Lease and complete, one after the other on one connection, and nothing else."""
    connection = await Connection.open(port)
    wish = {"worker_id": "loop", "queues": [queue], "max_jobs": slots, "lease_seconds": 60}
    done = 0
    while done < jobs:
        leased = (await connection.call_json("/v1/leases", wish, expect=200))["jobs"]
        do(len(leased))
        items = [{"job_id": job["id"], "lease_version": job["lease_version"]} for job in leased]
        await connection.call_json("/v1/leases/complete", {"items": items}, expect=200)
        done += len(leased)
    connection.close()


if __name__ == "__main__":
    its_url, its_queue, its_slots, its_jobs = sys.argv[1:]
    its_port = urlsplit(its_url).port or 80
    asyncio.run(loop(its_port, queue=its_queue, slots=int(its_slots), jobs=int(its_jobs), do=run_true))
