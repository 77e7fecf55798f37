"""What it costs to pass over leases that are locked: nothing where none is."""

import json
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.sql import ClauseElement

from app.domain.calls import Heartbeat
from app.domain.job import JobSpec, Token
from app.operations.context import Context
from app.store import leases
from app.store.engine import Connection, compiled_statement
from tests.support.application import Application, hold
from tests.support.factory import lease, submit, token_of
from tests.support.plans import prepare

COUNT = 20
NOTHING = [None] * COUNT
WRITES: dict[str, tuple[ClauseElement, dict[str, Any]]] = {
    "heartbeat": (
        leases.HEARTBEAT_LEASES,
        {
            "extend_seconds": NOTHING,
            "seqs": NOTHING,
            "percents": NOTHING,
            "messages": NOTHING,
            "with_checkpoints": [False] * COUNT,
            "checkpoints": NOTHING,
        },
    ),
    "complete": (leases.COMPLETE_LEASES, {"results": NOTHING, "fingerprints": NOTHING}),
}


async def written(conn: Connection, name: str, tokens: list[Token]) -> tuple[int, int]:
    """Run a statement; return how many rows it answered with, and its log records for the table of leases."""
    statement, members = WRITES[name]
    await prepare(conn, statement)
    compiled = compiled_statement(statement)
    values = members | {
        "job_ids": [token.job_id for token in tokens],
        "lease_versions": [token.lease_version for token in tokens],
    }
    arguments = sql.SQL(", ").join(sql.Literal(values[each]) for each in compiled.positiontup or ())
    query = f"EXPLAIN (ANALYZE, WAL, TIMING OFF, FORMAT JSON) EXECUTE explained({arguments.as_string()})"
    answer = await conn.run(query.encode())
    await conn.run(b"DEALLOCATE explained")
    plan = json.loads(answer[0][0])[0]["Plan"]
    records = [each["WAL Records"] for each in nodes(plan) if each.get("Relation Name") == "leases"]
    return round(plan["Actual Rows"]), max(records)


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(inner for each in plan.get("Plans", ()) for inner in nodes(each))]


@pytest.mark.parametrize("name", WRITES)
async def test_a_lease_that_nobody_has_locked_is_written_by_one_log_record(
    context: Context, application: Application, name: str
) -> None:
    await submit(context, *[JobSpec(kind="test")] * COUNT)
    tokens = sorted(
        [token_of(job) for job in await lease(context, max_jobs=COUNT)], key=lambda each: each.job_id
    )
    async with context.database.begin() as conn:
        assert await written(conn, name, tokens) == (COUNT, COUNT)
        await conn.run(b"ROLLBACK")
    # Those that are held are passed over, or locked first.
    async with application.connect() as app, app.transaction():
        await hold(app, tokens[7])
        async with context.database.begin() as conn:
            row_count, record_count = await written(conn, name, tokens)
            assert row_count == (COUNT if name == "heartbeat" else COUNT - 1)
            assert record_count > row_count
            await conn.run(b"ROLLBACK")


async def test_a_lease_whose_lock_has_ended_is_written_like_any_other(
    context: Context, application: Application
) -> None:
    await submit(context, *[JobSpec(kind="test")] * COUNT)
    tokens = [token_of(job) for job in await lease(context, max_jobs=COUNT)]
    async with application.connect() as app:
        for ending in ("COMMIT", "ROLLBACK"):
            await app.execute("BEGIN")
            for token in tokens[: COUNT // 2]:
                await hold(app, token)
            await app.execute(ending)
    async with context.database.begin() as conn:
        assert (await written(conn, "heartbeat", tokens))[0] == COUNT
        assert (await written(conn, "complete", tokens))[0] == COUNT
        await conn.run(b"ROLLBACK")


async def test_who_holds_a_lease_does_not_wait_for_heartbeats(
    context: Context, application: Application
) -> None:
    await submit(context)
    [job] = await lease(context)
    async with context.database.begin() as conn, application.connect() as app:
        await written_once(conn, token_of(job))
        await app.execute("SET lock_timeout = '100ms'")
        held = await hold(app, token_of(job))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await app.execute("SELECT fencepost.complete(%s, %s)", [job.id, job.lease_version])
        await conn.run(b"ROLLBACK")
    assert held.lease_expires_at == job.lease_expires_at


async def written_once(conn: Connection, token: Token) -> None:
    """Extend a lease, and leave it uncommitted."""
    from_beat = await leases.heartbeat_leases(conn, [Heartbeat(token)])
    assert list(from_beat) == [token.job_id]
