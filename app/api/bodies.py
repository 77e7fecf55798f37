"""A body's bytes, bounded, as strict JSON."""

from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from app.api.parameters import header_values
from app.api.time_limits import TimeLimit
from app.api.wording import invalid
from app.domain import json_tree
from app.domain.errors import FencepostError, InvalidRequest, MalformedJson, TooLarge
from app.domain.failure import repaired_report

T = TypeVar("T", bound=msgspec.Struct)

# What is read past the limit, so that a client that sends first and reads afterwards sees its 413.
DRAINED_BYTES = 8 * 1024 * 1024


class UnsupportedMediaType(FencepostError):
    code = "unsupported_media_type"


class RequestTimeout(FencepostError):
    code = "request_timeout"


async def read_body(request: Request, *, max_bytes: int, seconds: float) -> str:
    """Return the body's text, ``{}`` for none at all.

    Raises TooLarge, RequestTimeout, UnsupportedMediaType, MalformedJson (not UTF-8).
    """
    try:
        with TimeLimit(seconds):
            body = await _receive(request, max_bytes=max_bytes)
    except TimeoutError as error:
        raise RequestTimeout(f"The body was not here after {seconds:g} seconds.") from error
    if not body:
        return "{}"
    _check_media_type(request)
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MalformedJson("The body is not UTF-8.") from error


async def _receive(request: Request, *, max_bytes: int) -> bytes:
    for announced in header_values(request, b"content-length"):
        if announced.isdecimal() and int(announced) > max_bytes + DRAINED_BYTES:
            raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    is_whole = False
    while not is_whole and size <= max_bytes + DRAINED_BYTES:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        is_whole = not message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size > max_bytes:
        raise _too_large(max_bytes)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The request body is over the limit of {max_bytes} bytes.")


def _check_media_type(request: Request) -> None:
    # Of two values one server reads the first and another the last.
    given = header_values(request, b"content-type")
    if len(given) != 1 or given[0].partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "Send the body with one Content-Type: application/json"
            " (curl: -H 'Content-Type: application/json')."
        )
    encodings = header_values(request, b"content-encoding")
    if any(encoding.strip().lower() != "identity" for encoding in encodings):
        raise UnsupportedMediaType(
            "Send Content-Type: application/json without a Content-Encoding; encoded bodies are not read."
        )


def decode(text: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the struct that ``text`` says. Raises InvalidRequest (and NotStrictJson), MalformedJson."""
    value = _decode_fast(text, decoder)
    if json_tree.needs_a_look(text):
        json_tree.check(json_tree.parse(text))
    return value


def decode_list(text: str, decoder: msgspec.json.Decoder[T], *, member: str) -> T:
    """Do as ``decode`` for a body that has one list of items; member names may recur from item to item."""
    value = _decode_fast(text, decoder)
    if _list_needs_a_look(text, member):
        json_tree.check(json_tree.parse(text))
    return value


def decode_report(text: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Do as ``decode`` for a failure report: what cannot be stored is replaced, so that it lands.

    A report with nothing to replace keeps its tokens.
    """
    try:
        return decode(text, decoder)
    except (InvalidRequest, MalformedJson):
        return decode(repaired_report(text), decoder)


def _decode_fast(text: str, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        # It stops at the first member that does not fit; what comes after may not even be JSON.
        json_tree.check(json_tree.parse(text))
        raise invalid(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        json_tree.check(json_tree.parse(text))
        raise MalformedJson("The body is not JSON.") from error


_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw] | None)


def _list_needs_a_look(text: str, member: str) -> bool:
    """Tell whether any item needs a look, or what is around their list."""
    found = _RAW_MEMBERS.decode(text).get(member)
    if found is None:
        return json_tree.needs_a_look(text)
    whole_list = bytes(found).decode()
    before, _, after = text.partition(whole_list)
    items = [str(item, "utf-8") for item in _RAW_ITEMS.decode(whole_list) or ()]
    return json_tree.needs_a_look(f"{before}[]{after}") or json_tree.items_need_a_look(whole_list, items)
