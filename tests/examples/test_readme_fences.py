"""The fences that the README shows are those of examples/fences, which have tests of their own."""

import ast
import inspect
import re

from examples.fences import object_store, remote_api, sql
from tests.docs.documents import README, code, read, section

FENCES = section(read(README), "## Fence what the handler does")
JOB = "019a3c5e-7b00-7d21-9c44-5e2b8a1f0c3d"


def words(text: str) -> str:
    return " ".join(text.split())


def statements() -> list[str]:
    """Return the SQL statements of the README, without comments and white space that counts for nothing."""
    uncommented = re.sub(r"--.*", "", code(FENCES, "sql"))
    return [words(statement) for statement in uncommented.split(";") if statement.strip()]


def bare(text: str) -> str:
    """Return a function as Python sees it, without its docstring and the notes on types."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    function.body = function.body[1:]
    for node in ast.walk(function):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                notes = [each for each in value if isinstance(each, ast.AnnAssign) and each.value is None]
                setattr(node, name, [each for each in value if each not in notes])
    return ast.unparse(function)


def test_sql_of_the_readme_is_that_of_the_example() -> None:
    assert statements() == [
        words(sql.WRITE_REPORT),
        "BEGIN",
        words(sql.TAKE_FENCE),
        "UPDATE totals SET amount = :amount WHERE month = :month",
        "COMMIT",
    ]


def test_effect_that_may_happen_once_has_the_clause_that_the_readme_names() -> None:
    clause = "ON CONFLICT (job_id) DO NOTHING"
    assert f"`{clause}`" in FENCES
    replaced = re.sub(r"ON CONFLICT .* (?=RETURNING)", f"{clause} ", words(sql.TAKE_FENCE))
    assert replaced == words(sql.TAKE_ONCE)


def test_publish_of_the_readme_is_that_of_the_example() -> None:
    shown = code(FENCES, "python")
    assert bare(shown) == bare(inspect.getsource(object_store.publish))
    (function,) = ast.parse(shown).body
    assert isinstance(function, ast.FunctionDef)
    docstring = words(ast.get_docstring(function) or "")
    assert docstring
    assert words(object_store.publish.__doc__ or "").startswith(docstring)


def test_idempotency_key_of_the_readme_is_that_of_the_example() -> None:
    (shown,) = re.findall(r'-H "Idempotency-Key: ([^"]+)"', code(FENCES, "sh"))
    assert shown.replace("${job}", JOB) == remote_api.idempotency_key(JOB, "charge")
