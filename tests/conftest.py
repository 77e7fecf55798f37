"""A fresh database for each test, cloned from a migrated template on a real server.

The server is the bundled one with fsync off, or the one that FENCEPOST_TEST_DATABASE_URL names (its role
must be able to create databases). Fixtures, from the inside out:

    database_url   an empty, migrated database
    conn           a transaction on it, rolled back
    context        what operations take; ``signals`` records what they told
    application    a program beside the service, whose role was granted the functions for applications
    client         the application in this process, over ASGI
    serve          starts real server processes on the database
    shared_service a server process for all tests that need no database of their own
    tell           writes something at the end of the whole run

``--through-pgbouncer`` puts a PgBouncer in transaction mode between the application and its database.
"""

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import hypothesis
import psycopg
import pytest
from asgi_lifespan import LifespanManager
from psycopg import sql
from sqlalchemy.engine import make_url

from app.domain.retention import Retention
from app.embedded.server import BundledServer
from app.main import create_app, migrate
from app.operations.context import Context
from app.operations.upkeep import make_partitions
from app.settings import Settings
from app.store.engine import Connection, Database
from tests.support.application import Application, role_on
from tests.support.pooler import Pooler
from tests.support.server import SERVE, ServerProcess
from tests.support.signals import RecordedSignals

# Small buffers: dropping a database writes them out. No autovacuum: a worker that looks at the template just
# then makes it busy, and no test waits for one.
_FAST = {
    "autovacuum": "off",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
}

# For the databases of the tests that run at once, and the log of what they wrote.
_ROOM_BYTES = 4 << 30
_TOLD = "told"
_HERE = Path(__file__).parent
_WITH_PROCESSES = ("cases", "cli", "clients")

# No time limit for one example: a busy machine is no defect.
hypothesis.settings.register_profile(
    "fencepost", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fencepost")


def pytest_xdist_auto_num_workers() -> int:
    """Run two processes more than there are cores: the tests of clients and of faults mostly wait."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what starts processes: most tests of these folders, so all of them."""
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in _WITH_PROCESSES:
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--through-pgbouncer",
        action="store_true",
        help="put a PgBouncer in transaction mode between the application and its database",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what tests had to tell, in whichever process they ran."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    properties = {each for report in reports for each in getattr(report, "user_properties", ())}
    for _, text in sorted(each for each in properties if each[0] == _TOLD):
        terminalreporter.write_line(f"\n{text}")


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Have something written at the end of the whole run: a table that is worth reading in CI's log."""

    def tell_at_the_end(text: object) -> None:
        request.node.user_properties.append((_TOLD, str(text)))

    return tell_at_the_end


@pytest.fixture(scope="session")
def admin_url() -> Iterator[str]:
    """The URL of a database on a server where databases may be made."""
    given = os.environ.get("FENCEPOST_TEST_DATABASE_URL")
    if given is not None:
        yield given
        return
    with server_in_memory() as url:
        yield url


@contextmanager
def server_in_memory() -> Iterator[str]:
    """Run a bundled server that forgets everything; give the URL of a database on it."""
    # Not in pytest's own folder: as root the server runs under another account, and the next pytest that
    # starts on the machine closes that folder to all others.
    with tempfile.TemporaryDirectory(prefix="fencepost-tests-", dir=_memory_folder()) as folder:
        server = BundledServer(Path(folder), settings=_FAST)
        try:
            yield server.start()
        finally:
            server.stop()


def _memory_folder() -> Path | None:
    """Return a folder that is in memory, where a clone takes a fifth of the time; None without one."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > _ROOM_BYTES else None


@pytest.fixture(scope="session")
def template(admin_url: str) -> Iterator[str]:
    """The name of a database that is migrated and has its partitions."""
    name = f"fencepost_template_{uuid.uuid4().hex[:8]}"
    _create(admin_url, name)
    url = database_of(admin_url, name)
    migrate(url)
    asyncio.run(_prepare(url))
    yield name
    _drop(admin_url, name)


async def _prepare(url: str) -> None:
    database = Database(url, pool_size=1)
    await make_partitions(Context(database, Retention(), RecordedSignals()))
    await database.close()


@pytest.fixture(scope="session")
def dropper(admin_url: str) -> Iterator[Executor]:
    """Drops databases beside the next test: it takes as long as many a test does.

    It needs the server: what is left is dropped before that ends.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield executor


@pytest.fixture
def new_database(admin_url: str, dropper: Executor) -> Iterator[Callable[..., str]]:
    """Make databases: empty ones, or clones of a template; they are dropped after the test."""
    made: list[str] = []

    def make(*, template: str | None = None, options: str = "") -> str:
        name = f"fencepost_test_{uuid.uuid4().hex[:12]}"
        _create(admin_url, name, template=template, options=options)
        made.append(name)
        return database_of(admin_url, name)

    yield make
    for name in made:
        dropper.submit(_drop, admin_url, name)


@pytest.fixture
def database_url(new_database: Callable[..., str], template: str) -> str:
    return new_database(template=template)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, pool_size=4)
    yield opened
    await opened.close()


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Connection]:
    async with database.begin() as opened:
        yield opened


