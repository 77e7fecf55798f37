"""The clients under test, as ``adapters.yaml`` declares them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clients.conformance.case import OPTIONAL, Case, CaseError

ROOT = Path(__file__).parents[2]
DECLARED = Path(__file__).parent / "adapters.yaml"
BUILD_SECONDS = 500
# Folders that a build makes among its sources.
_MADE = ("node_modules", "dist")


class BuildError(Exception):
    """An adapter that cannot be built, with the end of what its command said."""


@dataclass(frozen=True)
class Adapter:
    """One client: how its adapter is built and run, what that takes, and what the client does not offer."""

    name: str
    run: Sequence[str]
    build: Sequence[str] = ()
    sources: str = ""
    programs: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cannot: frozenset[str] = frozenset()
    folder: Path = ROOT

    def can(self, case: Case) -> bool:
        return not case.needs & self.cannot

    @property
    def missing(self) -> str | None:
        """The program that is not installed here; None when all are."""
        return next((program for program in self.programs if shutil.which(program) is None), None)

    def make(self) -> None:
        """Build the adapter unless it is newer than its sources; raise BuildError when it cannot be.

        One process at a time builds it, and none while another one already runs what was built.
        """
        if not self.build:
            return
        stamp = self.folder / "build" / f"{self.name}.built"
        stamp.parent.mkdir(exist_ok=True)
        with stamp.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_current(stamp):
                self._build()
                stamp.write_text("its time counts\n", encoding="utf-8")

    def _is_current(self, stamp: Path) -> bool:
        built_at = stamp.stat().st_mtime
        is_there = all((self.folder / word).exists() for word in self.run if "/" in word)
        return (
            stamp.stat().st_size > 0
            and is_there
            and all(path.stat().st_mtime <= built_at for path in self._source_files())
        )

    def _source_files(self) -> Iterator[Path]:
        for folder, inner, names in os.walk(self.folder / self.sources):
            inner[:] = [name for name in inner if name not in _MADE]
            yield from (Path(folder, name) for name in names)

    def _build(self) -> None:
        try:
            done = subprocess.run(
                self.build,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{self.name}: not built after {BUILD_SECONDS} s") from error
        if done.returncode != 0:
            raise BuildError(
                f"{self.name}: {' '.join(self.build)}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )


def declared(path: Path = DECLARED) -> list[Adapter]:
    """Return the adapters of a file."""
    return [_read(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def _read(entry: Mapping[str, Any]) -> Adapter:
    if unknown := set(entry) - {"name", "programs", "build", "sources", "run", "environment", "cannot"}:
        raise CaseError(f"adapters: unknown: {', '.join(sorted(unknown))}")
    if unknown := set(entry.get("cannot", [])) - set(OPTIONAL):
        raise CaseError(
            f"adapters: {entry['name']} cannot {', '.join(sorted(unknown))}, which is not optional"
        )
    return Adapter(
        name=entry["name"],
        run=_command(entry["run"]),
        build=_command(entry.get("build", [])),
        sources=entry.get("sources", ""),
        programs=entry.get("programs", []),
        environment=entry.get("environment", {}),
        cannot=frozenset(entry.get("cannot", [])),
    )


def _command(words: Sequence[str]) -> list[str]:
    return [word.replace("{python}", sys.executable) for word in words]
