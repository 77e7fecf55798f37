"""Migrations, and whether the schema is the one this code was written for."""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection as SyncConnection
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from app.domain.errors import Unavailable
from app.store.engine import CONNECT_TIMEOUT_SECONDS, parse_url

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


def migrate(url: str) -> None:
    """Bring the schema to ``head``; safe when many replicas do it at once.

    One session lock lets the replicas through one by one, and each finds what is left to do. Waiting for
    it is not bounded by lock_timeout, which only guards the migrations' own locks, so that a migration
    gives up rather than queue every request behind it. Raises Unavailable.
    """
    engine = create_engine(
        parse_url(url),
        connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "fencepost"},
    )
    try:
        with engine.connect() as conn:
            conn.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            conn.execute(text("SET lock_timeout = '5s'"))
            conn.execute(text("CREATE SCHEMA IF NOT EXISTS fencepost"))
            conn.commit()
            _upgrade(conn)
            conn.commit()
            log.info("the schema is at version %s", head())
    except OperationalError as error:
        first_line = str(error.orig).partition("\n")[0]
        raise Unavailable(f"the database cannot be migrated: {first_line}") from error
    finally:
        engine.dispose()


def _upgrade(conn: SyncConnection) -> None:
    config = _config()
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
