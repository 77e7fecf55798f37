"""Who calls, by which API key, and may they do this.

Keys are looked at around the whole application (``middleware.Authentication``), so that what nobody has
opened is closed; scopes are asked for where the route is known (``routing``). Without configured keys the
first is left out, and every caller is the anonymous one, who may do everything.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.requests import Request

from app.domain.caller import ANONYMOUS, Caller, Scope, Scopes
from app.domain.errors import FencepostError

ANY_KEY = frozenset(Scope)
NO_KEY = None


class Forbidden(FencepostError):
    """The key has none of ``scopes``, any one of which would do."""

    code = "forbidden"

    def __init__(self, scopes: Scopes) -> None:
        names = " or ".join(scope for scope in Scope if scope in scopes)
        super().__init__(f"This needs an API key with the scope {names}.")


class Keyring:
    """The configured API keys, as digests: all of one length, and no secret is kept."""

    def __init__(self, keys: Iterable[tuple[str, Caller]]) -> None:
        self._callers = [(sha256(secret.encode()).digest(), caller) for secret, caller in keys]

    def caller_of(self, credentials: bytes) -> Caller | None:
        """Return whose an Authorization header is, by its value; None when it is malformed or not known.

        Bytes throughout, since a comparison of texts raises for what is not ASCII. Every key is compared:
        the time taken tells neither how near a guess was nor which key it was near to.
        """
        scheme, _, secret = credentials.partition(b" ")
        digest = sha256(secret.strip(b" ")).digest()
        found = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found if scheme.lower() == b"bearer" else None


def caller_of(request: Request) -> Caller:
    """Return who calls; the anonymous caller where no keys are configured."""
    caller: Caller = request.scope["state"].get("caller", ANONYMOUS)
    return caller


def require_scope(request: Request, scopes: Scopes) -> None:
    """Raise Forbidden unless the caller has one of the scopes."""
    if scopes.isdisjoint(caller_of(request).scopes):
        raise Forbidden(scopes)
