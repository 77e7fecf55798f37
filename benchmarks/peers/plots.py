"""The pictures of a results file, as PNG beside it; runs in the peers' environment, which has matplotlib.

python -m benchmarks.peers.plots RESULTS.jsonl
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.peers.backlogs import CYCLES
from benchmarks.peers.report import BACKLOGS, PICKUP, US, Column, shown
from benchmarks.peers.results import FLOOR, Results, read
from benchmarks.peers.systems import SYSTEMS

_OURS, _PEER, _OUTSIDE = "#c2410c", "#475569", "#cbd5e1"


def main(path: Path) -> None:
    """Draw everything that the file has numbers for."""
    mpl.use("Agg")
    results = read([path])
    single = (
        Column("enqueue_c1", "single enqueue, 1 client, jobs/s"),
        Column("enqueue_c16", "single enqueue, 16 clients, jobs/s"),
        Column("enqueue_c64", "single enqueue, 64 clients, jobs/s"),
        Column("bulk", "bulk, 1,000 a call, jobs/s"),
    )
    drains = (
        Column("drain", "drain of empty jobs, jobs/s"),
        Column("job_wal", "WAL, bulk + drain, bytes a job", less_is_better=True),
    )
    latencies = tuple(column._replace(title=f"pick-up {column.title}, ms") for column in PICKUP[:3])
    paced = tuple(
        Column(f"paced_{pace}_p{percent}", f"{pace:,} jobs/s, p{percent}, ms", less_is_better=True)
        for pace in (200, 1000)
        for percent in (50, 99)
    )
    backlogs = tuple(column._replace(title=f"drain: {column.title}, jobs/s") for column in BACKLOGS[:3])
    for name, columns in {
        "enqueue": single,
        "drain": drains,
        "pickup": latencies,
        "paced": paced,
        "backlogs": backlogs,
    }.items():
        _bars(results, columns, path.with_name(f"{path.stem}-{name}.png"))
    _churn(results, path.with_name(f"{path.stem}-churn.png"))


def _bars(results: Results, columns: Sequence[Column], path: Path) -> None:
    """One panel a metric, the best on top; whiskers are the range of the rounds."""
    columns = [
        column for column in columns if any(results.of(name, column.metric) for name in results.systems)
    ]
    if not columns:
        return
    rows = -(-len(columns) // 2) if len(columns) > 3 else 1
    across = -(-len(columns) // rows)
    figure, axes = plt.subplots(rows, across, figsize=(5.4 * across, 4.4 * rows), squeeze=False)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    for axis, column in zip(axes.flat, columns, strict=False):
        _panel(axis, results, column)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axis: Axes, results: Results, column: Column) -> None:
    medians = {
        name: value for name in results.systems if (value := results.median(name, column.metric)) is not None
    }
    names = sorted(medians, key=lambda name: medians[name], reverse=column.less_is_better)
    values = [medians[name] for name in names]
    least = [medians[name] - min(results.of(name, column.metric)) for name in names]
    most = [max(results.of(name, column.metric)) - medians[name] for name in names]
    axis.barh(
        names, values, xerr=[least, most], color=[_color(name) for name in names], ecolor="#94a3b8", capsize=2
    )
    if max(values) > 50 * max(min(values), 1e-9):
        axis.set_xscale("log")
    for place, value in enumerate(values):
        axis.annotate(f" {shown(value)}", (value, place), va="bottom", fontsize=7)
    floor = results.median(FLOOR, column.metric)
    if floor is not None and column.metric.startswith("enqueue"):
        axis.axvline(floor, color="#0f766e", linestyle=":", label=f"bare table, {shown(floor)}")
        axis.legend(fontsize=7, loc="lower right")
    axis.set_title(column.title, fontsize=10)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _churn(results: Results, path: Path) -> None:
    """Rates cycle by cycle relative to the first free one: whole without, dashed under the old snapshot."""
    cycles = range(1, CYCLES + 1)
    names = [name for name in results.systems if results.of(name, "churn_free_cycle1")]
    if not names:
        return
    across = min(4, len(names))
    rows = -(-len(names) // across)
    figure, axes = plt.subplots(rows, across, figsize=(3.6 * across, 2.8 * rows), squeeze=False, sharey=True)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        first = results.median(name, "churn_free_cycle1") or 1.0
        for kind, style in (("free", "-"), ("pinned", "--")):
            rates = [results.median(name, f"churn_{kind}_cycle{cycle}") for cycle in cycles]
            relative = [rate / first if rate is not None else None for rate in rates]
            axis.plot(cycles, relative, style, color=_color(name), marker="o", markersize=3, label=kind)
        axis.set_title(f"{name} (1 = {shown(first)} jobs/s)", fontsize=9)
        axis.set_xticks(cycles)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    # The panels share the axis, which each line may still have moved.
    axes.flat[0].set_ylim(bottom=0)
    axes.flat[0].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _color(name: str) -> str:
    if name.startswith(US):
        return _OURS
    return _PEER if SYSTEMS[name].store == "postgres" else _OUTSIDE


if __name__ == "__main__":
    main(Path(sys.argv[1]))
