"""What an answer leads to: OpenAPI links, declared beside the endpoints.

A reader sees where the id and the token of an answer go next, a generated client can offer it, and the
fuzzer of the tests walks along them. ``check`` refuses a link to what is not in the document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

JOB_OPERATIONS = ("get_job", "list_attempts", "cancel_job")
HOLDER_OPERATIONS = ("heartbeat_job", "complete_job", "fail_job", "release_job", "verify_job")
_MANY_OPERATIONS = ("heartbeat_leases", "complete_leases", "release_leases")


@dataclass(frozen=True, slots=True)
class Link:
    """Another operation, and what of the answer goes into its parameters and into its body.

    Values are runtime expressions of OpenAPI (``$response.body#/id``). Members of the body that are not
    named are the caller's own. ``description`` says what expressions cannot.
    """

    operation_id: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)
    description: str | None = None


def to_job(*operation_ids: str, at: str = "/id") -> tuple[Link, ...]:
    """Return links to what can be done with the job whose id stands at a JSON pointer of the answer."""
    return tuple(Link(name, {"job_id": _answer(at)}) for name in operation_ids)


def to_holder(*, id_at: str, version_at: str) -> tuple[Link, ...]:
    """Return links to all that the holder of the lease at two JSON pointers of the answer can say."""
    job_id, token = _answer(id_at), {"lease_version": _answer(version_at)}
    held = {"job_id": job_id, **token}
    return (
        *(Link(name, {"job_id": job_id}, token) for name in HOLDER_OPERATIONS),
        *(Link(name, members={"items": [held]}) for name in _MANY_OPERATIONS),
        Link("submit_job", members={"parent": held}),
    )


def to_lease(*, queue_at: str) -> Link:
    """Return the link to a lease call on the queue that stands at a JSON pointer of the answer."""
    return Link("lease_jobs", members={"queues": [_answer(queue_at)]})


def to_next_page(operation_id: str, **parameters: str) -> Link:
    """Return the link to the next page of a list."""
    return Link(
        operation_id,
        {**parameters, "cursor": _answer("/next_cursor")},
        description="The next page, with the same filters; next_cursor is null on the last one.",
    )


def _answer(pointer: str) -> str:
    return f"$response.body#{pointer}"


def described(links: Sequence[Link]) -> dict[str, Any]:
    """Return links as the document writes them, by the operation they lead to."""
    return {link.operation_id: _described(link) for link in links}


def _described(link: Link) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": link.operation_id}
    if link.description is not None:
        found["description"] = link.description
    if link.parameters:
        found["parameters"] = dict(link.parameters)
    if link.members:
        found["requestBody"] = dict(link.members)
    return found


def check(document: Mapping[str, Any]) -> None:
    """Raise ValueError when a link names an operation, a parameter or a member that does not exist."""
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    by_id = {operation["operationId"]: operation for operation in operations}
    for operation in operations:
        for response in operation["responses"].values():
            for link in response.get("links", {}).values():
                _check_link(link, by_id, document["components"]["schemas"])


def _check_link(link: Mapping[str, Any], by_id: Mapping[str, Any], schemas: Mapping[str, Any]) -> None:
    name = link["operationId"]
    if name not in by_id:
        raise ValueError(f"a link leads to {name}, which is no operation")
    target = by_id[name]
    known = {parameter["name"] for parameter in target.get("parameters", [])}
    unknown = link.get("parameters", {}).keys() - known
    if "requestBody" in link:
        reference = target["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        unknown |= link["requestBody"].keys() - schemas[reference.rpartition("/")[2]]["properties"].keys()
    if unknown:
        raise ValueError(f"a link to {name} gives {', '.join(sorted(unknown))}, which it does not take")
