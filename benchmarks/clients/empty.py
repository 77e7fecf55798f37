"""An empty handler in Python: ``python -m benchmarks.clients.empty worker | loop URL QUEUE SLOTS JOBS``.

``worker`` runs the client's worker until SIGTERM; ``loop`` is the least that does the same with httpx.
"""

import asyncio
import sys

import httpx
from fencepost import AsyncJob, Worker


def work(url: str, queue: str, slots: int) -> None:
    worker = Worker(url, queues=[queue], concurrency=slots)

    @worker.handler()
    async def handle(job: AsyncJob) -> None:
        """Do nothing."""

    worker.run()


async def loop(url: str, queue: str, slots: int, jobs: int) -> None:
    wish = {"worker_id": "loop", "queues": [queue], "max_jobs": slots, "lease_seconds": 60}
    async with httpx.AsyncClient(base_url=url) as client:
        while jobs > 0:
            leased = (await client.post("/v1/leases", json=wish)).raise_for_status().json()["jobs"]
            items = [{"job_id": job["id"], "lease_version": job["lease_version"]} for job in leased]
            (await client.post("/v1/leases/complete", json={"items": items})).raise_for_status()
            jobs -= len(leased)


if __name__ == "__main__":
    mode, its_url, its_queue, its_slots, its_jobs = sys.argv[1:]
    if mode == "worker":
        work(its_url, its_queue, int(its_slots))
    else:
        asyncio.run(loop(its_url, its_queue, int(its_slots), int(its_jobs)))
