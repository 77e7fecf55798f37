"""Says whether the service would take a request, by the OpenAPI document that it publishes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import extend

DOCUMENT = Path(__file__).parents[2] / "openapi" / "openapi.json"

_JOB = r"/v1/jobs/(?P<job_id>[^/?]+)"
# The calls that a client makes: method, address, the name the suite gives it, and the schema of the body.
ROUTES = [
    ("POST", r"/v1/leases", "lease", "LeaseJobsRequest"),
    ("GET", r"/v1/leases", "leases", None),
    ("POST", r"/v1/leases/(?P<verb>heartbeat|complete|fail|release)", None, "{verb}ManyRequest"),
    ("POST", _JOB + r"/(?P<verb>heartbeat|complete|fail|release)", None, "{verb}Request"),
    ("POST", _JOB + r"/verify", "verify", "TokenRequest"),
    ("POST", _JOB + r"/cancel", "cancel", "CancelRequest"),
    ("POST", _JOB + r"/redrive", "redrive", "RedriveRequest"),
    ("POST", r"/v1/jobs", "submit", "JobRequest"),
    ("POST", r"/v1/jobs/batch", "submit_many", "BatchRequest"),
    ("GET", _JOB, "job", None),
]


class Refused(Exception):
    """A request that the service would not take, with the status it would answer."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class Contract:
    """The requests of the published document."""

    def __init__(self) -> None:
        document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
        # 5.0 and true are no whole numbers to the service; JSON Schema itself is milder.
        types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
        strict: Any = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
        components = {"components": document["components"]}
        self._validators = {
            name: strict({"$ref": f"#/components/schemas/{name}", **components})
            for name in document["components"]["schemas"]
        }

    def find(self, method: str, path: str) -> tuple[str, str | None, str | None]:
        """Return the verb of a route, the job id in its path, and the schema of its body.

        Raises Refused (404) for a route that the suite does not know.
        """
        for its_method, pattern, verb, schema in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and method == its_method:
                parts = found.groupdict()
                name = verb or parts["verb"]
                return name, parts.get("job_id"), schema and schema.format(verb=name.capitalize())
        raise Refused(404, "not_found", f"{method} {path} is no route that a client needs")

    def parse(self, raw: bytes, headers: Mapping[str, str], schema: str | None) -> Any:
        """Return the body of a request; raise Refused for one that the service would refuse."""
        if schema is None or not raw:
            if raw:
                raise Refused(422, "invalid_request", "a GET has no body")
            return {}
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "unsupported_media_type", "Content-Type is not application/json")
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "unsupported_media_type", "Content-Encoding is not identity")
        try:
            body = json.loads(raw, object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
        except ValueError as error:
            raise Refused(400, "malformed_json", f"the body is no JSON: {error}") from error
        if found := next(self._validators[schema].iter_errors(body), None):
            raise Refused(422, "invalid_request", f"{found.json_path}: {found.message}")
        return body

    def check_headers(self, verb: str, headers: Mapping[str, str]) -> None:
        key = headers.get("idempotency-key")
        if key is not None and verb != "submit":
            raise Refused(422, "invalid_request", f"Idempotency-Key on {verb}")
        if key is not None and not re.fullmatch(r"[ -~]{1,255}", key):
            raise Refused(422, "invalid_request", f"Idempotency-Key {key!r}")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member name stands twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
