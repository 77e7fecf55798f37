"""How both clients reach the service: its address, the key, the connections."""

import ipaddress
import re
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8000"

_KEY = re.compile(r"[!-~]+")
# A call that waits has its connection for itself, and so has each of many that are made at once: with fewer
# connections they would wait for each other, and a heartbeat for the questions of a hundred handlers.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)


def arguments(url: str, api_key: str | None) -> dict[str, Any]:
    """Return what an HTTP client is made with. Raises ValueError for what is no address or no key."""
    address = httpx.URL(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(f"the service's address is {url!r}; write it like {DEFAULT_URL}")
    if api_key is not None and address.userinfo:
        raise ValueError("the service's address has a user in it, which would be sent instead of the API key")
    return {
        "base_url": address,
        "headers": _authorization(api_key),
        "limits": _LIMITS,
        # A service on this machine is behind no proxy, whatever HTTP_PROXY says of the others.
        "trust_env": address.scheme == "https" or not _is_here(address.host),
    }


def _authorization(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not _KEY.fullmatch(api_key):
        raise ValueError(
            "the API key has characters that no key has: a space, or the end of its line, perhaps"
        )
    return {"Authorization": f"Bearer {api_key}"}


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
