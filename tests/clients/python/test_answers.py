"""Answers that are not what the service says: a proxy's page, a broken body, a number beyond all measure."""

import asyncio
import time
from collections.abc import Callable
from decimal import Decimal

import httpx
import pytest
from fencepost import AsyncClient, Client, Job, Unavailable, Worker
from fencepost.calls import Calls
from fencepost.heartbeats import Heartbeats
from fencepost.leases import Lease, Leases
from fencepost.stops import LocalExpiry, Stop

from tests.clients.python.running import running

GOOD = httpx.Response(200, json={"jobs": []})
# Made anew for each use: a broken body is read once.
ODD: dict[str, Callable[[], httpx.Response]] = {
    "a page": lambda: httpx.Response(200, text="<html>back soon</html>"),
    "a list": lambda: httpx.Response(200, json=[]),
    "nothing": lambda: httpx.Response(200),
    "broken gzip": lambda: httpx.Response(
        200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip")
    ),
}
odd = pytest.mark.parametrize("make", ODD.values(), ids=ODD)


class Script:
    """A service that gives its answers one after the other, and the last one for ever."""

    def __init__(self, *answers: httpx.Response) -> None:
        self._answers = list(answers)
        self.asked_at: list[float] = []

    def __call__(self, _: httpx.Request) -> httpx.Response:
        self.asked_at.append(time.monotonic())
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    @property
    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(self))


@odd
async def test_a_worker_repeats_a_call_whose_answer_it_cannot_read(
    make: Callable[[], httpx.Response],
) -> None:
    script = Script(make(), GOOD)
    async with script.http as http:
        await Calls(http).post("/v1/leases", b"{}", timeout_seconds=1)
    assert len(script.asked_at) == 2


@odd
def test_a_producer_repeats_a_call_whose_answer_it_cannot_read(make: Callable[[], httpx.Response]) -> None:
    script = Script(make(), httpx.Response(201, json={"id": "a"}))
    client = Client(retry_seconds=60)
    client._http = httpx.Client(base_url="http://service", transport=httpx.MockTransport(script))
    with client:
        assert client.submit("mail").id == "a"


async def test_a_producer_says_why_there_was_no_answer() -> None:
    client = AsyncClient(retry_seconds=0)
    client._http = Script(ODD["a page"]()).http
    async with client:
        with pytest.raises(Unavailable, match="200 without a JSON object"):
            await client.get("a")


async def test_a_heartbeat_waits_for_as_long_as_retry_after_says() -> None:
    both_were_sent = asyncio.Event()
    script = Script(httpx.Response(429, headers={"Retry-After": "1"}), httpx.Response(503))

    def answer(request: httpx.Request) -> httpx.Response:
        if script.asked_at:
            both_were_sent.set()
        return script(request)

    leases = Leases(1)
    facts = {"id": "a", "lease_version": 7, "lease_seconds": 30, "deadline_at": None}
    leases.take(
        Lease(facts, stop=Stop(LocalExpiry(float("inf"))), deadline=float("inf"), asked_at=float("-inf"))
    )
    async with httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(answer)) as http:
        heartbeats = Heartbeats(
            Calls(http), leases, lease_seconds=0.3, lose=lambda *_: None, tell=lambda *_: None
        )
        beating = asyncio.create_task(heartbeats.run())
        await asyncio.wait_for(both_were_sent.wait(), 60)
        beating.cancel()
    first, second = script.asked_at[:2]
    assert second - first >= 1


def test_a_number_of_more_digits_than_python_reads_ends_no_worker(
    url: str, producer: Client, queue: str
) -> None:
    digits = "1" * 5_000
    job = f'{{"kind":"count","queue":"{queue}","payload":{{"many":{digits},"few":{2**64}}}}}'
    made = httpx.post(f"{url}/v1/jobs", content=job, headers={"Content-Type": "application/json"})
    worker = Worker(url, queues=[queue])

    @worker.handler("count")
    def count(job: Job) -> list[object]:
        return [str(job.payload["many"]), job.payload["few"]]

    with running(worker):
        read = producer.wait(made.headers["Location"].rpartition("/")[2], 60)
    assert read["result"] == [digits, 2**64]
    assert read["payload"]["many"] == Decimal(digits)
