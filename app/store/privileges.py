"""What a role of an application may do in the schema: call three functions, and nothing else."""

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


def grant(url: str, role: str) -> None:
    """Let a role call the functions of docs/sql.md; granting twice changes nothing.

    Connects as the owner of the schema. Raises Unavailable, and Misconfigured when there is no such role or
    no such schema yet.
    """
    parameters = connection_parameters(url) | {"application_name": "fencepost", "prepare_threshold": None}
    try:
        with psycopg.connect(**parameters) as connection:
            for statement in GRANT:
                connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))
    except psycopg.errors.UndefinedObject as error:
        raise Misconfigured(f"the database has no role {role!r}") from error
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        raise Misconfigured("the schema is not there, or an older one; run fencepost migrate") from error
    except psycopg.Error as error:
        first_line = str(error).partition("\n")[0]
        raise Unavailable(f"the role cannot be granted anything: {first_line}") from error
