"""What the database undid is run again: a caller does not see deadlocks and lost connections.

A trigger on each table of the hot path stands for the rival: it undoes the first transactions that write.
Its sequence counts on through rollbacks. It fires for rows, so that loops that find nothing pass it by.
"""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import psycopg
import pytest

from tests.support.api import Json, lease, read, refused, run_job, submit, tell
from tests.support.stopwatch import until_quick

_FAULTS = {
    "serialization": "RAISE EXCEPTION USING ERRCODE = '40001'",
    "deadlock": "RAISE EXCEPTION USING ERRCODE = '40P01'",
    "lost connection": "PERFORM pg_terminate_backend(pg_backend_pid())",
}
_TRIGGER = """
CREATE SEQUENCE undone;
CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('undone') <= {times} THEN {fault}; END IF;
    RETURN NULL;
END $$;
"""
_ON_TABLE = """
CREATE TRIGGER undo AFTER INSERT OR UPDATE OR DELETE ON fencepost.{table}
FOR EACH ROW EXECUTE FUNCTION undo();
"""
_TABLES = ("jobs", "ready", "scheduled", "leases", "finished", "attempts", "idempotency_keys")

Call = Callable[[httpx.AsyncClient, Json], Awaitable[httpx.Response]]


async def _submit(client: httpx.AsyncClient, _leased: Json) -> httpx.Response:
    return await client.post("/v1/jobs", json={"kind": "w", "queue": "new"}, headers={"Idempotency-Key": "k"})


async def _submit_batch(client: httpx.AsyncClient, _leased: Json) -> httpx.Response:
    jobs = [{"kind": "w", "queue": "new"}, {"kind": "w", "queue": "new", "delay_seconds": 60}]
    return await client.post("/v1/jobs/batch", json={"jobs": jobs})


async def _lease(client: httpx.AsyncClient, _leased: Json) -> httpx.Response:
    return await client.post("/v1/leases", json={"worker_id": "w2", "queues": ["waiting"]})


async def _lease_once(client: httpx.AsyncClient, _leased: Json) -> httpx.Response:
    body = {"worker_id": "w2", "queues": ["waiting"], "request_id": "r"}
    return await client.post("/v1/leases", json=body)


async def _heartbeat(client: httpx.AsyncClient, leased: Json) -> httpx.Response:
    return await tell(client, "heartbeat", leased)


async def _complete(client: httpx.AsyncClient, leased: Json) -> httpx.Response:
    return await tell(client, "complete", leased, result=1, enqueue=[{"kind": "w", "queue": "next"}])


async def _fail(client: httpx.AsyncClient, leased: Json) -> httpx.Response:
    return await tell(client, "fail", leased, error={"message": "m"})


async def _release(client: httpx.AsyncClient, leased: Json) -> httpx.Response:
    return await tell(client, "release", leased)


async def _cancel(client: httpx.AsyncClient, leased: Json) -> httpx.Response:
    return await client.post(f"/v1/jobs/{leased['id']}/cancel", json={"force": True})


# One statement that is its own transaction: whether a lost connection came before or after its commit is
# unknown, so it is left to the caller.
_LONE = [_submit_batch, _lease, _heartbeat]
_CALLS = [_submit, _submit_batch, _lease, _lease_once, _heartbeat, _complete, _fail, _release, _cancel]


@pytest.fixture(name="database_url")
def _database_url(new_database: Callable[..., str], template: str) -> str:
    """One for each test: triggers are not emptied."""
    return new_database(template=template)


async def _undo(database_url: str, fault: str, *, times: int) -> None:
    # In a thread: a loop of the application may hold a lock, and needs its turn to let go.
    await asyncio.to_thread(_make_triggers, database_url, fault, times)


def _make_triggers(database_url: str, fault: str, times: int) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(_TRIGGER.format(times=times, fault=_FAULTS[fault]))
        for table in _TABLES:
            connection.execute(_ON_TABLE.format(table=table))


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        pytest.param(fault, call, id=f"{fault} {call.__name__.strip('_')}")
        for fault in _FAULTS
        for call in _CALLS
        if fault != "lost connection" or call not in _LONE
    ],
)
async def test_a_call_that_the_database_undid_is_done_once_all_the_same(
    client: httpx.AsyncClient, database_url: str, fault: str, call: Call
) -> None:
    leased = await run_job(client, queue="mine")
    await submit(client, queue="waiting")
    await _undo(database_url, fault, times=2)
    answer = await call(client, leased)
    assert answer.status_code in (200, 201), answer.text
    assert "idempotent-replayed" not in answer.headers
    if call in (_lease, _lease_once):
        assert [job["attempt"] for job in answer.json()["jobs"]] == [1]
    assert (await read(client, leased["id"]))["attempt"] == (0 if call is _release else 1)
    assert len(await lease(client, queue="new", max_jobs=10)) == (
        1 if call in (_submit, _submit_batch) else 0
    )
    assert len(await lease(client, queue="next", max_jobs=10)) == (1 if call is _complete else 0)


@pytest.mark.parametrize("call", _LONE, ids=lambda call: call.__name__.strip("_"))
async def test_a_lone_statement_whose_connection_is_lost_is_left_to_the_caller(
    client: httpx.AsyncClient, database_url: str, request: pytest.FixtureRequest, call: Call
) -> None:
    if request.config.getoption("--through-pgbouncer"):
        pytest.skip("behind a pooler nothing is a lone statement")
    leased = await run_job(client, queue="mine")
    await submit(client, queue="waiting")
    await _undo(database_url, "lost connection", times=1)
    refused(await call(client, leased), 503, "unavailable")
    assert (await call(client, leased)).status_code in (200, 201)
    assert len(await lease(client, queue="new", max_jobs=10)) == (1 if call is _submit_batch else 0)


@pytest.mark.parametrize("call", _CALLS, ids=lambda call: call.__name__.strip("_"))
async def test_a_call_that_is_undone_each_time_is_503_soon_and_changes_nothing(
    client: httpx.AsyncClient, database_url: str, call: Call
) -> None:
    leased = await run_job(client, queue="mine")
    waiting = await submit(client, queue="waiting")
    await _undo(database_url, "deadlock", times=1_000_000)
    for watch in until_quick(seconds=5):
        with watch:
            problem = refused(await call(client, leased), 503, "unavailable")
        assert "40P01" not in str(problem)
    assert (await read(client, leased["id"]))["lease_version"] == leased["lease_version"]
    assert (await read(client, waiting["id"]))["state"] == "ready"
    page = (await client.get("/v1/jobs")).json()
    assert {job["id"] for job in page["jobs"]} == {leased["id"], waiting["id"]}


async def test_the_first_call_after_the_pool_was_cut_off_is_answered(
    client: httpx.AsyncClient, database_url: str
) -> None:
    job = await submit(client)
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert (await client.get(f"/v1/jobs/{job['id']}")).status_code == 200
    assert (await client.get("/v1/jobs")).status_code == 200
    assert (await client.get(f"/v1/jobs/{job['id']}/attempts")).status_code == 200
    assert (await client.post("/v1/jobs", json={"kind": "w"})).status_code == 201
