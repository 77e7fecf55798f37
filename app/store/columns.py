"""Columns that are stored compactly: null stands for the value that most jobs have."""

import msgspec

from app.domain.job import DEFAULT_BACKOFF, Backoff, Parent


def metadata_text(metadata: dict[str, str]) -> str | None:
    """Return JSON text, None for the empty object."""
    return msgspec.json.encode(metadata).decode() if metadata else None


def backoff_text(backoff: Backoff) -> str | None:
    """Return JSON text, None for the contract's default policy."""
    return None if backoff == DEFAULT_BACKOFF else msgspec.json.encode(backoff).decode()


def backoff_of(text: str | None) -> Backoff:
    return DEFAULT_BACKOFF if text is None else msgspec.json.decode(text, type=Backoff)


def parent_of(job_id: str | None, lease_version: int | None) -> Parent | None:
    if job_id is None or lease_version is None:
        return None
    return Parent(job_id, lease_version)
