"""An address that leads to one PostgreSQL today and to another tomorrow, as a floating address does."""

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict


class Switch:
    """Passes connections on to the unix socket of the server it is set to.

    Connections that are open stay with the server they were opened to. It runs in a thread of its own, so
    that a test that blocks does not block it.
    """

    def __init__(self) -> None:
        self._socket_path = ""
        self._database: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def set(self, server_url: str) -> None:
        """Lead every connection from now on to this server."""
        given = conninfo_to_dict(server_url)
        self._socket_path = f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}"
        self._database = {name: str(given[name]) for name in ("user", "dbname")}

    @property
    def url(self) -> str:
        user, database = self._database["user"], self._database["dbname"]
        return f"postgresql://{user}@127.0.0.1:{self._port}/{database}"

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()
