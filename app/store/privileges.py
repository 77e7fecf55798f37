"""What a role of an application may do in the schema: call three functions, and nothing else."""

from typing import Any

import psycopg
from psycopg import sql

from app.domain.errors import Misconfigured, Unavailable
from app.store.connections import connection_parameters

FUNCTIONS = ("enqueue", "hold_lease", "complete")

# docs/sql.md has the same two statements for who would rather grant by hand.
GRANT = (
    "GRANT USAGE ON SCHEMA fencepost TO {role}",
    f"GRANT EXECUTE ON FUNCTION {', '.join(f'fencepost.{name}' for name in FUNCTIONS)} TO {{role}}",
)

# Who may use but not grant is told by a warning only.
_IS_GRANTED = """
SELECT has_schema_privilege(%(role)s, 'fencepost', 'USAGE') AND (
    SELECT count(*) FILTER (WHERE has_function_privilege(%(role)s, p.oid, 'EXECUTE')) = %(count)s
    FROM pg_proc p
    WHERE p.pronamespace = CAST('fencepost' AS regnamespace) AND p.proname = ANY (%(functions)s)
)
"""

# In GRANT this is everybody, quoted or not.
_EVERYBODY = "public"

_NO_OWNER = "the role of the database URL may not grant; connect as the owner of the schema fencepost"


def grant(url: str, role: str) -> None:
    """Let a role call the functions of docs/sql.md; granting twice changes nothing.

    Connects as the owner of the schema. Raises Unavailable, and Misconfigured when there is no such role or
    no such schema yet, or when the role of the URL may not grant.
    """
    if role == _EVERYBODY:
        raise Misconfigured("public is no role but all of them; name one, or grant to PUBLIC by hand")
    parameters = connection_parameters(url) | {"application_name": "fencepost", "prepare_threshold": None}
    try:
        with psycopg.connect(**parameters) as connection:
            for statement in GRANT:
                connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))
            _refuse_if_nothing_was_granted(connection, role)
    except psycopg.errors.UndefinedObject as error:
        raise Misconfigured(f"the database has no role {role!r}") from error
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        raise Misconfigured("the schema is not there, or an older one; run fencepost migrate") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Misconfigured(_NO_OWNER) from error
    except psycopg.Error as error:
        first_line = str(error).partition("\n")[0]
        raise Unavailable(f"the role cannot be granted anything: {first_line}") from error


def _refuse_if_nothing_was_granted(connection: psycopg.Connection[Any], role: str) -> None:
    names = {"role": role, "functions": list(FUNCTIONS), "count": len(FUNCTIONS)}
    if connection.execute(_IS_GRANTED, names).fetchone() != (True,):
        raise Misconfigured(_NO_OWNER)
