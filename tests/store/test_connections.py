"""How connections are made: what they ask for, through a pooler or not, and where they do not go."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from app.background.listener import POOLER_PAUSE_SECONDS, Listener
from app.domain.errors import Misconfigured, RolledBack, Unavailable
from app.main import migrate
from app.operations.wakeups import Wakeups
from app.store.connections import SETTINGS, Connector
from app.store.engine import Connection, Database, DatabaseFault, sql
from app.store.notifications import listen
from tests.support.pooler import Pooler

_POOLERS = {
    "refuses options": ("transaction", ""),
    "ignores options": ("transaction", "ignore_startup_parameters = options"),
    "session mode": ("session", "ignore_startup_parameters = options"),
}
_SHOWN = sql("""
SELECT current_setting('TimeZone') AS zone, current_setting('statement_timeout') AS statement_timeout,
       current_setting('lock_timeout') AS lock_timeout, current_setting('enable_seqscan') AS enable_seqscan,
       current_setting('transaction_isolation') AS isolation
""")


@pytest.fixture(name="pooled_url", params=_POOLERS)
def _pooled_url(
    request: pytest.FixtureRequest, admin_url: str, database_url: str, tmp_path: Path
) -> Iterator[str]:
    """This test's database behind each kind of pooler."""
    mode, settings = _POOLERS[request.param]
    pooler = Pooler(admin_url, tmp_path, pool_mode=mode, settings=settings)
    yield pooler.through(database_url)
    pooler.stop()


async def test_settings_hold_in_every_transaction_behind_a_pooler(pooled_url: str) -> None:
    database = Database(pooled_url, pool_size=2)
    openings = (database.begin, database.one_statement, database.snapshot, database.upkeep)
    for opening in openings:
        # Twice, and on whatever session the pooler gives.
        for _ in range(2):
            async with opening() as conn:
                [row] = await conn.execute(_SHOWN)
                assert (row.zone, row.lock_timeout, row.enable_seqscan) == ("UTC", "3s", "off")
                assert row.statement_timeout == ("1min" if opening == database.upkeep else "4s")
                is_snapshot = opening == database.snapshot
                assert row.isolation == ("repeatable read" if is_snapshot else "read committed")
    await database.close()


async def test_behind_a_pooler_nothing_is_left_in_the_sessions_of_others(
    pooled_url: str, database_url: str
) -> None:
    database = Database(pooled_url, pool_size=2)
    for _ in range(10):
        async with database.begin() as conn:
            await conn.execute(_SHOWN)
    async with await psycopg.AsyncConnection.connect(pooled_url, autocommit=True) as other:
        cursor = await other.execute("SELECT count(*) FROM pg_prepared_statements")
        assert await cursor.fetchone() == (0,)
        cursor = await other.execute("SHOW enable_seqscan")
        assert await cursor.fetchone() == ("on",)
    await database.close()


async def test_a_direct_connection_asks_once(database_url: str) -> None:
    database = Database(database_url, pool_size=1)
    for opening in (database.begin, database.one_statement, database.snapshot):
        async with opening() as conn:
            for name, value in SETTINGS.items():
                shown = await conn.execute(sql("SELECT current_setting(:name) AS value"), {"name": name})
                assert (name, shown[0].value.split(",")[0]) == (name, value)
    await database.close()


