"""One connection to PostgreSQL: what it asks for, and whether it goes through a transaction pooler.

Every connection asks for UTC, bounded waits, and plans that do not depend on how full a queue was
when they were made: queue tables are empty one minute and hold millions the next, and a plan that was
cached for the empty one (sequential scan, hash join) would stay until the next ANALYZE.

A transaction pooler (PgBouncer) refuses or ignores what a client asks for at its start, and may serve each
transaction with another session. Behind one, the settings go into each transaction instead, and
nothing is prepared.
"""

import asyncio
import re
from typing import Any

from psycopg import AsyncConnection, OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from app.domain.errors import Misconfigured

CONNECT_TIMEOUT_SECONDS = 3

SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "statement_timeout": "4s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "30s",
    # Of the statements that are a transaction of their own; every other one names its level.
    "default_transaction_isolation": "read committed",
    "jit": "off",
    # Planning a read over all partitions costs twice its execution: plan once a connection.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    # A bitmap loses the order of its index: a page of a queue would read and sort the whole queue.
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_OPTIONS = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SETTINGS.items())

# PGTZ and PGDATESTYLE in the service's environment win over the options of the connection. A pooler that
# ignores options leaves the plan mode as it was.
_PREPARE_SESSION = """
SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false),
       current_setting('plan_cache_mode') <> 'force_generic_plan'
"""

# A name, an address, or the folder of a socket (an abstract one begins with @); several with commas between.
_HOST = r"(/[^,]*|@?[A-Za-z0-9._:%-]*)"
_HOSTS = re.compile(rf"{_HOST}(,{_HOST})*")
_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")
_PER_HOST = ("host", "hostaddr", "port")


class ServiceConnection(AsyncConnection[Any]):
    """A connection that gives up at once when whoever waits for a statement does.

    The driver would ask the server to cancel the statement and wait for up to ten seconds. We stop waiting
    only for a server that has been silent for longer than its own statement_timeout, or at the end.
    """

    is_pooled = False

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:  # noqa: ASYNC109 - the driver's signature
        del timeout
        self.pgconn.finish()


class Connector:
    """Opens connections to the server of one URL, which libpq reads: several hosts, sockets and TLS included.

    Of several hosts the one that served last is tried first, and each has its share of the time, so that
    silent ones do not use up the whole of it. ``is_pooled`` turns True with the first connection that is
    found to go through a transaction pooler. Raises Misconfigured for a URL that libpq cannot read, without
    quoting it.
    """

    def __init__(self, url: str) -> None:
        self._hosts = _hosts_of(connection_parameters(url))
        self._turn = 0
        self.is_pooled = False

    async def connect(
        self, *, application_name: str = "fencepost", autocommit: bool = False
    ) -> ServiceConnection:
        """Open a connection to a server that takes writes. Raises psycopg's OperationalError."""
        own = {"application_name": application_name, "autocommit": autocommit}
        failure = OperationalError("no host answered in time")
        for _ in self._hosts:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS / len(self._hosts)):
                    return _pass_texts_on(await self._connect(self._hosts[self._turn] | own))
            except OperationalError as error:
                failure = error
            except TimeoutError:
                pass
            self._turn = (self._turn + 1) % len(self._hosts)
        raise failure

    async def _connect(self, parameters: dict[str, Any]) -> ServiceConnection:
        if not self.is_pooled:
            options = " ".join(filter(None, [parameters.get("options"), _OPTIONS]))
            try:
                connection = await ServiceConnection.connect(**{**parameters, "options": options})
            except OperationalError as error:
                if "unsupported startup parameter" not in str(error):
                    raise
                self.is_pooled = True
            else:
                self.is_pooled = await _prepare_session(connection)
                if not self.is_pooled:
                    return connection
                await connection.close()
        return await ServiceConnection.connect(**{**parameters, "prepare_threshold": None})


def _hosts_of(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of each host, in the order of the URL; a single value is that of all."""
    lists = {name: str(parameters[name]).split(",") for name in _PER_HOST if name in parameters}
    count = max((len(values) for values in lists.values()), default=1)
    return [
        parameters | {name: values[number % len(values)] for name, values in lists.items()}
        for number in range(count)
    ]


def connection_parameters(url: str) -> dict[str, Any]:
    """Return libpq's parameters of a URL. Raises Misconfigured, without quoting the URL."""
    try:
        parameters = conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        parameters = {}
    is_read = bool(parameters) and all(
        allowed.fullmatch(str(parameters.get(name, "")))
        for name, allowed in (("host", _HOSTS), ("hostaddr", _HOSTS), ("port", _PORTS))
    )
    if not is_read:
        # A password with an unescaped special character ends up in the host or the port, and from there in
        # libpq's error: nothing of the URL is quoted.
        raise Misconfigured("the database URL cannot be parsed; are its special characters encoded?")
    return {
        # After a failover the address may lead to a server that takes no writes yet, or no more.
        "target_session_attrs": "read-write",
        **parameters,
        # A request has to be answered within five seconds, whatever the URL says.
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "client_encoding": "UTF8",
    }


async def _prepare_session(connection: ServiceConnection) -> bool:
    """Set what the environment may have overruled; return whether the options were ignored."""
    try:
        row = await (await connection.execute(_PREPARE_SESSION)).fetchone()
        await connection.commit()
    except BaseException:
        # Nobody else knows of it yet.
        connection.pgconn.finish()
        raise
    return row is None or bool(row[2])


def _pass_texts_on(connection: ServiceConnection) -> ServiceConnection:
    # json and uuid leave as the text PostgreSQL holds: payloads are passed on, not decoded.
    for name in ("json", "uuid"):
        connection.adapters.register_loader(name, TextLoader)
    return connection
