"""Programs beside Python: CI has every one that a test asks for, and misses it loudly."""

import re
from pathlib import Path

import pytest

from tests.support.programs import needed_program

ROOT = Path(__file__).parents[2]


def test_every_program_that_a_test_needs_is_installed_by_the_ci_script() -> None:
    asked_for = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__)
        for name in re.findall(r'needed_program\("([^"]+)"\)', path.read_text(encoding="utf-8"))
    }
    installed = set(re.findall(r"\[(\w+)\]=", (ROOT / ".ci" / "packages").read_text(encoding="utf-8")))
    assert "faketime" in asked_for
    assert asked_for <= installed


def test_a_test_without_its_program_is_skipped_at_home_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        needed_program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        needed_program("no-such-program")
    assert needed_program("sh").is_file()
