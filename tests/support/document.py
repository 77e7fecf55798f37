"""The OpenAPI document as a judge of answers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator, FormatChecker

from app.main import describe_app
from tests.support.api import PROBLEM_TYPE, UNKNOWN_ID

# Every route may answer these without saying so: the path or the method is not one of the document.
UNDOCUMENTED_CODES = {"not_found", "method_not_allowed"}
_BIG_BYTES = 60_000


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    described: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.described["operationId"])

    @property
    def address(self) -> str:
        """A path that can be called; its job does not exist."""
        return self.path.replace("{job_id}", UNKNOWN_ID).replace("{code}", "lease_lost")

    @property
    def example(self) -> Any:
        """The documented example of the body, None where there is no body."""
        return (
            self.described["requestBody"]["content"]["application/json"]["example"] if self.has_body else None
        )

    @property
    def has_body(self) -> bool:
        return "requestBody" in self.described

    @property
    def takes_idempotency_key(self) -> bool:
        return any(each["name"] == "Idempotency-Key" for each in self.described.get("parameters", []))

    @property
    def query(self) -> dict[str, str]:
        """The smallest query that is accepted."""
        return {"worker_id": "w"} if self.name == "list_leases" else {}

    def codes(self, status: int) -> list[str]:
        """The problem codes that are documented for a status."""
        response = self.described["responses"].get(str(status))
        if response is None:
            return []
        found: list[str] = response["content"][PROBLEM_TYPE]["schema"]["allOf"][1]["properties"]["code"][
            "enum"
        ]
        return found


@cache
def document() -> dict[str, Any]:
    made: dict[str, Any] = describe_app().openapi()
    return made


@cache
def operations() -> tuple[Operation, ...]:
    return tuple(_operations())


def _operations() -> Iterator[Operation]:
    for path, methods in document()["paths"].items():
        for method, described in methods.items():
            yield Operation(method.upper(), path, described)


async def check_answer(response: httpx.Response) -> None:
    """Fail unless an answer is what the document says of its route; for httpx's response hook."""
    operation = _operation_of(response.request)
    if operation is None:
        return
    await response.aread()
    if len(response.content) > _BIG_BYTES:
        return
    told = f"{operation.method} {operation.path} answered {response.status_code}"
    media_type = response.headers.get("content-type")
    if media_type == PROBLEM_TYPE and response.json()["code"] in UNDOCUMENTED_CODES:
        return
    assert str(response.status_code) in operation.described["responses"], f"{told}, which is not documented"
    content = operation.described["responses"][str(response.status_code)].get("content")
    if content is None:
        assert response.content == b"", told
        return
    assert media_type in content, told
    errors = [*_validator(operation, response.status_code, media_type).iter_errors(response.json())]
    assert not errors, f"{told}: {errors[0].json_path} {errors[0].message}"


def _operation_of(request: httpx.Request) -> Operation | None:
    path = request.url.raw_path.decode().partition("?")[0]
    for operation in sorted(operations(), key=lambda each: "{" in each.path):
        pattern = re.sub(r"\{\w+\}", "[^/]+", operation.path)
        if request.method == operation.method and re.fullmatch(pattern, path):
            return operation
    return None


_VALIDATORS: dict[tuple[str, int, str], Draft202012Validator] = {}


def _validator(operation: Operation, status: int, media_type: str) -> Draft202012Validator:
    key = (operation.name, status, media_type)
    if key not in _VALIDATORS:
        schema = operation.described["responses"][str(status)]["content"][media_type]["schema"]
        whole = {"components": document()["components"], **schema}
        _VALIDATORS[key] = Draft202012Validator(whole, format_checker=FormatChecker())
    return _VALIDATORS[key]
