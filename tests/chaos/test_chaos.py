"""One short round of every scenario: kills, rolling restarts, database trouble, freezes, and a cut cable."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.__main__ import must_not_skip
from tests.chaos.campaign import Plan, draw_seed, run


@pytest.mark.slow
async def test_chaos_loses_nothing_and_lets_no_stale_write_pass(
    tmp_path: Path, tell: Callable[[object], None]
) -> None:
    plan = Plan(seed=draw_seed(), is_short=True)
    report = await run(plan, folder=tmp_path, say=lambda _: None)
    tell("\n".join(report.lines()))
    assert report.is_good
    assert not (report.skipped and must_not_skip()), report.skipped
