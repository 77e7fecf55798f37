"""HTTP by hand over a socket, for what no client library would send."""

import socket
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import psutil

from tests.support.server import ServerProcess


class RawConnection:
    """One connection to a server on this machine; reads whole answers, and keeps what came beyond."""

    def __init__(
        self, port: int, *, timeout_seconds: float = 60, receive_buffer_bytes: int | None = None
    ) -> None:
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(timeout_seconds)
        self._socket.connect(("127.0.0.1", port))
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def close(self, *, reset: bool = False) -> None:
        """Close it; with ``reset`` as a machine does that has lost its memory of it."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_request(self, method: str, path: str, headers: Iterable[str] = (), body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
        if body:
            lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def read_answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers in lower case and the body, whose length must be announced."""
        while b"\r\n\r\n" not in self._unread:
            self._fill()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        length = 0 if status < 200 or status == 204 else int(headers["content-length"])
        while len(self._unread) < length:
            self._fill()
        body, self._unread = self._unread[:length], self._unread[length:]
        return status, headers, body

    def read_to_end(self) -> bytes:
        """Return what comes until the server closes the connection."""
        try:
            while True:
                self._fill()
        except ConnectionError:
            data, self._unread = self._unread, b""
            return data

    def read_bytes(self, count: int) -> bytes:
        """Return so many bytes, or what came before the server closed the connection."""
        try:
            while len(self._unread) < count:
                self._fill()
        except ConnectionError:
            pass
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def has_ended(self) -> bool:
        """Tell whether the server has closed the connection, without waiting; what came is kept."""
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            self._fill()
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self._socket.settimeout(timeout)
        return False

    @property
    def unread(self) -> bytes:
        """What came beyond the answers that were read."""
        return self._unread

    def _fill(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._unread += data


def sockets_of(server: ServerProcess) -> int:
    """Count the process's sockets on its port: the listening one, and each client's that it still holds."""
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return len([each for each in connections if each.laddr[1:] == (server.port,)])


def wait_for_sockets(server: ServerProcess, count: int) -> None:
    """Return when there are so many."""
    deadline = time.monotonic() + 30
    while sockets_of(server) != count:
        assert time.monotonic() < deadline, f"{sockets_of(server)} sockets are open, not {count}"
        time.sleep(0.05)


def sockets_without_clients(server: ServerProcess) -> int:
    """Wait until every client of before has been seen to go; return how many sockets that leaves."""
    wait_for_sockets(server, 1)
    return 1
