"""The OpenAPI document: FastAPI's skeleton, msgspec's schemas, one problem shape."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api import answers, links, schemas
from app.api.callers import ANY_KEY
from app.api.problems import MEDIA_TYPE, PROBLEMS
from app.domain.caller import Scope, Scopes

_REF = "#/components/schemas/{name}"

# What every route can answer besides its own codes.
_ALWAYS = ("invalid_request", "internal_error")
_WITH_BODY = ("malformed_json", "request_timeout", "too_large", "unsupported_media_type")
# Where any key will do today, a scope of a later version may be one that does not.
_WITH_KEY = ("unauthorized", "forbidden")

_KEY_SCHEME = "ApiKey"
_SECURITY_SCHEMES = {
    _KEY_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key. A name beside it is a scope that the key must have; of several"
        " alternatives one is enough. A service without configured keys checks nothing.",
    }
}

# What a route says of a query parameter beside its schema.
_PARAMETER_KEYS = ("required", "explode")
# The bare text, or a quoted string of RFC 8941.
_IDEMPOTENCY_KEY = {
    "type": "string",
    "anyOf": [
        {"pattern": r"^[!#-~]([ -~]{0,253}[!-~])?$"},
        {"pattern": r'^"([ !#-\[\]-~]|\\["\\]){1,255}"$', "not": {"pattern": '^" *"$'}},
    ],
    "description": "1 to 255 printable ASCII characters, not all blank: the bare text, or quoted (RFC 8941).",
}
# No limits: a W3C trace header that says something amiss is ignored, never refused.
_TRACE = {
    "type": "string",
    "description": "W3C trace context for the worker; ignored unless 1 to 512 printable ASCII characters.",
}

HEADERS = {
    "X-Request-Id": "The caller's, when it is well-formed, else a new one; the log has it too.",
    "Location": "The address of the new job.",
    "Idempotent-Replayed": "`true` when this call was accepted before; nothing was changed.",
    "Link": 'The next page, `rel="next"`; not on the last one.',
    "Retry-After": "Seconds after which to come back.",
    "WWW-Authenticate": "`Bearer`: how a key is shown.",
}
_HEADERS_BY_STATUS = {401: ("WWW-Authenticate",), 503: ("Retry-After",)}


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {
        name: {"description": HEADERS[name], "schema": {"type": "string"}}
        for name in ("X-Request-Id", *names)
    }


def responses(
    success: tuple[int, type | None],
    errors: Sequence[str],
    *,
    more: Mapping[int, str],
    headers: Sequence[str],
    body: bool,
    needs_key: bool,
    leads_to: Sequence[links.Link],
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route: its success, and for each status the codes it can carry."""
    status, view = success
    found: dict[int | str, dict[str, Any]] = {status: _success("Success", view, headers)}
    for other, description in more.items():
        found[other] = _success(description, view, headers)
    if leads_to:
        for success_response in found.values():
            success_response["links"] = links.described(leads_to)
    codes = dict.fromkeys(
        [*errors, *_ALWAYS, *(_WITH_BODY if body else ()), *(_WITH_KEY if needs_key else ())]
    )
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    for error_status, names in sorted(by_status.items()):
        found[error_status] = {
            "headers": _headers(_HEADERS_BY_STATUS.get(error_status, ())),
            "description": "; ".join(f"`{name}`: {PROBLEMS[name].title}" for name in names),
            "content": {
                MEDIA_TYPE: {
                    "schema": {
                        "allOf": [
                            {"$ref": _REF.format(name="ProblemView")},
                            {"properties": {"code": {"enum": names}}},
                        ]
                    }
                }
            },
        }
    return found


def _success(description: str, view: type | None, headers: Sequence[str]) -> dict[str, Any]:
    if view is None:
        return {"description": description, "headers": _headers(headers)}
    return {
        "description": description,
        "headers": _headers(headers),
        "content": {"application/json": {"schema": {"$ref": _REF.format(name=view.__name__)}}},
    }


def extra(
    *,
    path: str,
    scopes: Scopes | None,
    query: Mapping[str, Mapping[str, Any]],
    body_type: type | None,
    takes_idempotency_key: bool,
    takes_trace: bool,
    example: Any,
) -> dict[str, Any]:
    """Return what FastAPI cannot see, since handlers take the request as it is."""
    parameters: list[dict[str, Any]] = []
    if "{job_id}" in path:
        parameters.append(
            {"name": "job_id", "in": "path", "required": True, "schema": schema_of(schemas.JobId)}
        )
    if "{code}" in path:
        parameters.append(
            {"name": "code", "in": "path", "required": True, "schema": {"enum": list(PROBLEMS)}}
        )
    for name, described in query.items():
        schema = {key: value for key, value in described.items() if key not in _PARAMETER_KEYS}
        parameter = {"required": False} | {key: described[key] for key in _PARAMETER_KEYS if key in described}
        parameters.append({"name": name, "in": "query", **parameter, "schema": schema})
    if takes_idempotency_key:
        parameters.append(_header_parameter("Idempotency-Key", _IDEMPOTENCY_KEY))
    if takes_trace:
        parameters += (_header_parameter(name, _TRACE) for name in ("traceparent", "tracestate"))
    found: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if scopes is not None:
        found["security"] = _security(scopes)
    if body_type is not None:
        content: dict[str, Any] = {"schema": {"$ref": _REF.format(name=body_type.__name__)}}
        if example is not None:
            content["example"] = example
        found["requestBody"] = {
            # No body at all counts as {}, which is enough where no member is required.
            "required": _has_required_member(body_type),
            "content": {"application/json": content},
        }
    return found


def _security(scopes: Scopes) -> list[dict[str, list[str]]]:
    """Return the alternatives, one a scope; OpenAPI's one list of names would ask for all of them."""
    if scopes == ANY_KEY:
        return [{_KEY_SCHEME: []}]
    return [{_KEY_SCHEME: [scope.value]} for scope in Scope if scope in scopes]


def _header_parameter(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema}


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the schema of a type that is written in place: a parameter's, say."""
    found: dict[str, Any] = _portable(msgspec.json.schema(type_))
    return found


def _has_required_member(body_type: type) -> bool:
    return any(field.required for field in msgspec.structs.fields(body_type))


@cache
def _components() -> dict[str, Any]:
    types = [
        value
        for value in [*vars(schemas).values(), *vars(answers).values()]
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    ]
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    components.pop("Request", None)
    for schema in components.values():
        if {"run_at", "delay_seconds"} <= schema["properties"].keys():
            schema.update(schemas.RUN_AT_OR_DELAY)
    return {name: _portable(schema) for name, schema in sorted(components.items())}


def _portable(schema: Any) -> Any:
    """Write the end of a text in patterns as ECMA 262 does: there, `$` has no line-break exception."""
    if isinstance(schema, dict):
        return {
            key: value.replace(schemas.END, "$") if key == "pattern" else _portable(value)
            for key, value in schema.items()
        }
    return [_portable(item) for item in schema] if isinstance(schema, list) else schema


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=app.description,
            routes=app.routes,
        )
        made["components"] = {"schemas": _components(), "securitySchemes": _SECURITY_SCHEMES}
        links.check(made)
        app.openapi_schema = made
    return app.openapi_schema
