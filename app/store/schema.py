"""Migrations, and whether the schema is the one this code was written for."""

import logging
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection as SyncConnection
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from app.domain.errors import Misconfigured, Unavailable
from app.store.connections import connection_parameters

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parents[2] / "migrations"

# Any number that no other program on the database is likely to take.
_MIGRATION_LOCK = 5_072_190_457


def head() -> str:
    """Return the schema version this code was written for."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise RuntimeError("there are no migrations")
    return revision


def migrate(url: str, *, revision: str = "head") -> None:
    """Bring the schema to ``revision``; safe when many replicas do it at once.

    One lock lets the replicas through one by one, and each finds what is left to do. It is held by the
    transaction that migrates, so it works through a transaction pooler too. Waiting for it is not bounded by
    lock_timeout, which only guards the migrations' own locks, so that a migration gives up rather than queue
    every request behind it. Raises Unavailable, and Misconfigured for a database that cannot hold every text.
    """
    parameters = connection_parameters(url) | {"application_name": "fencepost", "prepare_threshold": None}
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(**parameters))
    try:
        with engine.begin() as conn:
            conn.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            conn.execute(text("SET LOCAL lock_timeout = '5s'"))
            _refuse_encoding(conn.scalar(text("SHOW server_encoding")))
            conn.execute(text("CREATE SCHEMA IF NOT EXISTS fencepost"))
            _upgrade(conn, revision)
            _warn_of_lost_commits(conn)
        log.info("the schema is at version %s", head() if revision == "head" else revision)
    except OperationalError as error:
        first_line = str(error.orig).partition("\n")[0]
        raise Unavailable(f"the database cannot be migrated: {first_line}") from error
    finally:
        engine.dispose()


def _refuse_encoding(encoding: object) -> None:
    if encoding != "UTF8":
        raise Misconfigured(f"the database has the encoding {encoding}; it has to be UTF8")


def _warn_of_lost_commits(conn: SyncConnection) -> None:
    """Tell an operator whose server acknowledges commits before they are safe; it is theirs to decide."""
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if conn.scalar(text("SELECT current_setting(:name)"), {"name": name}) == "off":
            log.warning("the database has %s = off: a crash may lose jobs that were acknowledged", name)


def _upgrade(conn: SyncConnection, revision: str) -> None:
    config = _config()
    config.attributes["connection"] = conn
    command.upgrade(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
