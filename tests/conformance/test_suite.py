"""A case that surprises is played once more before anybody is blamed."""

import sys
from pathlib import Path

import pytest

from clients.conformance import suite
from clients.conformance.adapters import Adapter
from clients.conformance.case import load
from clients.conformance.stage import Verdict

CASE = next(case for case in load() if case.name == "one-job")
# Ends at once with code 1 as long as it can make the folder that it is given, which is once.
LATE_ONCE = f'mkdir "$0" 2>/dev/null && exit 1; exec "{sys.executable}" -m tests.conformance.reference'


@pytest.mark.slow
async def test_client_that_fails_once_passes_and_the_failure_is_told(tmp_path: Path) -> None:
    doubtful: list[Verdict] = []
    adapter = Adapter("late once", ["sh", "-c", LATE_ONCE, str(tmp_path / "was here")])
    [verdict] = await suite.run_twice([(CASE, adapter)], doubt=doubtful.append)
    assert verdict.passed
    assert [first.passed for first in doubtful] == [False]


@pytest.mark.slow
async def test_client_that_fails_twice_fails_and_a_mistake_that_passes_twice_passes() -> None:
    doubtful: list[Verdict] = []
    never = Adapter("never", ["sh", "-c", "exit 1"])
    [verdict] = await suite.run_twice([(CASE, never)], doubt=doubtful.append)
    assert not verdict.passed
    right = Adapter("right", [sys.executable, "-m", "tests.conformance.reference"])
    [verdict] = await suite.run_twice([(CASE, right)], expected=False, doubt=doubtful.append)
    assert verdict.passed
    assert doubtful == []