@pytest.fixture
def signals() -> RecordedSignals:
    return RecordedSignals()


@pytest.fixture
def context(database: Database, signals: RecordedSignals) -> Context:
    return Context(database, Retention(), signals)


@pytest.fixture
def application(database_url: str) -> Iterator[Application]:
    with role_on(database_url) as role:
        yield Application(database_url, role)


@pytest.fixture
def settings() -> Settings:
    """Override in a module or class to give the application other settings."""
    return Settings()


@pytest.fixture(scope="session")
def as_seen(
    request: pytest.FixtureRequest, admin_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """The address by which the application reaches a database: its own, or one through the pooler."""
    if not request.config.getoption("--through-pgbouncer"):
        yield lambda url: url
        return
    pooler = Pooler(admin_url, tmp_path_factory.mktemp("pooler"))
    yield pooler.through
    pooler.stop()


@pytest.fixture
async def client(
    database_url: str, settings: Settings, as_seen: Callable[[str], str]
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings, database_url=as_seen(database_url))
    async with LifespanManager(app) as manager:
        transport = httpx.ASGITransport(app=manager.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as opened:
            yield opened


@pytest.fixture
def serve(
    database_url: str, tmp_path: Path, as_seen: Callable[[str], str]
) -> Iterator[Callable[..., ServerProcess]]:
    """Start server processes on this test's database; keyword arguments are FENCEPOST_ variables.

    ``serve(reaper_interval_seconds=0.2)``; another database with ``database_url=``, another program than the
    command line with ``program=``, more environment with ``environ=``. They are ended after the test, each
    by its own id.
    """
    with servers_on(as_seen(database_url), folder=tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def shared_service(
    admin_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One service for the whole run, on a database of its own; leases are reclaimed 0.2 s after their time.

    For tests that need no more than a queue of their own: a start takes longer than most of them.
    """
    name = f"fencepost_shared_{uuid.uuid4().hex[:12]}"
    _create(admin_url, name, template=template)
    with servers_on(database_of(admin_url, name), folder=tmp_path_factory.mktemp("service")) as start:
        yield start(reaper_interval_seconds=0.2)
    _drop(admin_url, name)


@contextmanager
def servers_on(database_url: str, *, folder: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Give what ``serve`` gives; all that was started is ended in the end."""
    started: list[ServerProcess] = []

    def start(
        *, program: Sequence[str] = SERVE, environ: Mapping[str, str] | None = None, **variables: object
    ) -> ServerProcess:
        process = ServerProcess(
            {"database_url": database_url, **variables},
            log_path=folder / f"server{len(started)}.log",
            program=program,
            environ=environ,
        )
        started.append(process)
        process.wait_until_ready()
        return process

    try:
        yield start
    finally:
        for process in started:
            process.end()


def database_of(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _create(admin_url: str, name: str, *, template: str | None = None, options: str = "") -> None:
    statement = sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), sql.SQL(options))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(template))
    with psycopg.connect(admin_url, autocommit=True) as connection:
        try:
            connection.execute(statement)
        except psycopg.errors.ObjectInUse:
            # Somebody is connected to the template for a moment; the server has waited for five seconds.
            connection.execute(statement)


def _drop(admin_url: str, name: str) -> None:
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
