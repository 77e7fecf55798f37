"""The functions for applications: what they write, what they refuse, and who may call them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from psycopg import sql
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from app.domain.errors import Misconfigured
from app.domain.job import DEFAULT_BACKOFF, Backoff, BackoffType, JobSpec, JobState, Parent
from app.operations.context import Context
from app.settings import Settings
from app.store.columns import metadata_text
from app.store.privileges import FUNCTIONS, grant
from app.store.schema import _config, migrate
from tests.support.application import Application, Enqueued, complete_in_sql, enqueue, hold, role_on
from tests.support.factory import (
    UNKNOWN_ID,
    assert_healthy,
    count_rows,
    lease,
    leased,
    read,
    records,
    submit,
    token_of,
)
from tests.support.pooler import Pooler

REFUSED = psycopg.errors.InvalidParameterValue


async def test_a_job_is_what_the_same_request_over_http_makes_of_it(
    context: Context, application: Application
) -> None:
    run_at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    async with application.connect() as connection:
        made = await enqueue(
            connection,
            "email.send",
            payload='{"to":  "x", "n": 0.10}',
            queue="mail",
            priority=-5,
            run_at=run_at,
            max_attempts=3,
            backoff={"type": "linear", "base_seconds": 1.5},
            max_runtime_seconds=60,
            progress_timeout_seconds=1.5,
            metadata={"tenant": "é"},
            idempotency_key="order-17:mail",
        )
    job = await read(context, made.job_id)
    [same] = await submit(
        context,
        JobSpec(
            kind="email.send",
            payload='{"to":  "x", "n": 0.10}',
            queue="mail",
            priority=-5,
            run_at=run_at,
            max_attempts=3,
            backoff=Backoff(BackoffType.LINEAR, base_seconds=1.5),
            max_runtime_seconds=60.0,
            progress_timeout_seconds=1.5,
            metadata={"tenant": "é"},
        ),
    )
    same = await read(context, same.id)
    for name in job.__struct_fields__:
        if name not in ("id", "created_at", "idempotency_key", "metadata"):
            assert getattr(job, name) == getattr(same, name), name
    assert json.loads(job.metadata or "") == {"tenant": "é"}
    assert (job.state, job.idempotency_key) == (JobState.SCHEDULED, "order-17:mail")
    assert abs(job.created_at - same.created_at) < timedelta(minutes=1)
    await assert_healthy(context)


async def test_a_job_with_nothing_but_its_kind_has_the_defaults_and_is_ready(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection:
        made = await enqueue(connection)
    assert made.created
    job = await read(context, made.job_id)
    [same] = await submit(context, JobSpec(kind="test"))
    same = await read(context, same.id)
    varying = {"id", "created_at", "run_at"}
    assert {name: getattr(job, name) for name in job.__struct_fields__ if name not in varying} == {
        name: getattr(same, name) for name in same.__struct_fields__ if name not in varying
    }
    assert job.run_at == job.created_at
    assert job.backoff is DEFAULT_BACKOFF
    assert [granted.id for granted in await lease(context, max_jobs=2)] == [job.id, same.id]


async def test_json_null_and_empty_members_are_stored_as_left_out(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection:
        made = await enqueue(
            connection,
            payload=" null ",
            metadata={},
            backoff='{"type": "exponential", "factor": 2.0}',
            delay_seconds=0,
        )
    job = await read(context, made.job_id)
    assert (job.payload, job.metadata, job.backoff, job.state) == (
        None,
        None,
        DEFAULT_BACKOFF,
        JobState.READY,
    )


async def test_a_job_exists_if_and_only_if_the_caller_commits(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection:
        await connection.execute("BEGIN")
        await enqueue(connection, idempotency_key="k")
        await enqueue(connection, delay_seconds=60)
        await connection.execute("ROLLBACK")
        for table in ("jobs", "ready", "scheduled", "idempotency_keys"):
            assert await count_rows(context, table) == 0
        async with connection.transaction():
            first = await enqueue(connection)
            second = await enqueue(connection)
            assert await count_rows(context, "jobs") == 0
    assert [job.id for job in await lease(context, max_jobs=5)] == [first.job_id, second.job_id]
    assert first.job_id < second.job_id


async def test_due_time_and_creation_are_those_of_the_call_and_not_of_the_transaction(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection, connection.transaction():
        await connection.execute("SELECT 1")
        [between] = await submit(context)
        made = await enqueue(connection)
        later = await enqueue(connection, delay_seconds=3600)
    job = await read(context, made.job_id)
    assert (job.id, job.created_at, job.run_at) > (between.id, between.created_at, between.run_at)
    scheduled = await read(context, later.job_id)
    assert scheduled.run_at - scheduled.created_at == timedelta(hours=1)


NAME_RULE = "1 to 128 characters"
DEEP = "[" * 101 + "]" * 101
NOT_STRICT = r"holds U\+0000, a lone surrogate"
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"kind": None}, f"kind: {NAME_RULE}"),
    ({"kind": ""}, f"kind: {NAME_RULE}"),
    ({"kind": ".a"}, f"kind: {NAME_RULE}"),
    ({"kind": "a\n"}, f"kind: {NAME_RULE}"),
    ({"kind": "é"}, f"kind: {NAME_RULE}"),
    ({"kind": "a" * 129}, f"kind: {NAME_RULE}"),
    ({"queue": "a b"}, f"queue: {NAME_RULE}"),
    ({"queue": None}, f"queue: {NAME_RULE}"),
    ({"idempotency_key": ""}, "idempotency_key: 1 to 255"),
    ({"idempotency_key": "   "}, "idempotency_key: 1 to 255"),
    ({"idempotency_key": "a\tb"}, "idempotency_key: 1 to 255"),
    ({"idempotency_key": "é"}, "idempotency_key: 1 to 255"),
    ({"idempotency_key": "k" * 256}, "idempotency_key: 1 to 255"),
    ({"priority": -32769}, "priority: must be from -32768 to 32767"),
    ({"priority": 32768}, "priority: must be from -32768 to 32767"),
    ({"priority": None}, "priority: must be"),
    ({"run_at": "infinity"}, "run_at: must be in the years 1970 to 9999"),
    ({"run_at": "-infinity"}, "run_at: must be in the years 1970 to 9999"),
    ({"run_at": "1969-12-31 23:59:59+00"}, "run_at: must be in the years 1970 to 9999"),
    ({"run_at": "9999-12-31 23:30:00-01"}, "run_at: must be in the years 1970 to 9999"),
    ({"run_at": "2030-01-01 00:00+00", "delay_seconds": 1}, "delay_seconds: give run_at or delay_seconds"),
    ({"delay_seconds": -0.1}, "delay_seconds: must be from 0 to 31536000"),
    ({"delay_seconds": 31536001}, "delay_seconds: must be from 0 to 31536000"),
    ({"delay_seconds": "NaN"}, "delay_seconds: must be from 0 to 31536000"),
    ({"max_attempts": 0}, "max_attempts: must be from 1 to 1000"),
    ({"max_attempts": 1001}, "max_attempts: must be from 1 to 1000"),
    ({"max_attempts": None}, "max_attempts: must be from 1 to 1000"),
    ({"max_runtime_seconds": 0.5}, "max_runtime_seconds: must be from 1 to 604800"),
    ({"max_runtime_seconds": "Infinity"}, "max_runtime_seconds: must be from 1 to 604800"),
    ({"progress_timeout_seconds": 604801}, "progress_timeout_seconds: must be from 1 to 604800"),
    ({"payload": '"\\u0000"'}, f"payload: {NOT_STRICT}"),
    ({"payload": '{"a\\u0000": 1}'}, f"payload: {NOT_STRICT}"),
    ({"payload": '"\\ud800"'}, f"payload: {NOT_STRICT}"),
    ({"payload": '"\\udc00\\ud800"'}, f"payload: {NOT_STRICT}"),
    ({"payload": "1e999999"}, f"payload: {NOT_STRICT}"),
    ({"payload": DEEP}, "payload: nested over 100 levels"),
    ({"payload": '{"a":' * 101 + "{}" + "}" * 101}, "payload: nested over 100 levels"),
    ({"payload": f'{{"a": [1, {DEEP}]}}'}, "payload: nested over 100 levels"),
    *[
        ({"payload": opening * depth + "1" + closing * depth}, "payload: ")
        for opening, closing in ("[]", ('{"a":', "}"))
        for depth in (5_000, 12_500)
    ],
    ({"payload": json.dumps("x" * 262_143)}, "payload: is over the limit of 262144 bytes"),
    ({"payload": json.dumps("é" * 131_072, ensure_ascii=False)}, "payload: is over the limit"),
    ({"metadata": []}, "metadata: must be an object of strings"),
    ({"metadata": "null"}, "metadata: must be an object of strings"),
    ({"metadata": {"a": 1}}, "metadata: must be an object of strings"),
    ({"metadata": {"a": None}}, "metadata: must be an object of strings"),
    ({"metadata": '{"a": "1", "\\u0061": "2"}'}, "metadata: a name stands twice"),
    ({"metadata": {"a": "\0"}}, f"metadata: {NOT_STRICT}"),
    ({"metadata": {"a": "x" * 16_377}}, "metadata: is over the limit of 16384 bytes"),
    ({"metadata": {"a": "é" * 8_189}}, "metadata: is over the limit of 16384 bytes"),
    ({"metadata": {"a": " " * 140_000}}, "metadata: is over the limit"),
    ({"backoff": []}, "backoff: must be an object"),
    ({"backoff": "null"}, "backoff: must be an object"),
    ({"backoff": {"base": 1}}, "backoff: has members"),
    ({"backoff": {"type": "constant"}}, "backoff: type must be"),
    ({"backoff": {"type": None}}, "backoff: type must be"),
    ({"backoff": {"type": ["fixed"]}}, "backoff: type must be"),
    ({"backoff": {"base_seconds": -1}}, "backoff: base_seconds must be from 0 to 86400"),
    ({"backoff": {"base_seconds": "5"}}, "backoff: base_seconds must be from 0 to 86400"),
    ({"backoff": {"base_seconds": None}}, "backoff: base_seconds must be from 0 to 86400"),
    ({"backoff": {"factor": True}}, "backoff: factor must be from 1 to 10"),
    ({"backoff": {"max_seconds": 604801}}, "backoff: max_seconds must be from 0 to 604800"),
    ({"backoff": {"jitter": [0.5]}}, "backoff: jitter must be from 0 to 1"),
    ({"backoff": '{"factor": 2, "factor": 3}'}, "backoff: a name stands twice"),
    ({"parent_job_id": UNKNOWN_ID}, "parent_lease_version: give both"),
    ({"parent_lease_version": 1}, "parent_lease_version: give both"),
    ({"parent_job_id": UNKNOWN_ID, "parent_lease_version": -1}, "parent_lease_version: must be from 0"),
    ({"parent_job_id": UNKNOWN_ID, "parent_lease_version": 2**53}, "parent_lease_version: must be from 0"),
]


@pytest.mark.parametrize(("parameters", "message"), INVALID, ids=range(len(INVALID)))
async def test_a_parameter_that_cannot_be_is_refused_by_its_name_and_changes_nothing(
    context: Context, application: Application, parameters: dict[str, Any], message: str
) -> None:
    async with application.connect() as connection:
        with pytest.raises(REFUSED, match=f"^{message}"):
            await enqueue(connection, **{"kind": "test", "idempotency_key": "k"} | parameters)
    assert await count_rows(context, "jobs") == 0
    assert await count_rows(context, "idempotency_keys") == 0


VALID: list[dict[str, Any]] = [
    {"kind": "A" + "z0_.:-" * 21 + "x"},
    {"idempotency_key": " k" + "~" * 253},
    {"priority": -32768},
    {"priority": 32767},
    {"run_at": "1970-01-01 00:00+00"},
    {"run_at": "9999-12-31 23:59:59.999999+00"},
    {"delay_seconds": 31536000},
    {"max_attempts": 1000, "max_runtime_seconds": 604800, "progress_timeout_seconds": 1},
    {"payload": "[" * 100 + "1" + "]" * 100},
    {"payload": '{"a":' * 100 + "null" + "}" * 100},
    {"payload": '"\\ud83d\\ude00 \\\\u0000"'},
    {"payload": "[1e400, 9007199254740993, 0.10, -0, 1E+2]"},
    {"payload": '{"a": 1, "a": 2}'},
    {"payload": json.dumps("x" * 262_142)},
    {"metadata": {"a": "x" * 16_376}},
    {"metadata": {"a": "é" * 8_188}},
    {"metadata": '{"": "", "\\"\\\\\\n\\u0001/\\/": "\\ud83d\\ude00é"}'},
    {"backoff": {"type": "fixed", "base_seconds": 0, "factor": 1, "max_seconds": 0, "jitter": 0}},
    {"backoff": {"base_seconds": 86400, "factor": 10, "max_seconds": 604800, "jitter": 1}},
    {"backoff": '{"base_seconds": 1e-9999, "jitter": 5e-324, "factor": 1.0000000000000002}'},
]


@pytest.mark.parametrize("parameters", VALID, ids=range(len(VALID)))
async def test_what_is_at_the_edge_of_its_range_is_taken_and_comes_back_as_it_was(
    context: Context, application: Application, parameters: dict[str, Any]
) -> None:
    async with application.connect() as connection:
        made = await enqueue(connection, **{"kind": "test"} | parameters)
    job = await read(context, made.job_id)
    if "payload" in parameters:
        assert job.payload == parameters["payload"]
    if "metadata" in parameters:
        given = parameters["metadata"]
        assert job.metadata == metadata_text(json.loads(given) if isinstance(given, str) else given)
    await assert_healthy(context)


async def test_a_number_of_a_policy_takes_no_more_room_than_it_has_meaning(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection:
        await enqueue(connection, backoff='{"base_seconds": 1e-9999, "jitter": 1e-9999}')
        made = await enqueue(connection, backoff={"factor": 1 + 2**-52, "jitter": 0.1 + 0.2})
    async with context.database.begin() as conn:
        [row] = await conn.execute(
            text("SELECT max(length(CAST(backoff AS text))) AS longest FROM fencepost.jobs")
        )
    assert row.longest < 200
    backoff = (await read(context, made.job_id)).backoff
    assert (backoff.factor, backoff.jitter) == (1 + 2**-52, 0.1 + 0.2)


def test_the_limits_of_the_functions_are_the_defaults_of_the_service(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        source = connection.execute("""
            SELECT string_agg(prosrc, '') FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = 'fencepost'
        """).fetchall()[0][0]
    settings = Settings()
    for name, limit in (
        ("payload", settings.max_payload_bytes),
        ("result", settings.max_result_bytes),
    ):
        assert f"checked_json('{name}', {name}, {limit})" in source.replace("complete.result", "result")
    assert f"octet_length(stored) > {settings.max_metadata_bytes} " in source


# Complete.


async def test_a_job_is_completed_as_over_http(context: Context, application: Application) -> None:
    job = await leased(context, JobSpec(kind="test", payload="[1]", queue="mail"))
    async with application.connect() as connection, connection.transaction():
        await hold(connection, token_of(job))
        await complete_in_sql(connection, token_of(job), '{"sent":  true}')
        assert (await read(context, job.id)).state is JobState.RUNNING
    done = await read(context, job.id)
    assert (done.state, done.result, done.lease_version, done.attempt) == (
        JobState.SUCCEEDED,
        '{"sent":  true}',
        job.lease_version,
        1,
    )
    [record] = await records(context, job.id)
    assert (record.outcome, record.ended_at, record.worker_id) == ("succeeded", done.finished_at, "worker")
    assert done.finished_at is not None
    assert done.finished_at >= record.granted_at
    await assert_healthy(context)


async def test_a_job_may_be_leased_after_the_transaction_began_that_completes_it(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection, connection.transaction():
        await connection.execute("SELECT 1")
        job = await leased(context)
        await complete_in_sql(connection, token_of(job))
    [record] = await records(context, job.id)
    assert record.ended_at is not None
    assert record.ended_at >= record.granted_at


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('"\\u0000"', NOT_STRICT),
        (DEEP, "nested over 100 levels"),
        (json.dumps("x" * 262_143), "is over the limit of 262144 bytes"),
    ],
    ids=["U+0000", "deep", "long"],
)
async def test_a_result_that_cannot_be_is_refused_and_the_lease_is_kept(
    context: Context, application: Application, result: str, message: str
) -> None:
    job = await leased(context)
    async with application.connect() as connection:
        with pytest.raises(REFUSED, match=f"^result: {message}"):
            await complete_in_sql(connection, token_of(job), result)
        await complete_in_sql(connection, token_of(job), " null ")
    assert (await read(context, job.id)).result is None


async def test_a_null_is_a_fault_of_the_callers_and_no_lease_that_was_lost(
    context: Context, application: Application
) -> None:
    job = await leased(context)
    async with application.connect() as connection:
        for function in ("hold_lease", "complete"):
            for token, name in (
                ([None, 1], "job_id"),
                ([job.id, None], "lease_version"),
                ([None] * 2, "job_id"),
            ):
                with pytest.raises(REFUSED, match=f"^{name}: must not be null"):
                    await connection.execute(f"SELECT fencepost.{function}(%s, %s)".encode(), token)


async def test_a_child_remembers_its_parent(context: Context, application: Application) -> None:
    job = await leased(context)
    async with application.connect() as connection, connection.transaction():
        made = await enqueue(
            connection, queue="children", parent_job_id=job.id, parent_lease_version=job.lease_version
        )
        await complete_in_sql(connection, token_of(job))
    [child] = await lease(context, "children")
    assert child.id == made.job_id
    assert child.parent == Parent(job.id, job.lease_version)


# Who may.


async def test_a_granted_role_can_call_the_functions_and_do_nothing_else(
    context: Context, application: Application
) -> None:
    await leased(context)
    async with application.connect() as connection:
        cursor = await connection.execute("""
            SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = 'fencepost' AND has_function_privilege(p.oid, 'EXECUTE')
        """)
        assert {row.proname for row in await cursor.fetchall()} == set(FUNCTIONS)
        cursor = await connection.execute("""
            SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'fencepost' AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
              AND (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                   OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))
        """)
        assert await cursor.fetchall() == []
        for statement in ("SELECT * FROM fencepost.jobs", "CREATE TABLE fencepost.mine ()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(statement)


async def test_a_role_that_was_granted_nothing_can_do_nothing(context: Context, database_url: str) -> None:
    job = await leased(context)
    with role_on(database_url, is_granted=False) as role:
        async with Application(database_url, role).connect() as connection:
            for call in (
                enqueue(connection),
                hold(connection, token_of(job)),
                complete_in_sql(connection, token_of(job)),
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await call


async def test_names_that_a_caller_makes_up_are_not_the_ones_that_the_functions_use(
    context: Context, application: Application
) -> None:
    async with application.connect() as connection:
        await connection.execute("CREATE TEMPORARY TABLE jobs (job_id uuid)")
        await connection.execute(
            "CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql "
            "AS $$ SELECT CAST('1999-01-01' AS timestamptz) $$"
        )
        await connection.execute("SET search_path = pg_temp, pg_catalog")
        made = await enqueue(connection)
    assert (await read(context, made.job_id)).created_at.year > 1999


def test_a_role_that_is_not_there_is_named(database_url: str) -> None:
    with pytest.raises(Misconfigured, match="no role 'nobody; at all'"):
        grant(database_url, "nobody; at all")


def test_a_grant_to_everybody_is_made_by_hand_or_not_at_all(database_url: str) -> None:
    with pytest.raises(Misconfigured, match="public is no role"):
        grant(database_url, "public")
    with psycopg.connect(database_url) as connection:
        [(is_granted,)] = connection.execute(
            "SELECT bool_or(has_function_privilege('public', oid, 'EXECUTE')) FROM pg_proc "
            "WHERE proname = ANY (%s)",
            [list(FUNCTIONS)],
        ).fetchall()
    assert not is_granted


@pytest.mark.parametrize("is_granted", [False, True])
def test_who_may_not_grant_is_told_so(database_url: str, *, is_granted: bool) -> None:
    with (
        role_on(database_url, is_granted=is_granted) as grantor,
        role_on(database_url, is_granted=False) as role,
    ):
        # A role that was granted to, and no more, is told by PostgreSQL in a warning alone.
        url = make_url(database_url).update_query_dict({"options": f"-crole={grantor}"})
        with pytest.raises(Misconfigured, match="connect as the owner of the schema"):
            grant(url.render_as_string(hide_password=False), role)


@pytest.mark.parametrize("name", ['quo"ted; --', "Ünï cøde", "PUBLIC", "current_user", "%s", "{role}"])
def test_a_role_may_have_any_name(database_url: str, name: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            grant(database_url, name)
            connection.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(role))
            assert connection.execute("SELECT created FROM fencepost.enqueue('test')").fetchall() == [(True,)]
        finally:
            connection.execute("RESET SESSION AUTHORIZATION")
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_before_the_first_migration_there_is_nothing_to_grant(
    new_database: Callable[..., str], application: Application
) -> None:
    with pytest.raises(Misconfigured, match="run fencepost migrate"):
        grant(new_database(), application.role)


def test_granting_twice_changes_nothing(database_url: str, application: Application) -> None:
    def privileges() -> list[tuple[object, ...]]:
        with psycopg.connect(database_url) as connection:
            return connection.execute(
                "SELECT proname, proacl FROM pg_proc WHERE proname = ANY (%s) ORDER BY proname",
                [list(FUNCTIONS)],
            ).fetchall()

    before = privileges()
    grant(database_url, application.role)
    assert privileges() == before


async def test_all_of_it_works_through_a_pooler(
    context: Context, admin_url: str, database_url: str, tmp_path: Path
) -> None:
    job = await leased(context)
    pooler = Pooler(admin_url, tmp_path)
    try:
        async with await psycopg.AsyncConnection.connect(
            pooler.through(database_url), prepare_threshold=None
        ) as connection:
            await hold(connection, token_of(job))
            [made] = await (
                await connection.execute("SELECT job_id FROM fencepost.enqueue('child', '[1]')")
            ).fetchall()
            await complete_in_sql(connection, token_of(job), "[2]")
    finally:
        pooler.stop()
    assert (await read(context, job.id)).result == "[2]"
    assert (await read(context, str(made[0]))).payload == "[1]"


# The way down.


async def test_the_functions_can_be_taken_away_and_made_again(context: Context, database_url: str) -> None:
    def functions() -> list[tuple[object, ...]]:
        with psycopg.connect(database_url) as connection:
            return connection.execute("""
                SELECT p.proname, p.proacl FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname = 'fencepost' ORDER BY 1
            """).fetchall()

    async def one_of_each() -> Enqueued:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            cursor = await connection.execute("SELECT * FROM fencepost.enqueue('made')")
            return Enqueued(*map(str, (await cursor.fetchall())[0]))  # type: ignore[arg-type]

    before = functions()
    made = await one_of_each()
    config = _config()
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
    engine.dispose()
    assert {name for name, _ in functions()} == {"first_job_id_at", "new_job_id"}
    assert (await read(context, made.job_id)).state is JobState.READY
    await assert_healthy(context)
    migrate(database_url)
    assert functions() == before
    await one_of_each()
