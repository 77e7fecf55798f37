"""The page of guarantees: every promise names tests, and every test that it names exists."""

import re
from functools import cache

from tests.docs.documents import ROOT, headings, read, rows

_PAGE = ROOT / "docs" / "guarantees.md"
_TEST_NAME = re.compile(r"`(test_\w+)`")
_DEFINITION = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@cache
def _defined() -> frozenset[str]:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for path in files for name in _DEFINITION.findall(read(path)))


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = _TEST_NAME.findall(read(_PAGE))
    assert len(named) > 40
    assert [name for name in named if name not in _defined()] == []


def test_every_promise_in_a_table_names_what_holds_it() -> None:
    promises = [row for row in rows(read(_PAGE)) if len(row) == 2]
    unproven = [
        promise
        for promise, proof in promises
        if promise not in ("promise", "what shall be survived") and not _TEST_NAME.search(proof)
    ]
    operated = _operated()
    assert [promise for promise in unproven if promise not in operated] == []


def _operated() -> set[str]:
    """What an operator sets; it is no promise of this service."""
    text = read(_PAGE)
    last = headings(text)[-1]
    return {row[0] for row in rows(text[text.index(f"## {last}") :])}
