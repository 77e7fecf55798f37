"""The tables of a results file as Markdown: medians, ranges, and ratios to Fencepost and to the best peer."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.backlogs import CYCLES
from benchmarks.peers.measures import CLIENTS, PACES
from benchmarks.peers.results import FLOOR, Results, read
from benchmarks.peers.systems import SYSTEMS

US = "fencepost"


class Column(NamedTuple):
    """A metric under a heading; of a latency or a cost the least is the best."""

    metric: str
    title: str
    less_is_better: bool = False


THROUGHPUT = (
    *(Column(f"enqueue_c{clients}", f"enqueue, {clients} client{'s'[: clients - 1]}") for clients in CLIENTS),
    Column("bulk", "bulk, 1,000 a call"),
    Column("drain", "drain"),
    Column("drain_handled", "drain to last handler"),
    Column("drain_two_workers", "drain, 2 workers"),
)
PICKUP = (
    *(Column(f"pickup_p{percent}", f"p{percent}", less_is_better=True) for percent in (50, 95, 99)),
    Column("pickup_max", "max", less_is_better=True),
)
PACED = tuple(
    column
    for pace in PACES
    for column in (
        *(
            Column(f"paced_{pace}_p{percent}", f"{pace:,}/s p{percent}", less_is_better=True)
            for percent in (50, 95, 99)
        ),
        Column(f"paced_{pace}_offered", "offered/s"),
    )
)
COST = (
    Column("enqueue_wal", "WAL single enqueue, B", less_is_better=True),
    Column("bulk_wal", "WAL bulk, B", less_is_better=True),
    Column("drain_wal", "WAL drain, B", less_is_better=True),
    Column("job_wal", "WAL bulk + drain, B", less_is_better=True),
    Column("drain_commits", "commits in drain"),
    Column("inserts", "inserts"),
    Column("updates", "updates"),
    Column("hot_share", "HOT share"),
    Column("deletes", "deletes"),
    Column("dead_tuples", "dead after"),
    Column("table_bytes", "table, B"),
    Column("index_bytes", "index, B"),
    Column("drain_worker_cpu", "worker CPU, us"),
    Column("drain_service_cpu", "service CPU, us"),
)
CHURN = tuple(
    Column(f"churn_{name}_cycle{cycle}", f"{name} {cycle}")
    for name in ("free", "pinned")
    for cycle in range(1, CYCLES + 1)
)
CHURN_LEFT = tuple(
    Column(f"churn_{name}_{metric}", f"{name}: {title}", less_is_better=True)
    for name in ("free", "pinned")
    for metric, title in (
        ("dead_tuples", "dead a job"),
        ("table_bytes", "table, B a job"),
        ("index_bytes", "index, B a job"),
        ("hot_share", "HOT share"),
        ("autovacuums", "autovacuums"),
    )
)
BACKLOGS = (
    Column("drain_handled", "empty table"),
    Column("finished_drain", "finished kept"),
    Column("scheduled_drain", "due tomorrow"),
    Column("pending_drain", "all due"),
)


def render(results: Results) -> str:
    """Return the whole report."""
    rows = f"{results.environment.get('options', {}).get('rows', 0):,}"
    parts = [
        "# Fencepost beside other job queues",
        _environment(results),
        "Medians of the rounds, their range in parentheses. Jobs a second unless a heading says otherwise.",
        _section("Throughput", results, THROUGHPUT),
        _ratios("Throughput", results, THROUGHPUT),
        _section("Pick-up latency, ms: enqueue call to handler start, idle worker", results, PICKUP),
        _ratios("Pick-up latency", results, PICKUP),
        _section("End to end at a fixed rate, ms: enqueue call to handler start", results, PACED),
        _section("Cost a job", results, COST, cell=_median),
        _ratios("Cost", results, COST[:4]),
        _section(
            "Rounds of jobs, without and under an old snapshot: jobs/s to the last handler", results, CHURN
        ),
        _section("What these rounds leave in the tables", results, CHURN_LEFT, cell=_median),
        _section(f"Drain to the last handler beside {rows} other jobs", results, BACKLOGS),
        _floor(results),
        _section("Speed of one core while measuring, Msteps/s", results, (Column("core_speed", "speed"),)),
        _errors(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(value: float | None) -> str:
    """Return a number with three digits or so."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _section(
    title: str,
    results: Results,
    columns: Sequence[Column],
    *,
    cell: Callable[[Results, str, str], str] | None = None,
) -> str:
    cell = cell or _spread
    present = [
        column for column in columns if any(results.of(name, column.metric) for name in results.systems)
    ]
    lines = [
        [name, *(cell(results, name, column.metric) for column in present)]
        for name in results.systems
        if any(results.of(name, column.metric) for column in present)
    ]
    if not lines:
        return ""
    return f"## {title}\n\n" + _table(["system", *(column.title for column in present)], lines)


