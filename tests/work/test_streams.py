import asyncio
import os

import pytest

from app.work.streams import Feed, Stream
from app.work.watch import Watch
from tests.support.waiting import until

_LIMIT_SECONDS = 30.0
_MORE_THAN_A_PIPE = bytes(range(256)) * 4_096


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_data_that_no_pipe_can_hold_arrive_whole_and_then_the_end() -> None:
    read_end, write_end = os.pipe()
    Feed(write_end, _MORE_THAN_A_PIPE)
    arrived = b""
    while piece := await asyncio.wait_for(asyncio.to_thread(os.read, read_end, 1 << 20), _LIMIT_SECONDS):
        arrived += piece
    assert arrived == _MORE_THAN_A_PIPE
    os.close(read_end)


async def test_a_reader_that_goes_ends_the_feed() -> None:
    read_end, write_end = os.pipe()
    Feed(write_end, _MORE_THAN_A_PIPE)
    os.close(read_end)
    await until(lambda: not _is_open(write_end))


async def test_a_feed_that_is_stopped_closes_its_end_once() -> None:
    read_end, write_end = os.pipe()
    feed = Feed(write_end, _MORE_THAN_A_PIPE)
    feed.stop()
    assert not _is_open(write_end)
    # Another one has the number now.
    assert os.open(os.devnull, os.O_RDONLY) == write_end
    feed.stop()
    assert _is_open(write_end)
    os.close(write_end)
    os.close(read_end)


async def test_the_next_piece_waits_until_the_one_before_is_taken() -> None:
    read_end, write_end = os.pipe()
    pieces: list[bytes] = []
    takings: list[asyncio.Future[None]] = []
    ended = asyncio.Event()

    def take(piece: bytes) -> "asyncio.Future[None] | None":
        pieces.append(piece)
        if not piece:
            return None
        takings.append(asyncio.get_running_loop().create_future())
        return takings[-1]

    watch = Watch()
    stream = Stream(read_end, watch, take, ended.set)
    os.write(write_end, b"one")
    await until(lambda: pieces)
    os.write(write_end, b"two")
    os.close(write_end)
    # A stream beside it is heard meanwhile: the loop has looked at both.
    other_end = asyncio.Event()
    beside, closed = os.pipe()
    os.close(closed)
    Stream(beside, watch, lambda _: None, other_end.set)
    await asyncio.wait_for(other_end.wait(), _LIMIT_SECONDS)
    assert (pieces, stream.has_ended) == ([b"one"], False)
    takings[0].set_result(None)
    await until(lambda: len(takings) == 2)
    takings[1].set_result(None)
    await asyncio.wait_for(ended.wait(), _LIMIT_SECONDS)
    assert (pieces, stream.has_ended) == ([b"one", b"two", b""], True)
    os.close(read_end)
    os.close(beside)


async def test_a_stream_that_is_stopped_lets_go_of_what_is_not_taken() -> None:
    read_end, write_end = os.pipe()
    takings: list[asyncio.Future[None]] = []

    def take(_: bytes) -> "asyncio.Future[None]":
        takings.append(asyncio.get_running_loop().create_future())
        return takings[-1]

    watch = Watch()
    stream = Stream(read_end, watch, take, lambda: None)
    os.write(write_end, b"one")
    await until(lambda: takings)
    stream.stop()
    assert takings[0].cancelled()
    # Nobody watches the number any more: it can be given to another one.
    watch.add(read_end, lambda: None)
    watch.remove(read_end)
    os.close(read_end)
    os.close(write_end)


async def test_what_is_said_after_a_piece_that_went_wrong_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    read_end, write_end = os.pipe()
    pieces: list[bytes] = []
    ended = asyncio.Event()

    def take(piece: bytes) -> "asyncio.Future[None] | None":
        pieces.append(piece)
        if piece != b"wrong":
            return None
        taking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taking.set_exception(RuntimeError("a fault of ours"))
        return taking

    Stream(read_end, Watch(), take, ended.set)
    os.write(write_end, b"wrong")
    await until(lambda: "a fault of ours" in caplog.text)
    os.write(write_end, b"right")
    os.close(write_end)
    await asyncio.wait_for(ended.wait(), _LIMIT_SECONDS)
    assert pieces == [b"wrong", b"right", b""]
    os.close(read_end)
