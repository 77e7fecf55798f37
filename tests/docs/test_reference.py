"""The documents name what there is: routes, members, codes, settings, options. And nothing else."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec
import pytest

from app import settings
from app.api import answers, schemas
from app.api.problems import PROBLEMS
from app.cli import main as cli
from app.connections import MAX_HEAD_BYTES, MAX_OPEN_REQUESTS
from app.deadlines import DEADLINES
from app.domain.caller import Scope, Scopes
from app.main import ROUTES, describe_app
from app.serving import KEEP_ALIVE_SECONDS
from app.work.environment import VARIABLES
from tests.docs.documents import PAGES, PROTOCOL, README, read, rows, section

PROTOCOL_TEXT = read(PROTOCOL)
README_TEXT = read(README)
DOCUMENT: dict[str, Any] = describe_app().openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
BODIES = {
    route: operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    for route, operation in OPERATIONS.items()
    if "requestBody" in operation
}
# Shapes that stand in the tables of another route; only what is added to them is listed again.
ELSEWHERE = {
    "FollowUpRequest": set(),
    "BatchJobRequest": {"idempotency_key"},
    "HeartbeatItem": {"job_id", "lease_version"},
    "CompleteItem": {"job_id", "lease_version"},
    "FailItem": {"job_id", "lease_version"},
    "ReleaseItem": {"job_id", "lease_version"},
}
# Limits in bytes and counts that a setting decides stand in no schema; the tests of the settings hold them.
NAME_LIMITS = {"minLength": 1, "maxLength": 128}


def heading_of(route: str) -> str:
    found = [
        line
        for line in PROTOCOL_TEXT.splitlines()
        if line.startswith("#") and route in re.findall(r"`([A-Z]+ [^`]+)`", line)
    ]
    assert len(found) == 1, f"{route} has {len(found)} headings"
    return found[0]


def table_of(route: str) -> dict[str, list[str]]:
    """Return the rows of a route's section by the name in the first cell, its star left out."""
    table: dict[str, list[str]] = {}
    for cells in rows(section(PROTOCOL_TEXT, heading_of(route))):
        for name in re.findall(r"`([^`]+)`", cells[0]):
            table.setdefault(name, cells)
    return table


