"""The fence inside the caller's own transaction, for applications on the service's PostgreSQL.

Connections are told apart by what they can do, so that no driver has to be installed: a DB-API connection or
cursor (psycopg, psycopg2), an asynchronous one of psycopg, or one of asyncpg.
"""

import json
from typing import Any

from fencepost import wire
from fencepost.errors import LeaseLost

SQLSTATE_LEASE_LOST = "FP001"

HOLD_LEASE = "SELECT fencepost.hold_lease(CAST(%s AS uuid), CAST(%s AS bigint))"
COMPLETE = "SELECT fencepost.complete(CAST(%s AS uuid), CAST(%s AS bigint), CAST(%s AS json))"


def hold_lease(connection: Any, job_id: str, lease_version: int) -> None:
    """Lock the lease until the transaction ends. Raises LeaseLost: roll the transaction back then."""
    _execute(connection, HOLD_LEASE, job_id, lease_version)


def complete(connection: Any, job_id: str, lease_version: int, result: object) -> None:
    """Complete the job in the transaction. Raises LeaseLost: roll the transaction back then."""
    _execute(connection, COMPLETE, job_id, lease_version, wire.text_of(result))


async def hold_lease_async(connection: Any, job_id: str, lease_version: int) -> None:
    """``hold_lease`` on an asynchronous connection."""
    await _execute_async(connection, HOLD_LEASE, job_id, lease_version)


async def complete_async(connection: Any, job_id: str, lease_version: int, result: object) -> None:
    """``complete`` on an asynchronous connection."""
    await _execute_async(connection, COMPLETE, job_id, lease_version, wire.text_of(result))


def _execute(connection: Any, statement: str, job_id: str, lease_version: int, *more: str) -> None:
    # psycopg's connections execute by themselves, others only through a cursor.
    executes = connection if hasattr(connection, "execute") else connection.cursor()
    try:
        executes.execute(statement, (job_id, lease_version, *more))
    except Exception as error:
        raise _read(error, lease_version) from error


async def _execute_async(
    connection: Any, statement: str, job_id: str, lease_version: int, *more: str
) -> None:
    try:
        # Only asyncpg has fetchval; it numbers the parameters.
        if hasattr(connection, "fetchval"):
            await connection.fetchval(_numbered(statement), job_id, lease_version, *more)
        else:
            await connection.execute(statement, (job_id, lease_version, *more))
    except Exception as error:
        raise _read(error, lease_version) from error


def _numbered(statement: str) -> str:
    head, *rest = statement.split("%s")
    return head + "".join(f"${number}{text}" for number, text in enumerate(rest, start=1))


def _read(error: Exception, lease_version: int) -> Exception:
    """Return LeaseLost for the service's SQLSTATE, and any other error as it is."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state != SQLSTATE_LEASE_LOST:
        return error
    # The members of the HTTP refusal, as JSON.
    detail = getattr(getattr(error, "diag", None), "message_detail", None) or getattr(error, "detail", None)
    try:
        members = json.loads(detail or "{}")
    except ValueError:
        members = {}
    return LeaseLost(
        409,
        {"code": "lease_lost", "detail": str(error), "presented_version": lease_version, **members},
    )
