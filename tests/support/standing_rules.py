"""The service as its clients see it, and what must hold after every case of the bug collection.

Seen      what the callers of one test were answered, over all replicas
Caller    calls one replica; every answer is looked at as it arrives
check     the aftermath: ready, quick, complete in its lists, each job in one state, the doctor content
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from app.domain.job import JobState
from app.main import run_doctor
from app.settings import Settings
from tests.support.server import ServerProcess
from tests.support.stopwatch import until_quick
from tests.support.waiting import DEADLINE_SECONDS

Json = dict[str, Any]

CYCLE_SECONDS = 2.0
_AFTERMATH = "aftermath"
_FORBIDDEN_IN_ERRORS = ("traceback", "psycopg", "sqlalchemy", "select ", "fencepost.", "postgresql://")


@dataclass
class Seen:
    """``job_ids`` were promised by a 201, ``purged_ids`` of them are past their retention.

    ``server_errors`` are answers that no case expects; 503 is one unless ``expects_unavailable``.
    """

    job_ids: set[str] = field(default_factory=set)
    purged_ids: set[str] = field(default_factory=set)
    server_errors: list[str] = field(default_factory=list)
    expects_unavailable: bool = False

    def note(self, answer: httpx.Response) -> None:
        """Look at one answer. Raises AssertionError when an error is not of the promised shape."""
        path = answer.request.url.path
        if answer.status_code >= 500 and not (self.expects_unavailable and answer.status_code == 503):
            self.server_errors.append(f"{answer.request.method} {path}: {answer.status_code} {answer.text}")
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", answer.text
            problem = answer.json()
            assert problem["status"] == answer.status_code
            assert problem["code"]
            assert not [word for word in _FORBIDDEN_IN_ERRORS if word in answer.text.lower()], answer.text
        if answer.status_code == 201 and path == "/v1/jobs":
            self.job_ids.add(answer.json()["id"])
        elif answer.status_code == 201 and path == "/v1/jobs/batch":
            self.job_ids |= {item["job"]["id"] for item in answer.json()["jobs"]}


class Caller:
    """Verbs of the contract against one replica; a member that a verb does not name goes into its body."""

    def __init__(
        self,
        url: str,
        seen: Seen,
        *,
        server: ServerProcess | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.url = url
        self.seen = seen
        self._server = server
        self._http = http or httpx.AsyncClient(
            base_url=url,
            timeout=60,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    @property
    def server(self) -> ServerProcess:
        """The process that answers, when this test started it."""
        assert self._server is not None
        return self._server

    async def call(
        self, method: str, path: str, body: Json | None = None, *, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        answer = await self._http.request(method, path, json=body, headers=headers)
        self.seen.note(answer)
        return answer

    async def submit(self, *, kind: str = "case", **members: object) -> Json:
        """Create one job; returns it."""
        answer = await self.call("POST", "/v1/jobs", {"kind": kind, **members})
        assert answer.status_code == 201, answer.text
        created: Json = answer.json()
        return created

    async def submit_many(self, count: int, *, kind: str = "case", **members: object) -> list[Json]:
        """Create ``count`` equal jobs in one batch, payloads 0, 1, 2 …; returns them in order."""
        jobs = [{"kind": kind, "payload": number, **members} for number in range(count)]
        answer = await self.call("POST", "/v1/jobs/batch", {"jobs": jobs})
        assert answer.status_code == 201, answer.text
        return [item["job"] for item in answer.json()["jobs"]]

    async def lease(
        self, *, worker_id: str = "worker", queues: Sequence[str] = ("default",), **members: object
    ) -> list[Json]:
        """Lease; returns the leased jobs, maybe none."""
        answer = await self.call(
            "POST", "/v1/leases", {"worker_id": worker_id, "queues": list(queues), **members}
        )
        assert answer.status_code == 200, answer.text
        leased: list[Json] = answer.json()["jobs"]
        return leased

    async def lease_one(self, *, wait_seconds: float = 20, **members: Any) -> Json:
        leased = await self.lease(wait_seconds=wait_seconds, **members)
        assert len(leased) == 1, leased
        return leased[0]

    async def say(self, verb: str, leased: Json, **members: object) -> httpx.Response:
        """Make a holder call (heartbeat, complete, fail, release, verify) under the lease's version."""
        body = {"lease_version": leased["lease_version"], **members}
        return await self.call("POST", f"/v1/jobs/{leased['id']}/{verb}", body)

    async def complete(self, leased: Json, **members: object) -> Json:
        answer = await self.say("complete", leased, **members)
        assert answer.status_code == 200, answer.text
        job: Json = answer.json()
        return job

    async def job(self, job_id: str) -> Json:
        answer = await self.call("GET", f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        job: Json = answer.json()
        return job

    async def attempts(self, job_id: str) -> list[Json]:
        """Return the history of a job's attempts, oldest first (the first 200)."""
        answer = await self.call("GET", f"/v1/jobs/{job_id}/attempts?limit=200")
        assert answer.status_code == 200, answer.text
        attempts: list[Json] = answer.json()["attempts"]
        return attempts

    async def pages(self, **filters: str) -> AsyncIterator[Json]:
        """Yield every job of the paged list."""
        cursor: dict[str, str] = {}
        while True:
            parameters = httpx.QueryParams({"limit": "200", **filters, **cursor})
            answer = await self.call("GET", f"/v1/jobs?{parameters}")
            assert answer.status_code == 200, answer.text
            page = answer.json()
            for job in page["jobs"]:
                yield job
            if page["next_cursor"] is None:
                return
            cursor = {"cursor": page["next_cursor"]}


# Starts one more replica; keyword arguments are FENCEPOST_ variables.
Start = Callable[..., Caller]


async def check(caller: Caller, *, database_url: str) -> None:
    """Raise AssertionError for the first standing rule that is broken."""
    assert caller.seen.server_errors == []
    ready = await caller.call("GET", "/readyz")
    assert ready.status_code == 200, ready.text
    for watch in until_quick(seconds=CYCLE_SECONDS):
        with watch:
            await _cycle(caller)
    await _check_lists(caller)
    assert await run_doctor(Settings(), database_url) == []


async def _cycle(caller: Caller) -> None:
    queue = f"{_AFTERMATH}-{uuid.uuid4().hex[:8]}"
    job = await caller.submit(queue=queue, kind=_AFTERMATH)
    # Where the case has a short retention, it may be purged before the list is read.
    caller.seen.job_ids.remove(job["id"])
    leased = await caller.lease_one(worker_id=_AFTERMATH, queues=[queue])
    assert (leased["id"], leased["attempt"]) == (job["id"], 1)
    assert (await caller.complete(leased, result="done"))["state"] == "succeeded"


async def _check_lists(caller: Caller) -> None:
    listed = await _listed(caller)
    assert len(listed) == len(set(listed)), "a job stands in the list twice"
    missing = caller.seen.job_ids - caller.seen.purged_ids - set(listed)
    assert not missing, "jobs that were promised are not in the list"
    by_state = [await _listed(caller, state=state.value) for state in JobState]
    assert sorted(job_id for ids in by_state for job_id in ids) == sorted(listed)


async def _listed(caller: Caller, **filters: str) -> list[str]:
    return [job["id"] async for job in caller.pages(**filters) if job["kind"] != _AFTERMATH]


async def until(
    condition: Callable[[], Awaitable[object]], *, timeout_seconds: float = DEADLINE_SECONDS
) -> None:
    """Ask the condition until it is true; fail when that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)
