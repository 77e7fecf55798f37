"""What all tests over HTTP share: one database that is emptied, and the OpenAPI document as a judge.

A database of its own for each of some hundred tests would cost more than the tests; what they see is an
empty one either way. A test that maims its database overrides ``database_url``.
"""

from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.conftest import servers_on
from tests.support.document import check_answer
from tests.support.server import ServerProcess

_TABLES = (
    "jobs",
    "ready",
    "scheduled",
    "leases",
    "finished",
    "attempts",
    "idempotency_keys",
    "lease_requests",
)
_EMPTY_ALL = sql.SQL(";").join(
    sql.SQL("DELETE FROM {}").format(sql.Identifier("fencepost", table)) for table in _TABLES
)


@pytest.fixture(scope="session")
def shared_database_url(admin_url: str, template: str) -> Iterator[str]:
    name = f"{template}_shared"
    quoted = sql.Identifier(name)
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(quoted, sql.Identifier(template)))
    yield make_url(admin_url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(quoted))


@pytest.fixture
def database_url(shared_database_url: str) -> str:
    with psycopg.connect(shared_database_url) as connection:
        connection.execute(_EMPTY_ALL)
    return shared_database_url


@pytest.fixture(scope="module")
def serve_all(
    shared_database_url: str, as_seen: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., ServerProcess]]:
    """Start server processes for all tests of a module."""
    with servers_on(as_seen(shared_database_url), folder=tmp_path_factory.mktemp("servers")) as start:
        yield start


@pytest.fixture
async def client(client: httpx.AsyncClient) -> httpx.AsyncClient:
    client.event_hooks["response"].append(check_answer)
    return client
