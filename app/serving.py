"""One server process: its listening socket, its HTTP server, and how it ends on a signal."""

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from app.connections import connections_within

_logger = logging.getLogger(__name__)

_GC_THRESHOLDS = (20_000, 20, 20)

_BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75
# Parked polls are answered at once; this is for answers that a slow client is still reading. The whole end
# has to fit into ten seconds, the background loops and the bundled PostgreSQL included.
_GRACE_SECONDS = 6


class ServingError(Exception):
    """The service cannot be offered; the text is one line for a person."""


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host and port already; port 0 lets the system choose.

    Raises ServingError when that address is taken or is not ours.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with addresses of both kinds, such as localhost, the one that clients try everywhere.
        family, _, _, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there already"
        else:
            reason = error.strerror or "unknown reason"
        raise ServingError(f"cannot listen on {host}, port {port}: {reason}") from None


def listener_url(listener: socket.socket) -> str:
    """Return the address a person can type, such as http://127.0.0.1:8000."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_app(app: FastAPI, listener: socket.socket) -> None:
    """Serve app on listener until SIGTERM or SIGINT comes, then end in order; runs in the main thread.

    The first signal answers every parked poll at once, a second one no longer waits for open requests.
    Clients are held to ``app.state.deadlines``.
    """
    _raise_descriptor_limit()
    _collect_less_often()
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=connections_within(app.state.deadlines),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    _Server(config, app).run(sockets=[listener])
    _logger.info("ended")


def _collect_less_often() -> None:
    """Spare the cyclic collector what lives as long as the process, and look at a batch's objects once.

    A call for a thousand jobs makes ten thousand objects, none of them in cycles; at the default threshold
    of 700 the collector took a fifth of the processor's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _raise_descriptor_limit() -> None:
    """Allow as many connections as the system lets this process have: everybody who waits holds one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _logger.warning("the limit of open files stays at %d: %s", soft, error)


class _Server(uvicorn.Server):
    """uvicorn's server, which drains on a signal and ends with exit code 0.

    uvicorn itself lets open requests run to their end first, parked polls included, and afterwards raises the
    signal once more, so that the process dies of it.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or []:
            _logger.info("listening on %s", listener_url(listener))

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        _logger.info("told to end: %s", "open requests are cut" if self.force_exit else "polls are answered")
        if self.started:
            self._app.state.service.drain()
