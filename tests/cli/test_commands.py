"""The commands that do one thing and end."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from app import cli
from app.logs import JsonFormatter, configure_logging
from app.settings import Settings

_URL = "postgresql://user:hunter2@database/jobs"


@pytest.fixture(name="runner")
def _runner() -> Iterator[CliRunner]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield CliRunner(env={"FENCEPOST_DATABASE_URL": _URL, "FENCEPOST_TEST_DATABASE_URL": "ignored"})
    root.handlers[:] = handlers
    root.setLevel(level)


def test_openapi_prints_the_document_that_it_also_writes(runner: CliRunner, tmp_path: Path) -> None:
    printed = runner.invoke(cli.main, ["openapi"])
    path = tmp_path / "openapi.json"
    written = runner.invoke(cli.main, ["openapi", "--output", str(path)])
    assert (printed.exit_code, written.exit_code, written.stdout) == (0, 0, "")
    assert path.read_text(encoding="utf-8") == printed.stdout
    assert json.loads(printed.stdout)["openapi"].startswith("3.1")


def test_migrate_goes_past_a_pooler_when_there_is_a_direct_address(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(cli, "migrate", urls.append)
    runner.invoke(cli.main, ["migrate"], catch_exceptions=False)
    direct = {"FENCEPOST_LISTEN_URL": "postgresql://database/direct"}
    runner.invoke(cli.main, ["migrate"], env=direct, catch_exceptions=False)
    assert urls == [_URL, "postgresql://database/direct"]


def test_expire_prints_how_many_leases_it_ended(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_expire(settings: Settings, database_url: str) -> int:
        assert settings.database_url == database_url == _URL
        return 7

    monkeypatch.setattr(cli, "run_expire", run_expire)
    result = runner.invoke(cli.main, ["expire"])
    assert (result.exit_code, result.stdout) == (0, "7\n")


@pytest.mark.parametrize(("findings", "exit_code"), [([], 0), (["job 1 is nowhere", "job 2 is twice"], 1)])
def test_doctor_lists_what_is_wrong_and_then_fails(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, findings: list[str], exit_code: int
) -> None:
    async def run_doctor(settings: Settings, database_url: str) -> list[str]:
        return findings

    monkeypatch.setattr(cli, "run_doctor", run_doctor)
    result = runner.invoke(cli.main, ["doctor"])
    assert (result.exit_code, result.stdout.splitlines()) == (exit_code, findings)


def test_grant_names_the_role_and_goes_past_a_pooler(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted: list[tuple[str, str]] = []
    monkeypatch.setattr(cli, "grant", lambda url, role: granted.append((url, role)))
    assert runner.invoke(cli.main, ["grant", "shop"]).exit_code == 0
    runner.invoke(cli.main, ["grant", "shop"], env={"FENCEPOST_LISTEN_URL": "postgresql://database/direct"})
    assert granted == [(_URL, "shop"), ("postgresql://database/direct", "shop")]
    assert runner.invoke(cli.main, ["grant"]).exit_code == 2


def test_grant_to_a_role_that_is_not_there_fails_in_one_line(runner: CliRunner, database_url: str) -> None:
    result = runner.invoke(cli.main, ["grant", "no such role"], env={"FENCEPOST_DATABASE_URL": database_url})
    assert (result.exit_code, result.stderr) == (1, "Error: the database has no role 'no such role'\n")


@pytest.mark.parametrize("command", ["migrate", "grant shop", "expire", "doctor"])
def test_every_command_refuses_bad_settings(runner: CliRunner, command: str) -> None:
    result = runner.invoke(cli.main, command.split(), env={"FENCEPOST_LOG_LEVEL": "loud"})
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "FENCEPOST_LOG_LEVEL" in result.stderr


def test_help_names_the_commands_and_hides_the_internal_one(runner: CliRunner) -> None:
    text = runner.invoke(cli.main, ["--help"]).stdout
    assert all(name in text for name in ("serve", "migrate", "grant", "openapi", "expire", "doctor", "work"))
    assert "serve-process" not in text


def test_a_log_line_is_json_with_its_traceback_inside() -> None:
    cause = (ValueError, ValueError("broken\nin two"), None)
    record = logging.LogRecord("app.x", logging.ERROR, __file__, 1, "it %s", ("failed",), cause)
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["level"], line["logger"], line["message"]) == ("error", "app.x", "it failed")
    assert "broken" in line["traceback"]
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize(("log_format", "is_json"), [("json", True), ("text", False), (None, True)])
def test_the_format_is_what_was_asked_for_and_json_off_a_terminal(
    runner: CliRunner, capsys: pytest.CaptureFixture[str], log_format: str | None, *, is_json: bool
) -> None:
    del runner
    configure_logging(log_format=log_format, log_level="info")
    logging.getLogger("app.x").info("hello")
    logging.getLogger("app.x").debug("not shown")
    output = capsys.readouterr().err
    assert output.startswith("{") is is_json
    assert output.count("\n") == 1
