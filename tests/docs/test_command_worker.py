"""docs/command-worker.md says what `fencepost work` does, and its script runs."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from app.work import environment, outcome
from app.work.command import work
from tests.docs.documents import ROOT, code, read, rows, section
from tests.support.command_worker import Service, Work
from tests.support.server import ServerProcess

PAGE = read(ROOT / "docs" / "command-worker.md")
OPTIONS = {option.name: option for option in work.params if isinstance(option, click.Option)}
SCRIPT = "#!/bin/sh\n# send-mail.sh"

# In the place of programs that a machine need not have: one that reads a member, one that sends nothing.
PROGRAMS = {
    "jq": f"#!{sys.executable}\nimport json, sys\nprint(json.load(sys.stdin)[sys.argv[2][1:]])\n",
    "sendmail": '#!/bin/sh\n{ echo "to $1"; cat; } >sent\n',
}


def option_rows() -> dict[str, list[str]]:
    table = rows(section(PAGE, "## Options"))
    return {found[1]: cells for cells in table if (found := re.match(r"`--([a-z-]+)`", cells[0]))}


def test_every_option_stands_on_the_page_and_no_other() -> None:
    assert list(option_rows()) == [option.opts[-1].removeprefix("--") for option in OPTIONS.values()]


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_an_option_stands_with_its_default_and_its_limits(option: click.Option) -> None:
    names, default, meaning = option_rows()[option.opts[-1].removeprefix("--")]
    assert set(re.findall(r"`(--?[a-z-]+)`", names)) == set(option.opts)
    if option.required:
        assert default == "required"
    elif isinstance(option.default, (int, float)):
        assert float(default) == option.default
    elif isinstance(option.default, str):
        assert f"`{option.default}`" in default
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        assert f"{option.type.min:,} to {option.type.max:,}" in meaning


def test_every_variable_of_a_command_stands_on_the_page_and_no_other() -> None:
    table = rows(section(PAGE, "## What the command gets"))
    named = [name for cells in table for name in re.findall(r"`([A-Z_]+)`", cells[0])]
    assert sorted(named) == sorted(environment.VARIABLES)


def test_the_exit_codes_with_a_meaning_stand_on_the_page() -> None:
    table = {cells[0]: cells[1] for cells in rows(section(PAGE, "## How it ends"))}
    assert table["0"] == "`complete`"
    assert table[str(outcome.RELEASE_EXIT_CODE)] == "`release`"
    assert table[str(outcome.FAIL_FOR_GOOD_EXIT_CODE)] == "`fail`, `retryable: false`"
    assert set(table) == {"exit code", "0", "75", "65", "any other", "killed by a signal"}


@pytest.mark.slow
def test_the_script_of_the_page_sends_its_letter(
    serve: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = code(PAGE.partition("\n## ")[0], "sh")
    for name, text in {"send-mail.sh": shown[shown.index(SCRIPT) :], **PROGRAMS}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "letter.txt").write_text("Dear Ada\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    server = serve()
    server.wait_until_ready()
    service = Service(server.url, queue="mail")
    job_id = service.submit({"to": "ada@example.org"}, queue="mail")
    [options] = re.findall(r"^fencepost work (.*) -- \./send-mail\.sh$", shown, re.MULTILINE)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    worker = Work(server.url, tmp_path, ["./send-mail.sh"], options=options.split(), environ={"PATH": path})
    try:
        assert service.until_state(job_id, "succeeded")["result"] == {"sent_to": "ada@example.org"}
    finally:
        worker.end()
    assert (tmp_path / "sent").read_text(encoding="utf-8") == "to ada@example.org\nDear Ada\n"
