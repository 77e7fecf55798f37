"""The client's README: its first screen runs, and its tables are those of the code."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fencepost import AsyncClient, AsyncJob, Client, Job, Worker
from fencepost.jobs import JobOptions

from tests.clients.python.running import wait_until
from tests.docs.documents import ROOT
from tests.support.server import ServerProcess

README = (ROOT / "clients" / "python" / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


def test_the_first_screen_runs(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    url = serve().url
    for name, block in zip(["worker.py", "producer.py"], BLOCKS, strict=False):
        assert ADDRESS in block
        (tmp_path / name).write_text(block.replace(ADDRESS, url))
    environment = {"PYTHONPATH": str(ROOT / "clients" / "python" / "src"), "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, tmp_path / "worker.py"], env=environment, stdout=out, stderr=out
        )
    try:
        told = subprocess.check_output(
            [sys.executable, tmp_path / "producer.py"], env=environment, timeout=90
        )
        assert told.decode() == "{'sent': True}\n"
        assert log.read_text() == "sending to ada@example.com under version 1\n"
    finally:
        worker.terminate()
        worker.wait(60)
    wait_until(lambda: worker.returncode == 0)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_python(block: str) -> None:
    compile(block, "README.md", "exec")


@pytest.mark.parametrize("made", [Worker, Client, AsyncClient])
def test_every_option_is_in_a_table_with_its_default(made: Callable[..., object]) -> None:
    for name, parameter in inspect.signature(made).parameters.items():
        if name != "url":
            row = re.search(rf"^\| `{name}` \|([^|]*)\|", README, flags=re.MULTILINE)
            assert row is not None, name
            default = parameter.default
            if isinstance(default, int | float):
                assert float(row[1]) == default, name


@pytest.mark.parametrize("kind", [Job, AsyncJob])
def test_every_member_of_a_job_is_in_the_table(kind: type) -> None:
    members = [name for name in dir(kind) if not name.startswith("_")]
    assert [name for name in members if f"`{name}" not in README] == []


def test_every_option_of_a_job_is_named() -> None:
    assert [name for name in JobOptions.__annotations__ if f"`{name}`" not in README] == []
