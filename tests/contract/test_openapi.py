"""The OpenAPI document: valid, in step with the code, and true."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from app.api import schemas
from app.api.problems import PROBLEMS
from app.cli import main
from tests.support.document import Operation, document, operations

FILE = Path(__file__).parents[2] / "openapi" / "openapi.json"
# What probes read, with or without a key.
OPEN = ("get_liveness", "get_readiness")

with_body = pytest.mark.parametrize(
    "operation", [each for each in operations() if each.has_body], ids=lambda each: each.name
)


def test_document_is_valid_openapi_3_1() -> None:
    assert document()["openapi"].startswith("3.1.")
    validate(document(), cls=OpenAPIV31SpecValidator)


def test_file_in_the_repository_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(main, ["openapi"])
    assert printed.exit_code == 0
    assert printed.stdout == FILE.read_text(encoding="utf-8"), (
        "run: fencepost openapi -o openapi/openapi.json"
    )


def test_document_names_every_route_of_the_contract() -> None:
    job_verbs = ("cancel", "redrive", "heartbeat", "complete", "fail", "release", "verify")
    expected = {
        "POST /v1/jobs",
        "GET /v1/jobs",
        "POST /v1/jobs/batch",
        "GET /v1/jobs/{job_id}",
        "PATCH /v1/jobs/{job_id}",
        "GET /v1/jobs/{job_id}/attempts",
        "POST /v1/leases",
        "GET /v1/leases",
        *(f"POST /v1/jobs/{{job_id}}/{verb}" for verb in job_verbs),
        *(f"POST /v1/leases/{verb}" for verb in ("heartbeat", "complete", "fail", "release")),
        "GET /livez",
        "GET /readyz",
        "GET /problems/{code}",
    }
    assert expected <= {f"{each.method} {each.path}" for each in operations()}


def test_every_code_is_documented_where_it_can_occur() -> None:
    conflicts = {
        "submit_job": {"lease_lost"},
        "submit_batch": {"lease_lost"},
        "cancel_job": {"already_finished"},
        "redrive_job": {"not_redrivable"},
        "edit_job": {"not_editable"},
    } | {f"{verb}_job": {"lease_lost"} for verb in ("heartbeat", "complete", "fail", "release", "verify")}
    for operation in operations():
        of = {
            status: set(operation.codes(status))
            for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503)
        }
        is_list = operation.name in ("list_jobs", "list_attempts")
        reads_database = operation.name not in ("get_liveness", "get_problem")
        assert of[400] == (
            {"malformed_json"} if operation.has_body else {"invalid_cursor"} if is_list else set()
        )
        assert of[401] == (set() if operation.name in OPEN else {"unauthorized"}), operation.name
        assert of[403] == (set() if operation.name in OPEN else {"forbidden"}), operation.name
        unknown = "job_not_found" if "{job_id}" in operation.path else "not_found"
        assert of[404] == ({unknown} if "{" in operation.path else set()), operation.name
        assert of[409] == conflicts.get(operation.name, set()), operation.name
        assert of[408] == ({"request_timeout"} if operation.has_body else set())
        assert of[413] == ({"too_large"} if operation.has_body else set())
        assert of[415] == ({"unsupported_media_type"} if operation.has_body else set())
        takes_keys = operation.name in ("submit_job", "submit_batch")
        assert of[422] == {"invalid_request"} | ({"idempotency_key_reused"} if takes_keys else set())
        assert of[500] == {"internal_error"}
        assert of[503] == ({"unavailable"} if reads_database else set()), operation.name


def test_every_code_is_documented_somewhere_and_explained() -> None:
    documented = {code for each in operations() for status in range(400, 600) for code in each.codes(status)}
    assert documented == PROBLEMS.keys() - {"method_not_allowed"}
    for code, problem in PROBLEMS.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)
        assert problem.title
        assert problem.meaning.endswith(".")


def test_key_is_asked_for_by_every_operation_but_what_probes_read() -> None:
    schemes = document()["components"]["securitySchemes"]
    assert {name: (scheme["type"], scheme["scheme"]) for name, scheme in schemes.items()} == {
        "ApiKey": ("http", "bearer")
    }
    for operation in operations():
        security = operation.described.get("security")
        if operation.name in OPEN:
            assert security is None
        else:
            assert security, operation.name
            assert all(alternative.keys() == {"ApiKey"} for alternative in security)
            assert "WWW-Authenticate" in operation.described["responses"]["401"]["headers"]


@with_body
def test_example_of_a_body_is_accepted_by_its_decoder_and_by_its_schema(operation: Operation) -> None:
    content = operation.described["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    msgspec.json.decode(json.dumps(operation.example), type=getattr(schemas, name))
    schema = {"components": document()["components"], **content["schema"]}
    Draft202012Validator(schema).validate(operation.example)


@with_body
def test_body_is_required_exactly_where_a_member_is(operation: Operation) -> None:
    body = operation.described["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    required: list[Any] = document()["components"]["schemas"][name].get("required", [])
    assert body["required"] == bool(required)


def test_every_schema_of_a_request_refuses_unknown_members_as_the_service_does() -> None:
    for name, schema in document()["components"]["schemas"].items():
        if name.endswith(("Request", "Item")):
            assert schema["additionalProperties"] is False, name


@pytest.mark.parametrize(
    "key",
    [
        *("k", "a b", "a" * 255, '"k"', '"a b"', '" k "', r'"a\"b\\"', '"' + "a" * 255 + '"', 'a"b"'),
        *("a" * 256, '""', '" "', '"', '"a', '"a"b', r'"a\b"', '"' + "a" * 256 + '"', "caf\u00e9", "a\tb"),
    ],
)
async def test_document_says_which_idempotency_keys_are_accepted(client: httpx.AsyncClient, key: str) -> None:
    (schema,) = (
        parameter["schema"]
        for operation in operations()
        if operation.name == "submit_job"
        for parameter in operation.described["parameters"]
        if parameter["name"] == "Idempotency-Key"
    )
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await client.post("/v1/jobs", json={"kind": "k"}, headers=headers)
    assert Draft202012Validator(schema).is_valid(key) == (answer.status_code == 201)


@pytest.mark.parametrize(
    "members",
    [
        *({}, {"run_at": "2030-01-01T00:00:00Z"}, {"delay_seconds": 1}, {"run_at": None, "delay_seconds": 1}),
        {"run_at": "2030-01-01T00:00:00Z", "delay_seconds": None},
        {"run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1},
        *({"run_at": "1970-01-01T00:00:00Z"}, {"run_at": "9999-12-31T23:59:59Z"}),
        *({"run_at": "1969-12-31T23:59:59Z"}, {"run_at": "0964-10-09T08:57:10+08:57"}),
    ],
    ids=str,
)
async def test_document_says_which_times_a_job_may_have(
    client: httpx.AsyncClient, members: dict[str, Any]
) -> None:
    body = {"kind": "k", **members}
    schema = {"components": document()["components"], "$ref": "#/components/schemas/JobRequest"}
    answer = await client.post("/v1/jobs", json=body)
    assert Draft202012Validator(schema).is_valid(body) == (answer.status_code == 201)


def test_operation_ids_are_unique() -> None:
    names = [each.name for each in operations()]
    assert len(names) == len(set(names))
