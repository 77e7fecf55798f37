"""The links of the document: they exist, lead somewhere, and a real answer fills them."""

import copy
from typing import Any

import httpx
import pytest

from app.api import links
from tests.support.api import run_job
from tests.support.document import document, operations

LINKS = [
    pytest.param(operation.name, status, name, link, id=f"{operation.name} {status} {name}")
    for operation in operations()
    for status, response in operation.described["responses"].items()
    for name, link in response.get("links", {}).items()
]
HOLDER_CALLS = {"heartbeat_job", "complete_job", "fail_job", "release_job", "verify_job"}


def linked(operation_id: str, status: str) -> dict[str, Any]:
    described = next(each.described for each in operations() if each.name == operation_id)
    found: dict[str, Any] = described["responses"][status].get("links", {})
    return found


def expressions(value: Any) -> list[str]:
    """Return the runtime expressions inside the parameters or the body of a link."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [found for each in inner for found in expressions(each)]


def at(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Return the schema of what stands at a JSON pointer of an answer."""
    for step in pointer.split("/")[1:]:
        if "$ref" in schema:
            schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        schema = schema["items"] if step.isdecimal() else schema["properties"][step]
    return schema


@pytest.mark.parametrize(("source", "status", "name", "link"), LINKS)
def test_what_a_link_takes_from_the_answer_stands_in_its_schema(
    source: str, status: str, name: str, link: dict[str, Any]
) -> None:
    described = next(each.described for each in operations() if each.name == source)
    schema = described["responses"][status]["content"]["application/json"]["schema"]
    taken = expressions([link.get("parameters", {}), link.get("requestBody", {})])
    assert name == link["operationId"]
    assert taken
    for expression in taken:
        place, _, pointer = expression.partition("#")
        if place == "$response.body":
            assert at(schema, pointer)
        else:
            assert place in ("$request.path.job_id", "$request.body")


def test_job_leads_to_what_can_be_done_with_it() -> None:
    for status in ("200", "201"):
        assert linked("submit_job", status).keys() >= {
            "get_job",
            "list_attempts",
            "cancel_job",
            "redrive_job",
            "edit_job",
            "lease_jobs",
        }


def test_lease_leads_to_every_call_of_its_holder() -> None:
    assert linked("lease_jobs", "200").keys() >= HOLDER_CALLS
    assert linked("list_leases", "200").keys() >= HOLDER_CALLS


def test_page_leads_to_the_next_one() -> None:
    for operation_id in ("list_jobs", "list_attempts"):
        assert linked(operation_id, "200")[operation_id]["parameters"]["cursor"] == (
            "$response.body#/next_cursor"
        )


async def test_link_that_is_filled_from_a_lease_completes_the_job(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    link = linked("lease_jobs", "200")["complete_job"]
    assert link["parameters"] == {"job_id": "$response.body#/jobs/0/id"}
    assert link["requestBody"] == {"lease_version": "$response.body#/jobs/0/lease_version"}
    path = f"/v1/jobs/{leased['id']}/complete"
    answer = await client.post(path, json={"lease_version": leased["lease_version"]})
    assert answer.json()["state"] == "succeeded"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"operationId": "finish_job"}, "finish_job, which is no operation"),
        ({"parameters": {"id": "$response.body#/id"}}, "gives id, which it does not take"),
        ({"requestBody": {"version": 1}}, "gives version, which it does not take"),
    ],
)
def test_link_to_what_does_not_exist_is_refused_when_the_document_is_made(
    changes: dict[str, Any], told: str
) -> None:
    changed = copy.deepcopy(document())
    lease = changed["paths"]["/v1/leases"]["post"]
    lease["responses"]["200"]["links"]["complete_job"] |= changes
    with pytest.raises(ValueError, match=told):
        links.check(changed)
