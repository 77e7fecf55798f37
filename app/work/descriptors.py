"""Pipes to commands, and the wait for them in an event loop."""

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from typing import Any

from app.work.environment import PROGRESS_DESCRIPTOR

CHUNK_BYTES = 65_536


def above_the_commands(descriptor: int) -> int:
    """Move a descriptor out of the way of those that a command gets, which are put in place one by one."""
    if descriptor > PROGRESS_DESCRIPTOR:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, PROGRESS_DESCRIPTOR + 1)
    os.close(descriptor)
    return moved


def pipe() -> tuple[int, int]:
    """Return (read end, write end)."""
    read_end, write_end = os.pipe()
    return above_the_commands(read_end), above_the_commands(write_end)


def socket_pair() -> tuple[int, int]:
    """Return two ends that are both read from and written to."""
    one, other = socket.socketpair()
    return above_the_commands(one.detach()), above_the_commands(other.detach())


async def readable(descriptor: int) -> None:
    """Return when a read would not block."""
    loop = asyncio.get_running_loop()
    await _until(descriptor, loop.add_reader, loop.remove_reader)


async def writable(descriptor: int) -> None:
    """Return when a write would not block."""
    loop = asyncio.get_running_loop()
    await _until(descriptor, loop.add_writer, loop.remove_writer)


async def _until(descriptor: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    is_ready = asyncio.Event()
    add(descriptor, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        remove(descriptor)


async def feed(descriptor: int, data: bytes) -> None:
    """Write all data, then close. A reader that does not want it is no error."""
    rest = memoryview(data)
    try:
        os.set_blocking(descriptor, False)
        while rest:
            await writable(descriptor)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(descriptor, rest[:CHUNK_BYTES]) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)
