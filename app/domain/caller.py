"""Who calls, and what a caller may do."""

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Scope(StrEnum):
    """What an API key is for."""

    PRODUCE = "produce"
    WORK = "work"
    OPERATE = "operate"


Scopes: TypeAlias = Set[Scope]


@dataclass(frozen=True, slots=True)
class Caller:
    """``name`` owns idempotency keys: two API keys of one name are one caller, each with its own scopes."""

    name: str
    scopes: frozenset[Scope]


# Everybody, where no keys are configured.
ANONYMOUS = Caller("anonymous", frozenset(Scope))
