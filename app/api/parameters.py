"""Query strings, path ids and headers, strict: what is not known is refused by name."""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request

from app.api.schemas import Instant, Name
from app.domain.errors import InvalidRequest, JobNotFound
from app.domain.json_tree import escape

_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WHOLE = re.compile(r"[0-9]{1,9}")
# As JSON writes a number; enough digits for every double, and no more to read than that.
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")
_PRINTABLE = re.compile(r"[ -~]{1,255}")
_QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TRACE_HEADER = re.compile(r"[ -~]{1,512}")


def job_id_of(request: Request) -> str:
    """Return the path's job id. Raises JobNotFound for any spelling but the canonical one."""
    job_id: str = request.path_params["job_id"]
    if not is_job_id(job_id):
        raise JobNotFound(job_id[:64])
    return job_id


def is_job_id(text: str) -> bool:
    """Tell whether a text is a UUID as this service writes it."""
    return _JOB_ID.fullmatch(text) is not None


def read_query(request: Request, *, allowed: Collection[str]) -> Mapping[str, str]:
    """Return the query's parameters; each may stand once. Raises InvalidRequest."""
    raw: bytes = request.scope["query_string"]
    if not raw:
        return {}
    parameters: dict[str, str] = {}
    for part in raw.replace(b"+", b" ").split(b"&"):
        if not part:
            continue
        name_bytes, _, value_bytes = part.partition(b"=")
        name, value = _unquoted(name_bytes), _unquoted(value_bytes)
        if name not in allowed:
            raise refused(name[:128], "there is no such parameter here")
        if name in parameters:
            raise refused(name, "stands twice")
        parameters[name] = value
    return parameters


def _unquoted(quoted: bytes) -> str:
    try:
        return unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the query string is not UTF-8", pointer="") from error


def refused(name: str, message: str) -> InvalidRequest:
    """Return the refusal of one parameter or header, by its name."""
    return InvalidRequest(message, pointer=f"/{escape(name)}")


def whole_number(query: Mapping[str, str], name: str, *, default: int, low: int, high: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
        raise refused(name, f"must be a whole number from {low} to {high}")
    return int(text)


def seconds(query: Mapping[str, str], name: str, *, high: float) -> float:
    text = query.get(name, "0")
    if _DECIMAL.fullmatch(text) is None or float(text) > high:
        raise refused(name, f"must be a number of seconds from 0 to {high:g}")
    return float(text)


_NAME = msgspec.json.Decoder(Name)
_INSTANT = msgspec.json.Decoder(Instant)


def name_of(query: Mapping[str, str], name: str) -> str | None:
    """Return a queue, kind or worker_id; None when it is not given."""
    text = query.get(name)
    if text is None:
        return None
    try:
        return _NAME.decode(msgspec.json.encode(text))
    except msgspec.ValidationError as error:
        raise refused(name, "must be a name of 1 to 128 characters of A-Z a-z 0-9 _ . : -") from error


def instant_of(query: Mapping[str, str], name: str) -> datetime | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        # In a query string a plus sign means a blank; an offset is written with one all the same.
        return in_calendar(_INSTANT.decode(msgspec.json.encode(text.replace(" ", "+"))), f"/{name}")
    except msgspec.ValidationError as error:
        raise refused(name, "must be an RFC 3339 time with an offset") from error


def in_calendar(at: datetime, pointer: str) -> datetime:
    """Return the instant in UTC. Raises InvalidRequest outside the years 1970 to 9999, after conversion."""
    try:
        utc = at.astimezone(UTC)
    except OverflowError:
        utc = None
    if utc is None or utc.year < 1970:
        raise InvalidRequest("the year must be from 1970 to 9999 in UTC", pointer=pointer)
    return utc


def header_values(request: Request, name: bytes) -> list[str]:
    """Return the values of a header, by its name in lower case; often there is none."""
    return [str(value, "latin-1") for given, value in request.scope["headers"] if given == name]


def idempotency_key_of(request: Request) -> str | None:
    """Return the key of the Idempotency-Key header, None without one.

    A structured-field string (RFC 8941) and its bare text are the same key. Raises InvalidRequest.
    """
    values = header_values(request, b"idempotency-key")
    if not values:
        return None
    text = values[0].strip(" \t")
    if len(values) > 1:
        raise refused("Idempotency-Key", "stands twice")
    if text.startswith('"'):
        quoted = _QUOTED_KEY.fullmatch(text)
        text = "" if quoted is None else re.sub(r"\\(.)", r"\1", quoted.group(1))
    if _PRINTABLE.fullmatch(text) is None or text.isspace():
        raise refused("Idempotency-Key", "must be 1 to 255 printable ASCII characters, not all blank")
    return text


def refuse_idempotency_key(request: Request) -> None:
    """Refuse the header where it has no meaning, rather than let a caller trust in it."""
    if header_values(request, b"idempotency-key"):
        raise refused("Idempotency-Key", "has no meaning on this route")


def trace_headers_of(request: Request) -> tuple[str | None, str | None]:
    """Return traceparent and tracestate as they came; one that is not printable is none (W3C: ignore)."""
    return _trace_header(request, b"traceparent"), _trace_header(request, b"tracestate")


def _trace_header(request: Request, name: bytes) -> str | None:
    values = header_values(request, name)
    text = ",".join(values)
    return text if values and _TRACE_HEADER.fullmatch(text) else None
