"""An adapter is built when it has to be, by one process at a time."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.conformance.adapters import Adapter, BuildError

BUILD = "sleep 0.1; echo built >>log; mkdir -p sources/dist; touch sources/dist/adapter"


@pytest.fixture(name="adapter")
def _adapter(tmp_path: Path) -> Adapter:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "adapter.ts").touch()
    return Adapter(
        "mine",
        run=["node", "sources/dist/adapter"],
        build=["sh", "-c", BUILD],
        sources="sources",
        folder=tmp_path,
    )


def builds(adapter: Adapter) -> int:
    return (adapter.folder / "log").read_text(encoding="utf-8").count("built")


def test_it_is_built_once_also_when_many_ask_at_once(adapter: Adapter) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda _: adapter.make(), range(4)))
    assert builds(adapter) == 1


def test_it_is_built_again_when_a_source_is_newer_or_what_was_made_is_gone(adapter: Adapter) -> None:
    adapter.make()
    stamp = adapter.folder / "build" / "mine.built"
    later = stamp.stat().st_mtime + 1
    os.utime(adapter.folder / "sources" / "adapter.ts", (later, later))
    adapter.make()
    assert builds(adapter) == 2
    os.utime(stamp, (later, later))
    adapter.make()
    assert builds(adapter) == 2
    (adapter.folder / "sources" / "dist" / "adapter").unlink()
    adapter.make()
    assert builds(adapter) == 3


def test_a_build_that_fails_says_so_and_is_tried_again(adapter: Adapter) -> None:
    broken = Adapter(
        "mine", run=adapter.run, build=["sh", "-c", "echo no >&2; exit 1"], folder=adapter.folder
    )
    with pytest.raises(BuildError, match="no"):
        broken.make()
    adapter.make()
    assert builds(adapter) == 1
