"""Connections of the pool, whatever the service's environment says."""

import pytest

from app.store.engine import Database, fetch, sql


async def test_times_are_utc_whatever_the_environment_tells_libpq(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    database = Database(database_url, pool_size=1)
    async with database.begin() as conn:
        rows = await fetch(conn, sql("SELECT CAST('2027-01-31 12:00:00+00' AS timestamptz) AS at"), {})
    await database.close()
    assert rows[0].at.isoformat() == "2027-01-31T12:00:00+00:00"
