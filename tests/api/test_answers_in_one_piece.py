"""What the server hands to the kernel: an answer goes out in one piece, or as uvicorn sends it."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from app.connections import Cycle

HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"2")]


@dataclass
class Transport:
    """Remembers what is written to it."""

    written: list[bytes] = field(default_factory=list)
    is_closed: bool = False

    def write(self, data: bytes) -> None:
        if data:
            self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@dataclass
class Exchange:
    """A request that waits for its answer."""

    cycle: Cycle
    transport: Transport
    answered: list[str]

    async def answer(self, *pieces: bytes, headers: list[tuple[bytes, bytes]], status: int = 200) -> None:
        await self.cycle.send({"type": "http.response.start", "status": status, "headers": headers})
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces)
            await self.cycle.send({"type": "http.response.body", "body": piece, "more_body": not is_last})


def exchange(*, method: str = "GET", keep_alive: bool = True) -> Exchange:
    transport = Transport()
    answered: list[str] = []
    plain = cast("asyncio.Transport", transport)
    cycle = Cycle(
        scope=cast("Any", {"type": "http", "method": method}),
        transport=plain,
        flow=FlowControl(plain),
        logger=logging.getLogger(__name__),
        access_logger=logging.getLogger(__name__),
        access_log=False,
        default_headers=[(b"date", b"now")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: answered.append("answered"),
    )
    return Exchange(cycle, transport, answered)


async def test_head_and_body_are_one_write() -> None:
    asked = exchange()
    await asked.answer(b"{}", headers=HEADERS)
    assert asked.transport.written == [
        b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    ]
    assert asked.answered == ["answered"]
    assert not asked.transport.is_closed


async def test_head_alone_goes_out_for_head_with_the_length_that_get_would_have() -> None:
    asked = exchange(method="HEAD")
    await asked.answer(b"{}", headers=HEADERS)
    (written,) = asked.transport.written
    assert written.endswith(b"content-length: 2\r\n\r\n")


@pytest.mark.parametrize(
    ("keep_alive", "more_headers"),
    [(False, []), (True, [(b"connection", b"Close")])],
    ids=["the client asked for it", "the application asked for it"],
)
async def test_connection_that_ends_says_so_once(
    keep_alive: bool, more_headers: list[tuple[bytes, bytes]]
) -> None:
    asked = exchange(keep_alive=keep_alive)
    await asked.answer(b"{}", headers=HEADERS + more_headers)
    (written,) = asked.transport.written
    assert written.count(b"connection: close\r\n") == 1
    assert asked.transport.is_closed


async def test_answer_in_pieces_goes_out_piece_by_piece() -> None:
    asked = exchange()
    await asked.answer(b"{", b"}", headers=HEADERS)
    assert [asked.transport.written[0][-2:], *asked.transport.written[1:]] == [b"\r\n", b"{", b"}"]
    assert asked.answered == ["answered"]


async def test_answer_without_a_length_is_chunked() -> None:
    asked = exchange()
    await asked.answer(b"{}", headers=HEADERS[:1])
    assert b"".join(asked.transport.written).endswith(b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [[(b"content-length", b"3")], [*HEADERS, (b"location", b"/\r\nset-cookie: a=b")]],
    ids=["another length than it has", "a header of two lines"],
)
async def test_answer_that_would_break_the_framing_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    asked = exchange()
    with pytest.raises(RuntimeError):
        await asked.answer(b"{}", headers=headers)
    assert b"set-cookie" not in b"".join(asked.transport.written)
    assert asked.answered == []


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    asked = exchange()
    asked.cycle.disconnected = True
    await asked.answer(b"{}", headers=HEADERS)
    assert asked.transport.written == []
