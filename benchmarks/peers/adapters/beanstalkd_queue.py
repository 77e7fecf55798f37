"""beanstalkd through greenstalk, a client that blocks: one connection a thread."""

import asyncio
import json
import threading
from urllib.parse import urlsplit

import greenstalk

from benchmarks.peers.adapters import shell


class BeanstalkdQueue(shell.Queue):
    def __init__(self) -> None:
        self._local = threading.local()

    async def setup(self) -> None:
        client = self._client()
        while True:
            try:
                client.delete(client.reserve(timeout=0))
            except greenstalk.TimedOutError:
                return

    async def enqueue_one(self, payload: shell.Payload) -> None:
        await asyncio.to_thread(lambda: self._client().put(json.dumps(payload)))

    async def prepare_worker(self, handler: shell.Handler) -> None:
        self._handler = handler

    async def work(self) -> None:
        await asyncio.to_thread(self._loop)

    def _loop(self) -> None:
        client = self._client()
        while True:
            job = client.reserve()
            self._handler(json.loads(job.body))
            client.delete(job)

    def _client(self) -> greenstalk.Client:
        if not hasattr(self._local, "client"):
            address = urlsplit(shell.URL)
            self._local.client = greenstalk.Client(
                (address.hostname, address.port), use="bench", watch=["bench"]
            )
        return self._local.client


if __name__ == "__main__":
    shell.main(BeanstalkdQueue)
