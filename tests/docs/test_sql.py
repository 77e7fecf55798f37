"""The page of the SQL functions: what it shows is run, what it lists is what the catalog has."""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from app.domain.job import JobSpec, JobState, LeasedJob
from app.embedded.binaries import binary_folder
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.store import privileges
from app.store.schema import MIGRATIONS
from tests.docs.documents import ROOT, code, read, rows, section
from tests.support.application import role_on
from tests.support.factory import elapse, lease, leased
from tests.support.factory import read as read_job
from tests.support.server import ServerProcess

PAGE = read(ROOT / "docs" / "sql.md")
SOURCE = read(MIGRATIONS / "versions" / "0003_functions_for_applications.sql")
PATTERN = section(PAGE, "## The pattern")


@pytest.fixture
def shop(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of an application that has the tables of the page."""
    with role_on(database_url) as role, psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.accounts (account_id integer, balance integer)")
        connection.execute("CREATE TABLE public.orders (order_id integer, email text)")
        connection.execute("INSERT INTO public.accounts VALUES (7, 100)")
        for statement in (
            "GRANT ALL ON public.accounts, public.orders TO {}",
            "SET SESSION AUTHORIZATION {}",
        ):
            connection.execute(sql.SQL(statement).format(sql.Identifier(role)))
        yield connection


def sessions() -> list[str]:
    """Return the transactions of the first section: the holder's, and the producer's."""
    return re.findall(r"^BEGIN;.*?^COMMIT;$", code(PATTERN, "sql"), re.MULTILINE | re.DOTALL)


def paste(connection: psycopg.Connection[Any], text: str, job: LeasedJob) -> None:
    """Run statements one by one, as a shell does, with the variables of psql filled in."""
    text = text.replace(":'job_id'", f"'{job.id}'").replace(":lease_version", str(job.lease_version))
    for statement in re.sub(r"--.*", "", text).split(";"):
        if statement.strip():
            connection.execute(statement.encode())


def balance(connection: psycopg.Connection[Any]) -> int:
    [(amount,)] = connection.execute("SELECT balance FROM public.accounts").fetchall()
    assert isinstance(amount, int)
    return amount


async def stale_and_current(context: Context) -> tuple[LeasedJob, LeasedJob]:
    stale = await leased(context, JobSpec(kind="charge"), lease_seconds=10.0)
    await elapse(context, 11)
    await expire_leases(context)
    [current] = await lease(context)
    return stale, current


async def test_the_pattern_charges_once_however_many_try(
    context: Context, shop: psycopg.Connection[Any]
) -> None:
    stale, current = await stale_and_current(context)
    holder, _ = sessions()
    with pytest.raises(psycopg.DatabaseError) as refusal:
        paste(shop, holder, stale)
    shop.execute("ROLLBACK")
    assert refusal.value.sqlstate == "FP001"
    paste(shop, holder, current)
    with pytest.raises(psycopg.DatabaseError):
        paste(shop, holder, current)
    shop.execute("ROLLBACK")
    assert balance(shop) == 90
    job = await read_job(context, current.id)
    assert (job.state, job.result) == (JobState.SUCCEEDED, '{"charged": 10}')


async def test_the_function_in_python_does_the_same(context: Context, shop: psycopg.Connection[Any]) -> None:
    names: dict[str, Any] = {}
    exec(code(PATTERN, "python"), names)  # noqa: S102 - it is our own page
    charge: Callable[[psycopg.Connection[Any], dict[str, object]], bool] = names["charge"]
    stale, current = [
        {"id": job.id, "lease_version": job.lease_version} for job in await stale_and_current(context)
    ]
    assert [charge(shop, job) for job in (stale, current, current)] == [False, True, False]
    assert balance(shop) == 90
    with pytest.raises(psycopg.DatabaseError):
        charge(shop, {"id": "no id", "lease_version": 1})


async def test_the_producers_transaction_makes_an_order_and_its_job(
    context: Context, shop: psycopg.Connection[Any]
) -> None:
    job = await leased(context)
    _, producer = sessions()
    paste(shop, producer, job)
    [mail] = await lease(context, "mail")
    assert (mail.kind, mail.payload) == ("email.send", '{"order_id": 17}')
    assert shop.execute("SELECT count(*) FROM public.orders").fetchall() == [(1,)]


def test_one_statement_makes_a_job_for_each_row(shop: psycopg.Connection[Any]) -> None:
    shop.execute("INSERT INTO public.orders SELECT n, 'ada@example.com' FROM generate_series(1, 300) AS n")
    made = shop.execute(code(section(PAGE, "## `fencepost.enqueue`"), "sql").encode()).fetchall()
    assert len(set(made)) == 300


async def test_children_are_enqueued_before_their_parent_is_completed(
    context: Context, shop: psycopg.Connection[Any]
) -> None:
    job = await leased(context)
    complete = f"SELECT fencepost.complete('{job.id}', {job.lease_version})"
    parent = f"parent_job_id => '{job.id}', parent_lease_version => {job.lease_version}"
    child = f"SELECT fencepost.enqueue('child', {parent})"
    shop.execute("BEGIN")
    shop.execute(complete.encode())
    with pytest.raises(psycopg.DatabaseError) as refusal:
        shop.execute(child.encode())
    shop.execute("ROLLBACK")
    assert refusal.value.sqlstate == "FP001"
    with shop.transaction():
        shop.execute(child.encode())
        shop.execute(complete.encode())
    assert (await read_job(context, job.id)).state is JobState.SUCCEEDED


@pytest.fixture
def new_role(database_url: str) -> Iterator[str]:
    """The name of a role that the test makes."""
    role = f"shop_{uuid.uuid4().hex[:8]}"
    yield role
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(role)))


@pytest.mark.slow
def test_the_session_works_when_pasted(
    serve: Callable[..., ServerProcess], database_url: str, new_role: str
) -> None:
    address = "http://127.0.0.1:8000"
    session = code(section(PAGE, "## Try it"), "sh")
    assert session.count(address) == 1
    # Roles belong to the whole server.
    session = re.sub(r"\bshop\b", new_role, session.replace(address, serve().url))
    programs = [str(Path(sys.executable).parent), os.environ["PATH"], str(binary_folder())]
    done = subprocess.run(
        ["bash", "-eu"],  # noqa: S607 - as a reader pastes it
        input=session,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PATH": os.pathsep.join(programs), "FENCEPOST_DATABASE_URL": database_url},
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR:  lease_lost" in done.stderr
    assert '"current_version" : 1, "job_state" : "succeeded", "reason" : "finished"' in done.stderr
    assert "charged before" in done.stdout
    assert re.search(r"account_id \| balance.*\n.*\n +7 \| +90\n", done.stdout)


def test_the_grants_by_hand_are_those_of_the_command() -> None:
    by_hand = [
        statement.strip()
        for statement in code(section(PAGE, "## Who may call them"), "sql").split(";")
        if statement.strip()
    ]
    assert by_hand == [statement.format(role="shop") for statement in privileges.GRANT]


def catalog(url: str, name: str) -> list[tuple[str, str, str | None]]:
    """Return (name, type, default) of each parameter that a function takes."""
    with psycopg.connect(url) as connection:
        [(arguments,)] = connection.execute(
            "SELECT pg_get_function_arguments(CAST(%s AS regproc))", [f"fencepost.{name}"]
        ).fetchall()
    taken = [each for each in arguments.split(", ") if not each.startswith("OUT ")]
    found = [re.fullmatch(r"(\w+) (.+?)(?: DEFAULT (.+))?", each) for each in taken]
    return [(each[1], each[2], each[3]) for each in found if each is not None]


@pytest.mark.parametrize("name", privileges.FUNCTIONS)
def test_every_parameter_stands_in_its_table_with_its_type_and_default(database_url: str, name: str) -> None:
    documented = [row for row in rows(section(PAGE, f"## `fencepost.{name}`")) if row[0].startswith("`")]
    parameters = catalog(database_url, name)
    assert [row[0].rstrip(" *").strip("`") for row in documented] == [each[0] for each in parameters]
    for (cell, kind, _, left_out), (_, type_name, default) in zip(documented, parameters, strict=True):
        assert kind == f"`{type_name}`"
        assert (default is None) == cell.endswith("*") == (left_out == "refused")
        if default is not None and not default.startswith("NULL"):
            assert left_out.strip("`") == default.removesuffix("::text").strip("'")


def test_what_a_function_returns_stands_beside_its_name(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for name in privileges.FUNCTIONS:
            [(returned,)] = connection.execute(
                """
                SELECT COALESCE(
                    (SELECT string_agg(a.name || ' ' || format_type(a.type, NULL), ', ')
                     FROM unnest(proargnames, proallargtypes, proargmodes) AS a (name, type, mode)
                     WHERE a.mode = 'o'),
                    format_type(prorettype, NULL)
                )
                FROM pg_proc WHERE oid = CAST(CAST(%s AS regproc) AS oid)
                """,
                [f"fencepost.{name}"],
            ).fetchall()
            told = section(PAGE, f"## `fencepost.{name}`").replace("timestamptz", "timestamp with time zone")
            assert f"→ {returned}`" in told.replace("(", "").replace(")", "")


def test_every_code_of_our_own_stands_in_the_table_and_the_others_are_postgresqls() -> None:
    _, *table = rows(section(PAGE, "## Errors"))
    documented = {row[0].strip("`"): row[1] for row in table}
    own = {
        state: message
        for message, state in re.findall(r"RAISE EXCEPTION '(\w+): [^;]*ERRCODE = '(FP\d+)'", SOURCE)
    }
    assert set(re.findall(r"'(FP\d+)'", SOURCE)) == set(own)
    assert {state: name for state, name in documented.items() if state.startswith("FP")} == own
    for state, name in documented.items():
        if not state.startswith("FP"):
            assert psycopg.errors.lookup(state).__name__.lower() == name.replace("_", "")
    raised = set(re.findall(r"ERRCODE = '([a-z_]+)'", SOURCE))
    assert raised <= set(documented.values())


async def test_the_detail_that_is_shown_has_the_members_of_a_real_one(
    context: Context, shop: psycopg.Connection[Any]
) -> None:
    stale, _ = await stale_and_current(context)
    shown = json.loads(code(section(PAGE, "## Errors"), "json"))
    with pytest.raises(psycopg.DatabaseError) as refusal:
        shop.execute("SELECT fencepost.hold_lease(%s, %s)", [stale.id, stale.lease_version])
    real = json.loads(refusal.value.diag.message_detail or "")
    assert {name: shown[name] for name in shown if name != "job_id"} == {
        name: real[name] for name in real if name != "job_id"
    }


def test_the_statement_that_bounds_a_transaction_is_one(database_url: str) -> None:
    statement = code(section(PAGE, "## What waits, and what does not"), "sql").strip().removesuffix(";")
    with role_on(database_url) as role, psycopg.connect(database_url) as connection:
        connection.execute(statement.replace("shop", role).encode())
        [(settings,)] = connection.execute(
            "SELECT rolconfig FROM pg_roles WHERE rolname = %s", [role]
        ).fetchall()
    assert settings == ["idle_in_transaction_session_timeout=10s"]
