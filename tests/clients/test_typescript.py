"""The TypeScript client: formatted, built, and tested against a real service by its own tests."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.programs import needed_program
from tests.support.server import ServerProcess

_CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
_LIMIT_SECONDS = 300.0


def test_the_typescript_client_passes_its_own_tests(
    serve: Callable[..., ServerProcess], database_url: str, tmp_path: Path
) -> None:
    needed_program("node")
    npm = needed_program("npm")
    # A copy: the conformance suite may build in that folder at this moment. The install builds.
    folder = tmp_path / "typescript"
    shutil.copytree(_CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    _run(npm, "install", "--no-audit", "--no-fund", folder=folder)
    _run(npm, "run", "check", folder=folder)
    server = serve(reaper_interval_seconds=0.2)
    service = {"FENCEPOST_URL": server.url, "FENCEPOST_DATABASE_URL": database_url}
    _run(npm, "test", folder=folder, environ=service)


def _run(npm: Path, *arguments: str, folder: Path, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [npm, *arguments],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"npm {' '.join(arguments)}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
