"""Page cursors: where a page ended, bound to the filters it was read with.

A cursor is opaque to the caller. It carries a checksum over the filters and the position, so that one
changed character, or other filters, are noticed. It grants nothing: it is no secret.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping

from app.domain.errors import InvalidCursor

_CHECKSUM_BYTES = 6
# How a page is shown, not what is in it.
_NOT_FILTERS = ("cursor", "limit", "include")


def write_cursor(query: Mapping[str, str], listing: str, position: str) -> str:
    """Return the cursor of the page after ``position``; ``listing`` names what is listed."""
    text = position.encode()
    return base64.urlsafe_b64encode(_checksum(query, listing, text) + text).decode().rstrip("=")


def read_cursor(query: Mapping[str, str], listing: str) -> str | None:
    """Return the position in the query's cursor, None without one. Raises InvalidCursor."""
    cursor = query.get("cursor")
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidCursor("The cursor is broken.") from error
    checksum, position = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    is_canonical = base64.urlsafe_b64encode(raw).decode().rstrip("=") == cursor
    if not is_canonical or checksum != _checksum(query, listing, position):
        raise InvalidCursor("The cursor is broken, or was made for other filters.")
    return position.decode()


def _checksum(query: Mapping[str, str], listing: str, position: bytes) -> bytes:
    filters = sorted((name, value) for name, value in query.items() if name not in _NOT_FILTERS)
    return hashlib.blake2b(repr((listing, filters)).encode() + position, digest_size=_CHECKSUM_BYTES).digest()
