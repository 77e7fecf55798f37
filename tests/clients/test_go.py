"""The Go client: formatted, vetted, and its own tests against a real server, with Go's race detector."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.programs import needed_program
from tests.support.server import ServerProcess

CLIENT = Path(__file__).parents[2] / "clients" / "go"
# The race detector makes the standard library anew the first time.
TEST_SECONDS = 480


def run(*command: str | Path, folder: Path = CLIENT, environ: dict[str, str] | None = None) -> str:
    """Return what a command says; fail with that when something is wrong."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOPROXY": "off"} | (environ or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_sources_are_formatted() -> None:
    assert run(needed_program("gofmt"), "-l", ".") == ""


def test_vet_finds_nothing() -> None:
    run(needed_program("go"), "vet", "./...")


def test_the_client_needs_the_standard_library_only() -> None:
    assert "require" not in (CLIENT / "go.mod").read_text(encoding="utf-8")
    assert not (CLIENT / "go.sum").exists()


def test_the_readmes_worker_is_a_program(tmp_path: Path) -> None:
    go = needed_program("go")
    text = (CLIENT / "README.md").read_text(encoding="utf-8")
    program = text.split("```go\n")[1].split("```")[0]
    (tmp_path / "main.go").write_text(program, encoding="utf-8")
    run(go, "mod", "init", "example.test/app", folder=tmp_path)
    run(go, "mod", "edit", "-require=fencepost@v0.0.0", f"-replace=fencepost={CLIENT}", folder=tmp_path)
    run(go, "vet", ".", folder=tmp_path)


def test_the_clients_own_tests_pass_against_a_real_server(serve: Callable[..., ServerProcess]) -> None:
    go = needed_program("go")
    # The race detector is linked by a C compiler.
    needed_program("gcc")
    server = serve()
    told = run(go, "test", "-race", "-count=1", "-v", "./...", environ={"FENCEPOST_TEST_URL": server.url})
    assert "--- SKIP" not in told
    assert "--- PASS: TestEveryJobOfAllQueuesIsDoneOnceUnderLoad" in told
