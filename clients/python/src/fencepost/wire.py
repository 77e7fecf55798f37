"""JSON as it goes over the wire: strict, compact, UTF-8."""

import json

# NaN and Infinity are no JSON: they are refused here, where the traceback shows who made them.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
HEADERS = {"Content-Type": "application/json"}


def text_of(value: object) -> str:
    """Write a value as JSON; raises TypeError or ValueError (also for a circle) when it is none."""
    return _encode(value)


def bytes_of(value: object) -> bytes:
    """Write a value as the body of a call."""
    return _encode(value).encode()


def many(items: list[str]) -> bytes:
    """Write the body of a call for many from items that are JSON already."""
    return ('{"items":[' + ",".join(items) + "]}").encode()
