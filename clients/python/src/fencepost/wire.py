"""JSON as it goes over the wire: strict, compact, UTF-8."""

import json

from fencepost.errors import Problem

# NaN and Infinity are no JSON: they are refused here, where the traceback shows who made them.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
HEADERS = {"Content-Type": "application/json"}
# What a call may carry, by the service's defaults. Far beyond it the service closes the connection instead of
# reading on, which looks as if it were away: such a call would be repeated for ever.
MOST_BYTES = 16 << 20


def text_of(value: object) -> str:
    """Write a value as JSON.

    Raises TypeError or ValueError (also for a circle) when it is none, and Problem when it is too large for
    any call.
    """
    # It is ASCII: each character is a byte.
    text = _encode(value)
    if len(text) > MOST_BYTES:
        detail = f"{len(text)} bytes of JSON are over the limit of {MOST_BYTES} bytes"
        raise Problem(413, {"code": "too_large", "detail": detail})
    return text


def bytes_of(value: object) -> bytes:
    """Write a value as the body of a call, with the errors of ``text_of``."""
    return text_of(value).encode()


def many(items: list[str]) -> bytes:
    """Write the body of a call for many from items that are JSON already."""
    return ('{"items":[' + ",".join(items) + "]}").encode()
