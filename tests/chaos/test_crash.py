"""A short run of the crash program, as a test."""

from pathlib import Path

import pytest

from app.embedded.server import BundledServer
from benchmarks.crash import run


@pytest.mark.slow
async def test_kill_9_under_load_loses_nothing_and_lets_no_stale_write_pass(tmp_path: Path) -> None:
    report = await run(seconds=6, seed=3, folder=tmp_path, pause=(0.5, 2.5))
    BundledServer(tmp_path / "data").stop()
    assert report.faults == []