def members(schema_name: str, prefix: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield (path, schema, whether it is required) of each member of a body, as the tables write them."""
    schema = DOCUMENT["components"]["schemas"][schema_name]
    for name, described in schema["properties"].items():
        path, inner = prefix + name, without_null(described)
        yield path, {**inner, "default": described.get("default")}, name in schema["required"]
        if "$ref" in inner:
            yield from members(inner["$ref"].rpartition("/")[2], f"{path}.")
        elif "$ref" in inner.get("items", {}):
            item_name = inner["items"]["$ref"].rpartition("/")[2]
            for item_path, item, is_required in members(item_name, f"{path}[]."):
                if item_path.rpartition(".")[2] in ELSEWHERE.get(item_name, {item_path.rpartition(".")[2]}):
                    yield item_path, item, is_required


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if choices else schema


def numbers(cell: str) -> set[float]:
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", cell.replace(",", ""))}


ALL_MEMBERS = [
    pytest.param(route, *member, id=f"{route} {member[0]}")
    for route, name in BODIES.items()
    for member in members(name)
]


@pytest.mark.parametrize("route", OPERATIONS)
def test_every_route_has_a_section(route: str) -> None:
    assert section(PROTOCOL_TEXT, heading_of(route)).strip()


def test_every_route_in_a_heading_exists() -> None:
    named = set(re.findall(r"^#.*", PROTOCOL_TEXT, re.MULTILINE))
    routes = {route for heading in named for route in re.findall(r"`([A-Z]+ /[^`]+)`", heading)}
    assert routes == set(OPERATIONS)


def test_no_request_schema_is_left_out() -> None:
    reached = set(BODIES.values())
    todo = list(reached)
    while todo:
        text = str(DOCUMENT["components"]["schemas"][todo.pop()])
        new = set(re.findall(r"#/components/schemas/(\w+)", text)) - reached
        reached |= new
        todo += new
    every = {
        name
        for name, value in vars(schemas).items()
        if isinstance(value, type) and issubclass(value, schemas.Request) and value is not schemas.Request
    }
    assert every == reached


@pytest.mark.parametrize(("route", "path", "schema", "is_required"), ALL_MEMBERS)
def test_every_member_stands_in_its_table(
    route: str, path: str, schema: dict[str, Any], is_required: bool
) -> None:
    name_cell, _, range_cell, left_out_cell = table_of(route)[path]
    assert name_cell.endswith("*") == is_required
    bounds = {float(schema[key]) for key in ("minimum", "maximum", "minItems", "maxItems") if key in schema}
    if "maxLength" in schema and schema["maxLength"] != NAME_LIMITS["maxLength"]:
        bounds.add(float(schema["maxLength"]))
    # "up to" needs no zero.
    assert bounds - {0.0} <= numbers(range_cell)
    for choice in schema.get("enum", []):
        assert f"`{choice}`" in range_cell
    default = schema["default"]
    if isinstance(default, bool):
        assert left_out_cell.startswith(str(default).lower())
    elif isinstance(default, (int, float)):
        assert float(default) in numbers(left_out_cell)
    elif isinstance(default, str):
        assert left_out_cell == f"`{default}`"
    assert (left_out_cell == "refused") == is_required


@pytest.mark.parametrize("route", BODIES)
def test_every_row_of_a_body_is_a_member(route: str) -> None:
    known = {path for path, _, _ in members(BODIES[route])}
    # Of the tables of a section, only that of the body has four columns.
    documented = {
        name
        for cells in rows(section(PROTOCOL_TEXT, heading_of(route)))
        if len(cells) == 4
        for name in re.findall(r"`([^`]+)`", cells[0])
    }
    assert documented <= known | {f"{path}[]" for path in known}
    assert documented


@pytest.mark.parametrize(
    ("route", "parameter"),
    [
        pytest.param(route, parameter, id=f"{route} {parameter['name']}")
        for route, operation in OPERATIONS.items()
        for parameter in operation.get("parameters", [])
        if parameter["in"] != "path"
    ],
)
def test_every_parameter_and_header_stands_in_its_table(route: str, parameter: dict[str, Any]) -> None:
    cells = table_of(route)[parameter["name"]]
    assert cells[0].endswith("*") == parameter["required"]
    schema = parameter["schema"]
    text = " ".join(cells)
    for key in ("minimum", "maximum", "default"):
        if key in schema:
            assert float(schema[key]) in numbers(text)


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            field.encode_name
            for value in vars(answers).values()
            if isinstance(value, type)
            and issubclass(value, msgspec.Struct)
            and value.__name__.endswith("View")
            for field in msgspec.structs.fields(value)
        }
    ),
)
def test_every_member_of_an_answer_is_named(name: str) -> None:
    assert re.search(rf"\b{name}\b", PROTOCOL_TEXT)


def test_every_code_stands_in_the_table_of_errors_with_its_status() -> None:
    documented = {
        cells[0].strip("`"): cells[1]
        for cells in rows(section(PROTOCOL_TEXT, "## Errors"))
        if cells[1].isdecimal()
    }
    assert documented == {code: str(problem.status) for code, problem in PROBLEMS.items()}


def scopes_of(cell: str) -> Scopes | None:
    if cell.startswith("none"):
        return None
    return frozenset(Scope) if cell == "any" else {Scope(name) for name in re.findall(r"`(\w+)`", cell)}


def test_scopes_of_every_call_stand_in_the_table_as_they_are_declared() -> None:
    documented = {
        route: scopes_of(cells[1])
        for cells in rows(section(PROTOCOL_TEXT, "## Callers"))
        for route in re.findall(r"`([A-Z]+ /[^`]+)`", cells[0])
    }
    declared = {
        f"{endpoint.method} {endpoint.path}": endpoint.scopes
        for routes in ROUTES
        for endpoint in routes.endpoints
    }
    pages = dict.fromkeys(("GET /openapi.json", "GET /docs"), frozenset(Scope))
    assert documented == declared | pages


def setting_rows() -> dict[str, list[str]]:
    table = rows(section(README_TEXT, "## Settings"))
    return {cells[0].strip("`"): cells for cells in table if cells[0].startswith("`")}


def test_every_setting_stands_in_the_readme_and_no_other() -> None:
    assert list(setting_rows()) == list(settings._VARIABLES)


@pytest.mark.parametrize("variable", settings._VARIABLES)
def test_setting_stands_with_its_default(variable: str) -> None:
    defaults = {
        field.name: getattr(settings.Settings(), field.name)
        for field in dataclasses.fields(settings.Settings)
    }
    default = defaults[settings._VARIABLES[variable][0]]
    cell = setting_rows()[variable][1]
    if default is None or default == ():
        assert cell
        assert not cell.startswith("`" + variable)
    elif isinstance(default, (int, float)):
        assert float(cell.strip("`")) == default
    else:
        assert cell == f"`{default}`"


def test_documents_name_no_unknown_setting() -> None:
    known = {*settings._VARIABLES, *settings._IGNORED, *settings._OF_CLIENTS, *VARIABLES}
    known |= {"FENCEPOST_DATABASE_PASSWORD"}
    for page in PAGES:
        assert set(re.findall(r"FENCEPOST_[A-Z_]+[A-Z]", read(page))) <= known, page


@pytest.mark.parametrize(
    ("setting", "limit"),
    [(name, value) for name, (value, _) in settings._VARIABLES.items() if value.startswith("max_")],
)
def test_limit_stands_in_the_protocol_with_its_default(setting: str, limit: str) -> None:
    found = [cells for cells in rows(section(PROTOCOL_TEXT, "## Limits")) if cells[2] == f"`{setting}`"]
    assert [numbers(cells[1]) for cells in found] == [{float(getattr(settings.Settings(), limit))}]


COMMANDS = {name: command for name, command in cli.commands.items() if not command.hidden}


def test_every_command_stands_in_the_readme_with_its_options_and_no_other() -> None:
    table = [cells for cells in rows(section(README_TEXT, "## Command line")) if cells[0].startswith("`")]
    documented = {cells[0]: set(re.findall(r"`(--?[a-z-]+)`", cells[2])) for cells in table}
    assert documented == {
        f"`fencepost {name}`": {
            option
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
        }
        for name, command in COMMANDS.items()
    }


def test_deadlines_stand_in_the_protocol() -> None:
    documented = [
        numbers(cells[1])
        for cells in rows(section(PROTOCOL_TEXT, "## Limits"))
        if "the connection is closed" in cells[2]
    ]
    late_body_seconds = DEADLINES.body_seconds + DEADLINES.grace_seconds
    assert documented == [
        {DEADLINES.head_seconds},
        {DEADLINES.body_seconds},
        {late_body_seconds},
        {DEADLINES.unread_seconds},
        {float(KEEP_ALIVE_SECONDS)},
    ]
    assert f"{MAX_HEAD_BYTES:,} bytes" in section(PROTOCOL_TEXT, "## HTTP")
    assert f"{MAX_OPEN_REQUESTS} of them may wait" in " ".join(section(PROTOCOL_TEXT, "## HTTP").split())
