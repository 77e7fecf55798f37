import asyncio
import fcntl
import os
from collections.abc import Iterator

import pytest

from app.work.output import Outlet, Output
from app.work.watch import Watch
from tests.support.waiting import until

_LIMIT_SECONDS = 30.0


@pytest.fixture(name="audience")
def _audience() -> Iterator[tuple[int, int]]:
    """A pipe of the smallest size in the place of the worker's own stream: (read end, write end)."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4_096)
    yield read_end, write_end
    for descriptor in (read_end, write_end):
        os.close(descriptor)


def _command_that_wrote(data: bytes) -> int:
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    return read_end


async def _read_to_the_end(data: bytes, outlet: Outlet, *, longest_line_bytes: int) -> Output:
    ended = asyncio.Event()
    output = Output(
        _command_that_wrote(data), Watch(), outlet, longest_line_bytes=longest_line_bytes, tell=ended.set
    )
    await asyncio.wait_for(ended.wait(), _LIMIT_SECONDS)
    return output


async def test_whole_lines_are_passed_on_and_the_last_one_gets_its_end(audience: tuple[int, int]) -> None:
    outlet = Outlet(audience[1])
    output = await _read_to_the_end(b"one\ntwo\n\n three", outlet, longest_line_bytes=100)
    assert os.read(audience[0], 100) == b"one\ntwo\n\n"
    output.close()
    outlet.close(timeout_seconds=_LIMIT_SECONDS)
    assert os.read(audience[0], 100) == b" three\n"
    assert (output.last_line, output.tail) == (b" three", b"one\ntwo\n\n three")


async def test_blank_lines_are_no_last_line_and_a_long_one_is_none(audience: tuple[int, int]) -> None:
    outlet = Outlet(audience[1])
    for written, last_line in (
        (b"\n \t\n", b""),
        (b"a\n \n", b"a"),
        (b"a\nlonger\n\n", None),
        (b"longer\na", b"a"),
    ):
        output = await _read_to_the_end(written, outlet, longest_line_bytes=3)
        output.close()
        assert output.last_line == last_line
    outlet.close(timeout_seconds=_LIMIT_SECONDS)


async def test_a_result_is_read_although_nobody_reads_what_is_passed_on(audience: tuple[int, int]) -> None:
    outlet = Outlet(audience[1])
    written = b"line\n" * 10_000 + b"result\n"
    ended = asyncio.Event()
    output = Output(_command_that_wrote(written), Watch(), outlet, longest_line_bytes=100, tell=ended.set)
    # It has come to where it waits for the audience.
    await until(lambda: output.tail)
    assert not output.has_ended
    output.close()
    assert not ended.is_set()
    assert output.last_line == b"result"
    # Now somebody reads, and has missed nothing.
    seen = b""
    while len(seen) < len(written):
        seen += await asyncio.to_thread(os.read, audience[0], 65_536)
    assert seen == written
    outlet.close(timeout_seconds=_LIMIT_SECONDS)
