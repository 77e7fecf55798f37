"""The least that could answer POST /v1/jobs: ``python -m benchmarks.bare PORT DATABASE_URL``.

The same server library, parser and event loop, the same body and answer, the same coalescer and statement.
No routing, no checks, no limits, no deadlines, no request ids, no errors: what stands between this and the
service is what those cost.
"""

import asyncio
import sys
from functools import partial
from typing import Any

import msgspec
import uvicorn

from app.api.schemas import JobRequest
from app.api.views import job_view
from app.domain.job import JobSpec
from app.domain.retention import Retention
from app.main import migrate
from app.operations.coalescer import Coalescer
from app.operations.context import Context
from app.operations.submit import Submitted, submit_jobs
from app.serving import open_listener
from app.settings import Settings
from app.store.engine import Database


class _NobodyWaits:
    """Told of new jobs, and tells nobody."""

    def jobs_ready(self, counts: object) -> None: ...
    def job_scheduled(self, due_in_seconds: float) -> None: ...
    def jobs_finished(self, job_ids: object) -> None: ...


class BareRoute:
    """An ASGI application that takes every request for the submission of a job."""

    def __init__(self, submit: Coalescer[JobSpec, Submitted]) -> None:
        self._submit = submit
        self._decode = msgspec.json.Decoder(JobRequest).decode
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        body = b""
        is_there = False
        while not is_there:
            message = await receive()
            body += message["body"]
            is_there = not message["more_body"]
        asked = self._decode(body)
        spec = JobSpec(kind=asked.kind, queue=asked.queue, payload=bytes(asked.payload or b"null").decode())
        submitted = await self._submit.submit(spec)
        content = self._encode(job_view(submitted.job))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def _serve(port: int, database_url: str) -> None:
    database = Database(database_url, pool_size=Settings().pool_size)
    context = Context(database, Retention(), _NobodyWaits())
    route = BareRoute(Coalescer(partial(submit_jobs, context)))
    config = uvicorn.Config(
        route, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    try:
        with open_listener("127.0.0.1", port) as listener:
            await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        await database.close()


def main() -> None:
    """Serve until SIGTERM."""
    port, database_url = int(sys.argv[1]), sys.argv[2]
    migrate(database_url)
    with asyncio.Runner(loop_factory=uvicorn.Config(BareRoute, loop="uvloop").get_loop_factory()) as runner:
        runner.run(_serve(port, database_url))


if __name__ == "__main__":
    main()
