"""Histories written by hand, each with what a rule must say to it.

``breaks("a_rule")`` marks one that breaks this rule and no other, ``legal`` one that looks like it and breaks
none. They stand in job_stories and lease_stories.
"""

from collections.abc import Callable

from tests.chaos.tale import Tale

Write = Callable[[Tale], None]

BROKEN: list[tuple[str, Write]] = []
LEGAL: list[Write] = []


def breaks(rule: str) -> Callable[[Write], Write]:
    def note(write: Write) -> Write:
        BROKEN.append((rule, write))
        return write

    return note


def legal(write: Write) -> Write:
    LEGAL.append(write)
    return write
