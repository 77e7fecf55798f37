"""Every statement fits the migrated schema, and the words in it are the domain's."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import psycopg
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

import app.store
from app.domain.job import JobState, Outcome
from app.store import doctor
from app.store.engine import Connection, Statement


def statements() -> Iterator[tuple[str, Statement]]:
    """Yield every statement constant of the store with its name."""
    for module_info in pkgutil.iter_modules(app.store.__path__, prefix="app.store."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, Statement):
                yield f"{module_info.name}.{name}", value
    for sentence, statement in doctor.CHECKS.items():
        yield f"app.store.doctor.CHECKS[{sentence!r}]", statement


def test_every_statement_prepares_against_the_migrated_schema(database_url: str) -> None:
    numbered = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    refused = {}
    prepared_count = 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name, statement in statements():
            compiled = str(statement.compile(dialect=numbered)).strip()
            try:
                # Settings cannot be prepared, and have no parameters.
                prefix = "" if compiled.startswith("SET ") else f"PREPARE p{prepared_count} AS "
                connection.execute((prefix + compiled).encode())
            except psycopg.Error as error:
                refused[name] = str(error)
            prepared_count += 1
    assert refused == {}
    assert prepared_count > 40


def test_no_statement_has_a_placeholder_inside_quotes_or_before_a_cast_by_colons() -> None:
    for name, statement in statements():
        assert "::" not in statement.text, name
        quoted = re.findall(r"'[^']*'", statement.text)
        assert not [part for part in quoted if re.search(r"(?<!\d):[a-z]", part)], name


async def constraint_words(conn: Connection, name: str) -> set[str]:
    """Return the texts that a CHECK constraint allows."""
    definition = text(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = :name AND conparentid = 0"
    )
    definitions = {row[0] for row in await conn.execute(definition, {"name": name})}
    return set(re.findall(r"'(\w+)'", definitions.pop()))


async def test_the_states_of_finished_jobs_are_the_terminal_ones(conn: Connection) -> None:
    terminal = {state for state in JobState if state.is_terminal}
    assert await constraint_words(conn, "finished_state") == terminal


async def test_the_outcomes_of_recorded_attempts_are_all_but_running_and_succeeded(conn: Connection) -> None:
    recorded = set(Outcome) - {Outcome.RUNNING, Outcome.SUCCEEDED}
    assert await constraint_words(conn, "attempts_outcome") == recorded


async def test_each_terminal_state_has_its_partitions(conn: Connection) -> None:
    children = text("""
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = CAST('fencepost.finished' AS regclass)
    """)
    names = {row.relname for row in await conn.execute(children)}
    assert names == {f"finished_{state}" for state in JobState if state.is_terminal}


def test_statements_write_and_compare_only_states_and_outcomes_that_exist() -> None:
    known = {*JobState, *Outcome}
    compared = re.compile(
        r"\b(?:state|outcome)\s*(?:=|<>|IN)\s*(\([^)]*\)|'\w+')|'(\w+)'\s+AS state|\bstate\s+WHEN\s+('\w+')"
    )
    words = set()
    for _, statement in statements():
        for match in compared.finditer(statement.text):
            words |= set(re.findall(r"\w+", "".join(part or "" for part in match.groups())))
    assert {"ready", "scheduled", "dead", "cancelled", "released"} <= words
    assert words <= known