def _ratios(title: str, results: Results, columns: Sequence[Column]) -> str:
    """Each cell: to Fencepost / to the best peer; over 1 is better, for latencies and costs as well."""
    lines = []
    for name in results.systems:
        cells = [
            " / ".join(_ratio(results, name, other, column) for other in (US, _best_peer(results, column)))
            for column in columns
        ]
        if any(results.of(name, column.metric) for column in columns):
            lines.append([name, *cells])
    if not lines:
        return ""
    table = _table(["system", *(column.title for column in columns)], lines)
    return f"### {title}: times as good as Fencepost / as the best peer on PostgreSQL\n\n{table}"


def _ratio(results: Results, name: str, other: str | None, column: Column) -> str:
    value = results.median(name, column.metric)
    reference = results.median(other, column.metric) if other else None
    if not value or not reference:
        return "-"
    return f"{reference / value if column.less_is_better else value / reference:.2f}"


def _best_peer(results: Results, column: Column) -> str | None:
    peers = {
        name: value
        for name in results.systems
        if SYSTEMS[name].store == "postgres"
        and not SYSTEMS[name].is_service
        and (value := results.median(name, column.metric)) is not None
    }
    if not peers:
        return None
    return (min if column.less_is_better else max)(peers, key=lambda name: peers[name])


def _median(results: Results, name: str, metric: str) -> str:
    return shown(results.median(name, metric))


def _spread(results: Results, name: str, metric: str) -> str:
    values = results.of(name, metric)
    if len(values) < 2:
        return _median(results, name, metric)
    return f"{_median(results, name, metric)} ({shown(min(values))} to {shown(max(values))})"


def _floor(results: Results) -> str:
    metrics = [metric for metric in results.values.get(FLOOR, {}) if not metric.endswith("_wal")]
    if not metrics:
        return ""
    lines = [
        [metric, _spread(results, FLOOR, metric), _median(results, FLOOR, f"{metric}_wal")]
        for metric in metrics
    ]
    return "## Floor: pgbench on a bare table\n\n" + _table(["measure", "jobs/s", "WAL, B a job"], lines)


def _environment(results: Results) -> str:
    found = results.environment
    if not found:
        return ""
    machine, postgres = found["machine"], found["postgres"]
    settings = ", ".join(f"`{name} {value}`" for name, value in postgres.items() if name != "server_version")
    options = ", ".join(f"{name} {value}" for name, value in found["options"].items())
    systems = [[name, about["version"], about["settings"]] for name, about in found["systems"].items()]
    hardware = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return "\n\n".join(
        [
            f"{hardware}, Linux {machine['kernel']}. Clients, workers, service and database share them.",
            f"PostgreSQL {postgres['server_version']}: {settings}.",
            *(f"Outside: {version}." for version in found["outside"]),
            f"Run: {options}.",
            _table(["system", "version", "settings"], systems),
        ]
    )


def _errors(results: Results) -> str:
    if not results.errors:
        return ""
    lines = [
        [
            each["system"],
            each["measure"],
            str(each["round"]),
            each["error"].replace("|", "\\|").replace("\n", " "),
        ]
        for each in results.errors
    ]
    return "## What gave no number\n\n" + _table(["system", "measure", "round", "why"], lines)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    numeric = all(cell[:1].isdigit() or cell.startswith("-") for line in lines for cell in line[1:])
    rule = "|---|" + ("---:|" if numeric else "---|") * (len(head) - 1)
    return "\n".join(
        ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)]
    )


if __name__ == "__main__":
    print(render(read([Path(name) for name in sys.argv[1:]])), end="")
