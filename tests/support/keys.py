"""API keys for tests: one for each scope, one for all of them."""

import httpx

from app.domain.caller import Scope
from app.settings import ApiKey

SECRETS = {scope: f"secret-of-{scope}" for scope in Scope}
SECRET_OF_ALL = "secret-of-all"
API_KEYS = (
    *(ApiKey(name=f"only-{scope}", scopes=frozenset({scope}), secret=SECRETS[scope]) for scope in Scope),
    ApiKey(name="all", scopes=frozenset(Scope), secret=SECRET_OF_ALL),
)


def bearer(secret: str) -> dict[str, str]:
    """Return the headers that show a key."""
    return {"Authorization": f"Bearer {secret}"}


def without_request_id(response: httpx.Response) -> dict[str, object]:
    """Return the members of a problem that cannot differ from call to call."""
    return {name: value for name, value in response.json().items() if name != "request_id"}
