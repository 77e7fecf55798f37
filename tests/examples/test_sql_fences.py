"""The fences in SQL: stale and current versions in turn, and in races, on SQLite and on PostgreSQL."""

import asyncio
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.store.engine import Database
from examples.fences.sql import (
    TABLES,
    Connection,
    Cursor,
    LeaseLost,
    take_fence,
    take_once,
    write_report,
)
from tests.support.rivals import rival

JOB = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d"
OTHER_JOB = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3e"

# What the tests write behind the fences. The order of a log's rows is that of the commits.
OWN_TABLES = (
    "CREATE TABLE totals (name TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
    "CREATE TABLE writes (place BIGINT NOT NULL, version BIGINT NOT NULL)",
    "INSERT INTO reports (job_id) VALUES (:job), (:other_job)",
    "INSERT INTO totals VALUES ('november', 0)",
)
LOG = "INSERT INTO writes SELECT count(*), :version FROM writes"

Transaction = Callable[[], AbstractContextManager[Connection]]


class NamedValues:
    """A connection of psycopg that takes :name for a value."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Mapping[str, Any], /) -> Cursor:
        return self._connection.execute(re.sub(r":(\w+)", r"%(\1)s", statement).encode(), values)


@contextmanager
def on_sqlite(path: Path) -> Iterator[Connection]:
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        yield connection


@contextmanager
def on_postgres(url: str) -> Iterator[Connection]:
    with psycopg.connect(url) as connection:
        yield NamedValues(connection)


@pytest.fixture(name="postgres")
def _postgres(database_url: str) -> Transaction:
    return prepared(partial(on_postgres, database_url))


@pytest.fixture(name="transaction", params=["sqlite", "postgres"])
def _transaction(request: pytest.FixtureRequest, tmp_path: Path) -> Transaction:
    """What opens a transaction on a database with the tables; it is committed unless something is raised."""
    if request.param == "sqlite":
        return prepared(partial(on_sqlite, tmp_path / "other.sqlite"))
    opened: Transaction = request.getfixturevalue("postgres")
    return opened


def prepared(transaction: Transaction) -> Transaction:
    with transaction() as connection:
        for statement in (*TABLES, *OWN_TABLES):
            connection.execute(statement, {"job": JOB, "other_job": OTHER_JOB})
    return transaction


class Undone(Exception):
    """Rolls a transaction back."""


@contextmanager
def undone(transaction: Transaction) -> Iterator[Connection]:
    """Open a transaction that is rolled back at its end."""
    with suppress(Undone), transaction() as connection:
        yield connection
        raise Undone


def report_of(transaction: Transaction, version: int, *, job_id: str = JOB) -> None:
    with transaction() as connection:
        write_report(connection, job_id=job_id, lease_version=version, body=f"by {version}")
        connection.execute(LOG, {"version": version})


def total_of(transaction: Transaction, version: int, *, job_id: str = JOB) -> None:
    with transaction() as connection:
        take_fence(connection, job_id=job_id, lease_version=version)
        connection.execute("UPDATE totals SET amount = :version", {"version": version})
        connection.execute(LOG, {"version": version})


def charge_of(transaction: Transaction, version: int, *, job_id: str = JOB) -> bool:
    with transaction() as connection:
        is_first = take_once(connection, job_id=job_id, lease_version=version)
        if is_first:
            connection.execute("UPDATE totals SET amount = amount + 100", {})
            connection.execute(LOG, {"version": version})
        return is_first


def only_value(transaction: Transaction, query: str, **values: object) -> Any:
    with transaction() as connection:
        (value,) = connection.execute(query, values).fetchone()
    return value


def written(transaction: Transaction) -> list[int]:
    """Return the versions that have written, in the order of their commits."""
    count = only_value(transaction, "SELECT count(*) FROM writes")
    query = "SELECT version FROM writes WHERE place = :place"
    return [only_value(transaction, query, place=place) for place in range(count)]


def report(transaction: Transaction) -> Any:
    return only_value(transaction, "SELECT body FROM reports WHERE job_id = :job", job=JOB)


def total(transaction: Transaction) -> Any:
    return only_value(transaction, "SELECT amount FROM totals")


def test_stale_version_writes_no_report_after_a_newer_one(transaction: Transaction) -> None:
    report_of(transaction, 1)
    report_of(transaction, 3)
    for stale in (1, 2):
        with pytest.raises(LeaseLost):
            report_of(transaction, stale)
    assert report(transaction) == "by 3"
    assert written(transaction) == [1, 3]


def test_same_version_may_write_its_report_again(transaction: Transaction) -> None:
    report_of(transaction, 2)
    report_of(transaction, 2)
    assert report(transaction) == "by 2"


def test_report_of_another_job_is_not_fenced_by_this_ones_version(transaction: Transaction) -> None:
    report_of(transaction, 7)
    report_of(transaction, 1, job_id=OTHER_JOB)
    assert written(transaction) == [7, 1]
    assert report(transaction) == "by 7"


def test_stale_version_is_stopped_before_it_writes_what_many_jobs_write(transaction: Transaction) -> None:
    total_of(transaction, 1)
    total_of(transaction, 3)
    for stale in (1, 2):
        with pytest.raises(LeaseLost):
            total_of(transaction, stale)
    assert total(transaction) == 3
    assert written(transaction) == [1, 3]


def test_same_version_passes_the_fence_again(transaction: Transaction) -> None:
    total_of(transaction, 2)
    total_of(transaction, 2)
    assert written(transaction) == [2, 2]


def test_fence_of_one_job_does_not_stop_another(transaction: Transaction) -> None:
    total_of(transaction, 7)
    total_of(transaction, 1, job_id=OTHER_JOB)
    assert written(transaction) == [7, 1]


def test_transaction_that_was_rolled_back_leaves_no_fence(transaction: Transaction) -> None:
    with undone(transaction) as connection:
        take_fence(connection, job_id=JOB, lease_version=5)
    total_of(transaction, 4)
    assert total(transaction) == 4


@pytest.mark.parametrize("versions", [(1, 2), (2, 1), (2, 2)], ids=str)
def test_effect_is_made_once_whichever_version_comes_first(
    transaction: Transaction, versions: tuple[int, int]
) -> None:
    assert [charge_of(transaction, version) for version in versions] == [True, False]
    assert total(transaction) == 100
    assert charge_of(transaction, 1, job_id=OTHER_JOB)
    assert total(transaction) == 200


def test_effect_that_was_rolled_back_is_made_by_the_next(transaction: Transaction) -> None:
    with undone(transaction) as connection:
        assert take_once(connection, job_id=JOB, lease_version=1)
    assert charge_of(transaction, 2)
    assert total(transaction) == 100


def rushed(call: Callable[[int], object], versions: list[int]) -> list[int]:
    """Call with all versions at once; return those that were not refused."""

    def accepted(version: int) -> bool:
        try:
            return call(version) is not False
        except LeaseLost:
            return False

    with ThreadPoolExecutor(len(versions)) as threads:
        answers = list(threads.map(accepted, versions))
    return [version for version, answer in zip(versions, answers, strict=True) if answer]


@pytest.mark.parametrize(("write", "read"), [(report_of, report), (total_of, total)], ids=["row", "fence"])
def test_of_many_at_once_no_lower_version_writes_after_a_higher_one(
    transaction: Transaction,
    write: Callable[[Transaction, int], None],
    read: Callable[[Transaction], Any],
) -> None:
    versions = random.sample(range(1, 9), 8)
    accepted = rushed(partial(write, transaction), versions)
    order = written(transaction)
    assert order == sorted(accepted)
    assert order[-1] == 8
    assert read(transaction) in (8, "by 8")


def test_of_many_at_once_one_makes_the_effect(transaction: Transaction) -> None:
    accepted = rushed(partial(charge_of, transaction), random.sample(range(1, 9), 8))
    assert written(transaction) == accepted
    assert len(accepted) == 1
    assert total(transaction) == 100


FENCES: list[Callable[..., object]] = [partial(write_report, body="the newer"), take_fence]


@pytest.mark.parametrize("fence", FENCES, ids=["row", "fence"])
@pytest.mark.parametrize("before", [0, 1], ids=["nobody was here", "the stale one was here"])
async def test_stale_version_that_waits_for_the_newer_ones_commit_is_refused(
    postgres: Transaction, database: Database, fence: Callable[..., object], before: int
) -> None:
    for version in range(1, before + 1):
        with postgres() as earlier:
            fence(earlier, job_id=JOB, lease_version=version)
    with postgres() as newer:
        fence(newer, job_id=JOB, lease_version=2)
        stale = await rival(database, asyncio.to_thread(call, postgres, fence, 1))
    with pytest.raises(LeaseLost):
        await stale


@pytest.mark.parametrize("fence", FENCES, ids=["row", "fence"])
async def test_newer_version_that_waits_for_the_stale_ones_commit_writes_over_it(
    postgres: Transaction, database: Database, fence: Callable[..., object]
) -> None:
    with postgres() as stale:
        fence(stale, job_id=JOB, lease_version=1)
        newer = await rival(database, asyncio.to_thread(call, postgres, fence, 2))
    await newer
    with pytest.raises(LeaseLost):
        call(postgres, fence, 1)


@pytest.mark.parametrize("fence", FENCES, ids=["row", "fence"])
async def test_stale_version_may_write_when_the_newer_one_rolled_back(
    postgres: Transaction, database: Database, fence: Callable[..., object]
) -> None:
    with undone(postgres) as newer:
        fence(newer, job_id=JOB, lease_version=2)
        stale = await rival(database, asyncio.to_thread(call, postgres, fence, 1))
    await stale


async def test_effect_waits_for_the_first_ones_commit_and_is_not_made_again(
    postgres: Transaction, database: Database
) -> None:
    with postgres() as first:
        assert take_once(first, job_id=JOB, lease_version=1)
        second = await rival(database, asyncio.to_thread(call, postgres, take_once, 2))
    assert await second is False


def call(transaction: Transaction, fence: Callable[..., object], version: int) -> object:
    with transaction() as connection:
        return fence(connection, job_id=JOB, lease_version=version)
