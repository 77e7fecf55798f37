"""The witness writes down what went through, and hides nothing of it from either side."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.history import Answered, Asked, Unanswered, read
from tests.chaos.witness import Witness
from tests.support.waiting import DEADLINE_SECONDS, until

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nIdempotent-Replayed: true\r\n"
    b'Content-Length: 11\r\n\r\n{"a": 0.10}'
)


class Service:
    """What stands behind the witness: answers as it is told to."""

    def __init__(self) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.left = asyncio.Event()
        self.answer: bytes | None = ANSWER

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        if self.answer is None:
            while await reader.read(1024):
                pass
            self.left.set()
        else:
            writer.write(self.answer)
        writer.close()


@pytest.fixture(name="service")
async def _service() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield service
    server.close()


@pytest.fixture(name="part")
def _part(tmp_path: Path) -> Path:
    return tmp_path / "program.part"


@pytest.fixture(name="witness")
async def _witness(service: Service, part: Path) -> AsyncIterator[Witness]:
    witness = Witness("program", replicas={"r0": service.url}, part=part)
    await witness.open()
    yield witness
    await witness.close()


async def test_call_and_answer_go_through_and_are_written_down(
    witness: Witness, service: Service, part: Path
) -> None:
    async with httpx.AsyncClient(base_url=witness.url) as client:
        answer = await client.post("/v1/jobs?x=1", json={"kind": "k"}, headers={"Idempotency-Key": "key"})
    assert answer.content == b'{"a": 0.10}'
    assert answer.headers["idempotent-replayed"] == "true"
    assert service.heads[0].startswith(b"POST /v1/jobs?x=1 HTTP/1.1")
    assert b"idempotency-key: key" in service.heads[0].lower()
    asked, answered = read(part)
    assert isinstance(asked, Asked)
    assert isinstance(answered, Answered)
    assert (asked.client, asked.replica, asked.path) == ("program", "r0", "/v1/jobs")
    assert (asked.body, asked.key) == ({"kind": "k"}, "key")
    assert (answered.call, answered.status, answered.body) == (asked.call, 200, {"a": 0.10})
    assert answered.is_replay


async def test_a_read_goes_through_unwritten(witness: Witness, part: Path) -> None:
    async with httpx.AsyncClient(base_url=witness.url) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
    assert read(part) == []


async def test_a_program_that_leaves_is_seen_to_leave_by_the_service(
    witness: Witness, service: Service, part: Path
) -> None:
    service.answer = None
    async with httpx.AsyncClient(base_url=witness.url) as client:
        waiting = asyncio.create_task(client.post("/v1/leases", json={}))
        await until(lambda: bool(service.heads))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await service.left.wait()
    await until(lambda: len(read(part)) == 2)
    assert isinstance(read(part)[1], Unanswered)


async def test_a_service_that_breaks_off_breaks_the_call(
    witness: Witness, service: Service, part: Path
) -> None:
    service.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"
    async with httpx.AsyncClient(base_url=witness.url) as client:
        with pytest.raises(httpx.TransportError):
            await client.post("/v1/leases", json={})
    assert isinstance(read(part)[1], Unanswered)
