"""The scripted server takes what the service takes, and its faults are what they say."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from clients.conformance.case import JobPlan
from clients.conformance.contract import Contract
from clients.conformance.faults import Faults, read_fault
from clients.conformance.record import ANSWERED, CLOSED, LOST, RESET, Call, Record
from clients.conformance.server import Server
from clients.conformance.service import Service
from tests.support.waiting import DEADLINE_SECONDS, until

LEASE = {"worker_id": "w", "queues": ["default"], "request_id": "r"}
CONTRACT = Contract()


class Stand:
    """A server with two jobs, and a client of it."""

    def __init__(self, api_key: str | None = None, *faults: dict[str, Any]) -> None:
        self.record = Record()
        self.service = Service([JobPlan("a", []), JobPlan("b", [], later=True)], seed=1)
        self.server = Server(
            self.service, Faults(faults), self.record, CONTRACT, clock=time.monotonic, api_key=api_key
        )

    async def send(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        url = f"http://127.0.0.1:{self.server.port}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_SECONDS) as client:
            if body is None:
                return await client.get(path, **options)
            return await client.post(path, json=body, **options)

    async def grant(self) -> dict[str, Any]:
        """Lease what there is; return the token of the one job."""
        [job] = (await self.send("/v1/leases", LEASE)).json()["jobs"]
        return {"job_id": job["id"], "lease_version": job["lease_version"]}

    @property
    def last(self) -> Call:
        return list(self.record.calls())[-1]


Made = Callable[..., Awaitable[Stand]]


@pytest.fixture
async def stand() -> AsyncIterator[Made]:
    stands = []

    async def make(*faults: dict[str, Any], api_key: str | None = None) -> Stand:
        made = Stand(api_key, *faults)
        await made.server.start()
        stands.append(made)
        return made

    yield make
    for made in stands:
        await made.server.stop()
        assert made.server.errors == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/leases", {**LEASE, "max": 1}, 422),
        ("/v1/leases", {**LEASE, "max_jobs": 1.0}, 422),
        ("/v1/leases", {**LEASE, "max_jobs": True}, 422),
        ("/v1/leases", {**LEASE, "lease_seconds": 0}, 422),
        ("/v1/leases/complete", {"items": [{"job_id": "x", "lease_version": 1}]}, 422),
        (
            "/v1/leases/fail",
            {"items": [{"job_id": "0" * 8 + "-0000" * 3 + "-" + "0" * 12, "lease_version": 1}]},
            422,
        ),
        ("/v1/jobs/x/heartbeat", {}, 422),
        ("/v1/jobs/x/finish", {}, 404),
        ("/v1/jobs", {"payload": 1}, 422),
        ("/v1/leases?worker_id=w&more=1", None, 422),
    ],
)
async def test_request_that_the_service_refuses_is_malformed(
    stand: Made, path: str, body: Any, status: int
) -> None:
    here = await stand()
    assert (await here.send(path, body)).status_code == status
    assert here.last.malformed


async def test_bodies_that_are_no_strict_json_are_malformed(stand: Made) -> None:
    here = await stand()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{here.server.port}") as client:
        json = {"Content-Type": "application/json"}
        assert (await client.post("/v1/jobs", content=b'{"kind": "a"}')).status_code == 415
        assert (await client.post("/v1/jobs", content=b"{", headers=json)).status_code == 400
        assert (await client.post("/v1/jobs", content=b'{"kind": NaN}', headers=json)).status_code == 400
        twice = b'{"kind": "a", "kind": "b"}'
        assert (await client.post("/v1/jobs", content=twice, headers=json)).status_code == 400
        assert (
            await client.post("/v1/leases", json=LEASE, headers={"Idempotency-Key": "k"})
        ).status_code == 422
        chunked = (
            await client.post("/v1/jobs", content=chunks(b'{"kind": ', b'"a"}'), headers=json)
        ).status_code
        assert chunked == 201
    assert [bool(call.malformed) for call in here.record.calls()] == [True, True, True, True, True, False]


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_lease_call_is_repeated_with_the_same_grant(stand: Made) -> None:
    here = await stand()
    assert await here.grant() == await here.grant()


async def test_parked_lease_call_is_answered_when_a_job_is_offered(stand: Made) -> None:
    here = await stand()
    await here.grant()
    parked = asyncio.create_task(here.send("/v1/leases", {**LEASE, "request_id": "s", "wait_seconds": 20}))
    await until(lambda: len(list(here.record.calls("lease"))) == 2)
    here.service.offer("b")
    here.server.wake()
    assert len((await parked).json()["jobs"]) == 1


async def test_parked_lease_call_whose_client_went_leases_nothing(stand: Made) -> None:
    here = await stand()
    await here.grant()
    parked = asyncio.create_task(here.send("/v1/leases", {**LEASE, "request_id": "s", "wait_seconds": 20}))
    await until(lambda: len(list(here.record.calls("lease"))) == 2)
    parked.cancel()
    await until(lambda: here.last.outcome == CLOSED)
    here.service.offer("b")
    here.server.wake()
    assert here.service.jobs["b"].state == "waiting"


async def test_single_and_many_forms_are_one_in_the_record(stand: Made) -> None:
    here = await stand()
    token = await here.grant()
    one = await here.send(f"/v1/jobs/{token['job_id']}/heartbeat", {"lease_version": token["lease_version"]})
    many = await here.send("/v1/leases/heartbeat", {"items": [token]})
    assert set(one.json()) <= set(many.json()["results"][0])
    assert [call.items[0].status for call in here.record.calls("heartbeat")] == ["ok", "ok"]


async def test_completions_within_a_lease_call_are_a_complete_in_the_record(stand: Made) -> None:
    here = await stand()
    token = await here.grant()
    answer = await here.send("/v1/leases", {**LEASE, "request_id": "s", "complete": [{**token, "result": 1}]})
    assert answer.json()["completed"][0]["status"] == "ok"
    [call] = here.record.calls("complete")
    assert (call.outcome, call.items[0].job, call.items[0].body) == (ANSWERED, "a", {"result": 1})


async def test_end_is_replayed_lost_and_forgotten_as_by_the_service(stand: Made) -> None:
    here = await stand()
    token = await here.grant()

    async def status(verb: str, **members: Any) -> str:
        answer = await here.send(f"/v1/leases/{verb}", {"items": [{**token, **members}]})
        return str(answer.json()["results"][0]["status"])

    assert await status("complete", result=1) == "ok"
    assert await status("complete", result=1) == "replayed"
    assert await status("complete", result=2) == "lease_lost"
    assert await status("release") == "lease_lost"
    here.service.forget("a")
    assert await status("complete", result=1) == "not_found"


async def test_single_refusal_has_the_shape_of_the_service(stand: Made) -> None:
    here = await stand()
    token = await here.grant()
    here.service.lose("a")
    answer = await here.send(f"/v1/jobs/{token['job_id']}/verify", {"lease_version": token["lease_version"]})
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["current_version"]) == ("lease_lost", token["lease_version"] + 1)
    assert here.last.answer_to(here.last.items[0]) == "lease_lost"


async def test_lost_answer_was_done_and_a_reset_was_not(stand: Made) -> None:
    here = await stand({"to": "complete", "reset": True}, {"to": "complete", "lost": True})
    token = await here.grant()
    for outcome, state in [(RESET, "held"), (LOST, "ended")]:
        with pytest.raises(httpx.RemoteProtocolError):
            await here.send("/v1/leases/complete", {"items": [token]})
        assert (here.last.outcome, here.service.jobs["a"].state) == (outcome, state)


async def test_refusal_befalls_the_calls_that_it_fits(stand: Made) -> None:
    here = await stand({"to": "lease", "status": 503, "skip": 1, "times": 2, "retry_after": 7})
    answers = [await here.send("/v1/leases", {**LEASE, "request_id": str(number)}) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 503, 503, 200]
    assert answers[1].headers["retry-after"] == "7"


async def test_server_that_is_away_refuses_connections_until_it_is_back(stand: Made) -> None:
    here = await stand()
    await here.server.go_away(None)
    with pytest.raises(httpx.ConnectError):
        await here.grant()
    await here.server.come_back()
    await here.grant()
    await here.server.go_away(read_fault({"to": "all", "status": 503, "times": "always"}))
    assert (await here.send("/v1/leases", LEASE)).status_code == 503


async def test_call_without_the_api_key_is_refused(stand: Made) -> None:
    here = await stand(api_key="secret")
    assert (await here.send("/v1/leases", LEASE)).status_code == 401
    shown = {"Authorization": "Bearer secret"}
    assert (await here.send("/v1/leases", LEASE, headers=shown)).status_code == 200