async def test_the_servers_default_isolation_does_not_matter(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    database = Database(database_url, pool_size=1)
    for opening in (database.begin, database.one_statement, database.begin):
        async with opening() as conn:
            assert [row.isolation for row in await conn.execute(_SHOWN)] == ["read committed"]
    await database.close()


def test_migrations_go_through_a_pooler(
    new_database: Callable[..., str], admin_url: str, tmp_path: Path
) -> None:
    url = new_database()
    pooler = Pooler(admin_url, tmp_path)
    migrate(pooler.through(url))
    migrate(pooler.through(url))
    pooler.stop()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM fencepost.schema_version").fetchone() == (1,)
        locks = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert locks.fetchone() == (0,)


async def test_a_listener_behind_a_pooler_says_once_that_polls_look_for_themselves(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(pooled_url, Wakeups())
    for _ in range(3):
        assert await listener.run() == POOLER_PAUSE_SECONDS
    assert [record.message for record in caplog.records if "pooler" in record.message] == [
        caplog.records[0].message
    ]
    assert "FENCEPOST_LISTEN_URL" in caplog.records[0].message


def _set_read_only(database_url: str, value: str) -> None:
    """Let the server refuse writes from now on, as one does that is no primary any more."""
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_read_only = {value}")


async def test_no_connection_is_made_to_a_server_that_takes_no_writes(database_url: str) -> None:
    _set_read_only(database_url, "on")
    database = Database(database_url, pool_size=1)
    with pytest.raises(Unavailable):
        async with database.begin():
            pass
    _set_read_only(database_url, "off")
    async with database.begin() as conn:
        await conn.execute(_SHOWN)
    await database.close()


async def test_the_pool_leaves_a_server_that_turns_read_only(database_url: str) -> None:
    database = Database(database_url, pool_size=2)
    async with database.begin() as one, database.begin() as other:
        pids = {await _pid_of(one), await _pid_of(other)}
    with pytest.raises(RolledBack):
        await _write_to_read_only(database)
    async with database.begin() as one, database.begin() as other:
        assert not pids & {await _pid_of(one), await _pid_of(other)}
    await database.close()


_PID = sql("SELECT pg_backend_pid()")


async def _pid_of(conn: Connection) -> int:
    pid: int = (await conn.execute(_PID))[0][0]
    return pid


async def _write_to_read_only(database: Database) -> None:
    async with database.begin() as conn:
        await conn.execute(sql("SET TRANSACTION READ ONLY"))
        await conn.execute(sql("DELETE FROM fencepost.jobs"))


async def test_the_listener_leaves_a_server_that_turns_read_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.notifications.PING_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr("app.store.notifications.PING", "SELECT 'on'")
    async with aclosing(listen(Connector(database_url))) as messages:
        assert await anext(messages) is None
        with pytest.raises(ConnectionError, match="no writes"):
            await anext(messages)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesam@oeffne@h/db",
        "postgresql://u:sesam/oeffne@h/db",
        "postgresql://u:sesam%zz@h/db",
        "postgresql://u:p@h:sesam/db",
        "postgresql://u:p@h/db?sslmode=require&sesam",
        "postgresql://u:p@h\nsesam/db",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(Misconfigured) as refusal:
        Connector(url)
    assert "sesam" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


async def test_a_password_may_hold_any_character_that_is_encoded(database_url: str) -> None:
    password = "p#w@d:w/th^%20 ?&="
    given = conninfo_to_dict(database_url)
    quoted = "".join(f"%{byte:02X}" for byte in password.encode())
    tail = f"{given['dbname']}?host={given['host']}&port={given.get('port', 5432)}"
    connector = Connector(f"postgresql://{given['user']}:{quoted}@/{tail}")
    connection = await connector.connect()
    assert connection.info.password == password
    await connection.close()


async def test_several_hosts_are_tried_in_turn(database_url: str) -> None:
    given = conninfo_to_dict(database_url)
    hosts = f"host=/nowhere,{given['host']}&port=1,{given.get('port', 5432)}"
    connector = Connector(f"postgresql:///{given['dbname']}?user={given['user']}&{hosts}")
    connection = await connector.connect()
    assert connection.info.host == given["host"]
    await connection.close()


async def test_a_fault_of_ours_names_the_place_and_quotes_no_value(database: Database) -> None:
    with pytest.raises(DatabaseFault) as fault:
        async with database.begin() as conn:
            await conn.execute(
                sql("INSERT INTO fencepost.schema_version (version_num) VALUES (:value)"),
                {"value": None},
            )
    assert "NotNullViolation" in str(fault.value)
    assert "23502 schema_version" in str(fault.value)
    with pytest.raises(DatabaseFault) as fault:
        async with database.begin() as conn:
            await conn.execute(sql("SELECT CAST(:value AS integer)"), {"value": "sesam"})
    assert "sesam" not in str(fault.value)
    assert fault.value.__suppress_context__


def test_a_database_in_another_encoding_is_refused(admin_url: str, new_database: Callable[..., str]) -> None:
    url = new_database(options="TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(Misconfigured, match=r"LATIN1.*UTF8"):
        migrate(url)


def test_a_server_that_may_lose_commits_is_warned_of(
    new_database: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET synchronous_commit = off")
    with caplog.at_level(logging.WARNING):
        migrate(url)
    assert any("synchronous_commit = off" in record.message for record in caplog.records)


async def test_times_are_utc_whatever_the_environment_tells_libpq(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    database = Database(database_url, pool_size=1)
    async with database.begin() as conn:
        rows = await conn.execute(sql("SELECT CAST('2027-01-31 12:00:00+00' AS timestamptz) AS at"), {})
    await database.close()
    assert rows[0].at.isoformat() == "2027-01-31T12:00:00+00:00"


async def test_a_clock_that_was_set_back_does_not_make_the_pool_connect_again_and_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url, pool_size=2)
    await _read_pid(database)
    with monkeypatch.context() as ahead:
        ahead.setattr("sqlalchemy.pool.base.time.time", lambda: 2e10)
        with pytest.raises(RolledBack):
            await _end_own_session(database)
    # Others of its time are not used any more, and the new ones are kept.
    assert len({await _read_pid(database) for _ in range(10)}) <= 2
    await database.close()


async def test_a_connection_that_was_closed_while_idle_is_not_used(database_url: str) -> None:
    database = Database(database_url, pool_size=2)
    async with database.begin() as one, database.begin() as other:
        pids = [await _pid_of(one), await _pid_of(other)]
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) AS p (pid)", [pids])
    async with database.one_write() as one, database.begin() as other:
        assert not {await _pid_of(one), await _pid_of(other)} & set(pids)
    await database.close()


async def _end_own_session(database: Database) -> None:
    async with database.begin() as conn:
        await conn.execute(sql("SELECT pg_terminate_backend(pg_backend_pid())"))


async def _read_pid(database: Database) -> object:
    async with database.begin() as conn:
        return await _pid_of(conn)


async def test_waiting_for_a_connection_and_the_statements_share_one_limit(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.engine.TRANSACTION_SECONDS", 0.5)
    database = Database(database_url, pool_size=1)
    await _read_pid(database)
    begun = time.monotonic()
    answers = await asyncio.gather(*(_sleep(database) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    assert time.monotonic() - begun < 3
    await _read_pid(database)
    await database.close()


async def _sleep(database: Database) -> None:
    async with database.begin() as conn:
        await conn.execute(sql("SELECT pg_sleep(3)"))


async def test_silent_hosts_do_not_keep_the_service_from_one_that_answers(database_url: str) -> None:
    given = conninfo_to_dict(database_url)
    with _silent_listener() as one, _silent_listener() as other:
        hosts = f"host=127.0.0.1,127.0.0.1,{given['host']}&port={one},{other},{given.get('port', 5432)}"
        url = f"postgresql:///{given['dbname']}?user={given['user']}&connect_timeout=30&{hosts}"
        database = Database(url, pool_size=2)
        begun = time.monotonic()
        await _read_pid(database)
        found_after = time.monotonic() - begun
        begun = time.monotonic()
        async with database.begin() as first, database.begin() as second:
            assert await _pid_of(first) != await _pid_of(second)
        # The one that answered is tried first from now on.
        assert time.monotonic() - begun < found_after
        await database.close()


@contextmanager
def _silent_listener() -> Iterator[int]:
    """Accept connections, and say nothing; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        yield port


async def test_one_statement_that_takes_too_long_leaves_the_other_connections_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url, pool_size=3)
    pids = await _three_pids(database)
    with monkeypatch.context() as short:
        short.setattr("app.store.engine.TRANSACTION_SECONDS", 0.2)
        with pytest.raises(Unavailable):
            await _sleep(database)
    after = await _three_pids(database)
    assert len(after & pids) == 2
    await database.close()


async def test_a_server_that_is_silent_twice_loses_all_its_connections(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url, pool_size=3)
    pids = await _three_pids(database)
    with monkeypatch.context() as short:
        short.setattr("app.store.engine.TRANSACTION_SECONDS", 0.2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await _sleep(database)
    assert not await _three_pids(database) & pids
    await database.close()


async def _three_pids(database: Database) -> set[object]:
    """Return the sessions of three connections that are open at once."""
    async with database.begin() as one, database.begin() as other, database.begin() as third:
        return {await _pid_of(conn) for conn in (one, other, third)}


async def test_whatever_is_raised_when_the_time_is_over_is_unavailable_and_a_fault_before_stays_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy's first look at a server raises errors of its own when it is cut short."""
    database = Database(database_url, pool_size=1)
    for opening in (database.begin, database.one_statement):
        with pytest.raises(NotImplementedError):
            await _raise_instead_of_ending(opening, after_seconds=0)
    monkeypatch.setattr("app.store.engine.TRANSACTION_SECONDS", 0.2)
    for opening in (database.begin, database.one_statement):
        with pytest.raises(Unavailable):
            await _raise_instead_of_ending(opening, after_seconds=30)
    await database.close()


async def _raise_instead_of_ending(
    opening: Callable[[], AbstractAsyncContextManager[Connection]], *, after_seconds: float
) -> None:
    async with opening():
        try:
            await asyncio.sleep(after_seconds)
        finally:
            raise NotImplementedError
