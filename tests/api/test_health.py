"""Liveness, readiness, the document and what a problem's type means; and a database that is away."""

from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest
from sqlalchemy.engine import make_url

from app.api.problems import PROBLEMS
from tests.support.api import UNKNOWN_ID, eventually, refused, run_job, submit, tell_ok
from tests.support.stopwatch import until_quick


@pytest.fixture(name="database_url")
def _database_url(new_database: Callable[..., str], template: str) -> str:
    return new_database(template=template)


@pytest.fixture
def cut_database(admin_url: str, database_url: str) -> Iterator[Callable[..., None]]:
    """Let no one into this test's database, or let them in again."""
    name = make_url(database_url).database

    def cut(*, is_away: bool) -> None:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {not is_away}')
            if is_away:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
                )

    yield cut
    cut(is_away=False)


async def test_liveness_and_readiness(client: httpx.AsyncClient) -> None:
    assert (await client.get("/livez")).status_code == 200

    async def is_ready() -> httpx.Response | None:
        answer = await client.get("/readyz")
        return answer if answer.status_code == 200 else None

    answer = await eventually(is_ready)
    assert answer.json()["ready"] is True
    assert answer.json()["failing"] == []


async def test_document_and_its_page_are_served(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert "text/html" in (await client.get("/docs")).headers["content-type"]


async def test_type_of_every_problem_is_an_address_that_explains_it(client: httpx.AsyncClient) -> None:
    for code, problem in PROBLEMS.items():
        answer = await client.get(f"/problems/{code}")
        assert answer.status_code == 200
        assert (answer.json()["code"], answer.json()["status"]) == (code, problem.status)
        assert answer.json()["title"]
        assert answer.json()["meaning"]
    refused(await client.get("/problems/nothing"), 404, "not_found")
    refused(await client.get("/problems/Lease_lost"), 404, "not_found")


async def test_database_away_is_503_within_five_seconds_and_all_is_well_afterwards(
    client: httpx.AsyncClient, cut_database: Callable[..., None]
) -> None:
    leased = await run_job(client)
    cut_database(is_away=True)
    token = {"lease_version": leased["lease_version"]}
    path = f"/v1/jobs/{leased['id']}"
    calls = [
        ("GET", "/v1/jobs", None),
        ("GET", path, None),
        ("GET", f"{path}?wait_seconds=1", None),
        ("GET", f"{path}/attempts", None),
        ("PATCH", path, {}),
        ("POST", "/v1/jobs", {"kind": "w"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"kind": "w"}]}),
        ("POST", f"{path}/cancel", {}),
        ("POST", f"{path}/redrive", {}),
        ("POST", f"{path}/heartbeat", token),
        ("POST", f"{path}/complete", token),
        ("POST", f"{path}/fail", token | {"error": {"message": "m"}}),
        ("POST", f"{path}/release", token),
        ("POST", f"{path}/verify", token),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["q"]}),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["q"], "request_id": "r"}),
        ("GET", "/v1/leases?worker_id=w", None),
        ("POST", "/v1/leases/complete", {"items": [token | {"job_id": leased["id"]}]}),
        ("POST", "/v1/leases/heartbeat", {"items": [token | {"job_id": leased["id"]}]}),
        ("GET", "/readyz", None),
    ]
    for method, address, body in calls:
        for watch in until_quick(seconds=5):
            with watch:
                answer = await client.request(method, address, json=body)
            refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert "database" in answer.text
            for secret in ("psycopg", "SELECT", "postgresql://", "Traceback", "fencepost_test"):
                assert secret not in answer.text
    assert (await client.get("/livez")).status_code == 200
    cut_database(is_away=False)

    async def is_back() -> bool:
        return (await client.get("/readyz")).status_code == 200

    await eventually(is_back)
    await tell_ok(client, "complete", leased)
    await submit(client)


async def test_fault_of_the_service_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SCHEMA fencepost RENAME TO elsewhere")
    for method, address, body in [
        ("POST", "/v1/jobs", {"kind": "w", "payload": "marker-in-a-payload"}),
        ("POST", "/v1/leases", {"worker_id": "w", "queues": ["q"]}),
        ("GET", "/v1/jobs", None),
        ("GET", f"/v1/jobs/{UNKNOWN_ID}", None),
        ("POST", f"/v1/jobs/{UNKNOWN_ID}/complete", {"lease_version": 1}),
    ]:
        answer = await client.request(method, address, json=body)
        refused(answer, 500, "internal_error")
        for secret in ("marker", "SELECT", "INSERT", "fencepost.", "Undefined", "psycopg", "Traceback"):
            assert secret not in answer.text
