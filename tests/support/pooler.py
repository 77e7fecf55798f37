"""A PgBouncer in transaction mode before a PostgreSQL, as operators put one there."""

import os
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from tests.support.programs import needed_program
from tests.support.server import free_port

START_SECONDS = 20.0

_INI = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {pool_mode}
max_client_conn = 500
default_pool_size = 8
server_login_retry = 1
{more}
"""


class Pooler:
    """A PgBouncer process before the server of ``admin_url``; ``through`` gives addresses behind it.

    ``settings`` are lines of its configuration, such as ``ignore_startup_parameters = options``.
    """

    def __init__(
        self, admin_url: str, folder: Path, *, pool_mode: str = "transaction", settings: str = ""
    ) -> None:
        given = conninfo_to_dict(admin_url)
        self._user = str(given["user"])
        self._port = free_port()
        names = ("host", "port", "user", "password")
        server = " ".join(f"{name}='{given[name]}'" for name in names if name in given)
        path = folder / "pgbouncer.ini"
        path.write_text(_INI.format(server=server, port=self._port, pool_mode=pool_mode, more=settings))
        self._log_path = folder / "pgbouncer.log"
        command = [str(needed_program("pgbouncer")), str(path)]
        if os.getuid() == 0:
            # It refuses to run as root; the server's own account reaches the server's socket.
            account = Path(str(given["host"])).owner() if str(given["host"]).startswith("/") else "nobody"
            command[1:1] = ["-u", account]
            for folder_on_the_way in (path.parent, *path.parents[1:4]):
                folder_on_the_way.chmod(folder_on_the_way.stat().st_mode | 0o011)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until_ready()

    def through(self, url: str) -> str:
        """Return the address of the same database behind the pooler."""
        database = quote(str(conninfo_to_dict(url)["dbname"]))
        query = urlencode({"host": "127.0.0.1", "port": self._port, "user": self._user})
        return f"postgresql:///{database}?{query}"

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(START_SECONDS)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"PgBouncer does not start:\n{self.log}") from None
                time.sleep(0.02)
