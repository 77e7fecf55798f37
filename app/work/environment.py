"""What a command finds in its environment."""

import json
from collections.abc import Mapping
from typing import Any

# Whoever runs a command for each job must not hand it the keys of the house.
_SECRETS = frozenset(
    {
        "FENCEPOST_CLIENT_KEY",
        "FENCEPOST_API_KEYS",
        "FENCEPOST_API_KEYS_FILE",
        "FENCEPOST_DATABASE_URL",
        "FENCEPOST_LISTEN_URL",
    }
)

# Those that are None for a job are unset for its command, also when this process was itself given them.
_AS_TEXT = {
    "FENCEPOST_JOB_ID": "id",
    "FENCEPOST_JOB_QUEUE": "queue",
    "FENCEPOST_JOB_KIND": "kind",
    "FENCEPOST_LEASE_VERSION": "lease_version",
    "FENCEPOST_JOB_ATTEMPT": "attempt",
    "FENCEPOST_JOB_MAX_ATTEMPTS": "max_attempts",
    "FENCEPOST_JOB_DEADLINE_AT": "deadline_at",
    "TRACEPARENT": "traceparent",
    "TRACESTATE": "tracestate",
}
_AS_JSON = {
    "FENCEPOST_JOB_METADATA": "metadata",
    "FENCEPOST_JOB_CHECKPOINT": "checkpoint",
    "FENCEPOST_JOB_PREVIOUS": "previous",
}
PROGRESS_DESCRIPTOR = 3

VARIABLES = ("FENCEPOST_URL", *_AS_TEXT, *_AS_JSON, "FENCEPOST_PROGRESS_FD")


def base_environment(environ: Mapping[str, str], *, url: str) -> dict[str, str]:
    """Return what all commands get: environ without secrets and without the facts of another job."""
    kept = {name: value for name, value in environ.items() if name not in _SECRETS and name not in VARIABLES}
    return kept | {"FENCEPOST_URL": url, "FENCEPOST_PROGRESS_FD": str(PROGRESS_DESCRIPTOR)}


def job_environment(base: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command of one job gets; facts are the members of the leased job."""
    texts = {name: str(facts[key]) for name, key in _AS_TEXT.items() if facts.get(key) is not None}
    # ASCII alone, everything else escaped: no NUL, no lone surrogate, the same in every locale.
    values = {name: json.dumps(facts[key]) for name, key in _AS_JSON.items() if facts.get(key) is not None}
    return {**base, **texts, **values}
