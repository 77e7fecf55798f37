"""Request fingerprints: two requests are one when they mean the same.

Our own members count after validation with defaults filled in, opaque values by member names and
tokens. What says who asks or how often (the key, trace headers, the parent's lease_version, which a
second run of a handler has anew) does not count.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from app.domain import json_tree
from app.domain.job import JobSpec


def fingerprint(verb: str, members: Mapping[str, object], *, opaque: Mapping[str, str | None]) -> bytes:
    """Return 8 bytes that stand for one call; ``opaque`` maps member names to JSON texts.

    Two calls are compared only under one key or one lease_version, which belong to one caller: eight bytes
    tell them apart, and every finished job carries them.

    ``members`` must be serialisable by the standard library's json; None as a text means null.
    """
    own = _write(members)
    values = [f"{name}={canonical_text(text)}" for name, text in sorted(opaque.items())]
    return hashlib.blake2b("\n".join([verb, own, *values]).encode(), digest_size=8).digest()


# Made once: json.dumps would make one for every call.
_write = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical_text(text: str | None) -> str:
    if text is None or text == "null":
        return "null"
    return json_tree.canonical(json_tree.parse(text))


def submit_members(spec: JobSpec) -> dict[str, object]:
    """Return what counts of a job that is asked for, the payload apart."""
    return {
        "kind": spec.kind,
        "queue": spec.queue,
        "priority": spec.priority,
        "run_at": instant(spec.run_at),
        "delay_seconds": duration(spec.delay_seconds),
        "max_attempts": spec.max_attempts,
        "backoff": [
            spec.backoff.type.value,
            duration(spec.backoff.base_seconds),
            spec.backoff.factor,
            duration(spec.backoff.max_seconds),
            spec.backoff.jitter,
        ],
        "max_runtime_seconds": duration(spec.max_runtime_seconds),
        "progress_timeout_seconds": duration(spec.progress_timeout_seconds),
        "metadata": spec.metadata,
        "parent": None if spec.parent is None else spec.parent.job_id,
    }


def submit_fingerprint(spec: JobSpec) -> bytes:
    """Return the fingerprint that an idempotency key is bound to."""
    return fingerprint("submit", submit_members(spec), opaque={"payload": spec.payload})


def duration(seconds: float | None) -> float | None:
    """Round to the microseconds that are kept: 1.9409999999999998, as some clocks compute it, is 1.941."""
    return None if seconds is None else round(seconds, 6)


def instant(at: datetime | None) -> str | None:
    """Write a time so that one instant is one text, whatever offset it came with."""
    return None if at is None else at.astimezone(UTC).isoformat()


def complete_fingerprint(result: str | None, follow_ups: Sequence[JobSpec]) -> bytes:
    """Return what a repeat of a completion is known by."""
    if result is None and not follow_ups:
        return _PLAIN_COMPLETION
    return fingerprint(
        "complete",
        {"enqueue": [submit_members(spec) for spec in follow_ups]},
        opaque={"result": result}
        | {f"enqueue/{index}": spec.payload for index, spec in enumerate(follow_ups)},
    )


# Most completions say nothing else, and come by the thousand.
_PLAIN_COMPLETION = fingerprint("complete", {"enqueue": []}, opaque={"result": None})
