"""The command line: install, start the servers, measure in rounds, write the report."""

import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.peers import report
from benchmarks.peers.databases import Databases
from benchmarks.peers.installs import Installs, NotInstalled
from benchmarks.peers.processes import AdapterFailed
from benchmarks.peers.results import Writer, read
from benchmarks.peers.rounds import DEFAULT, MEASURES, run_rounds
from benchmarks.peers.servers import Servers, outside_versions, running_servers
from benchmarks.peers.stage import Sizes, Stage
from benchmarks.peers.systems import SHORT, SYSTEMS, System

_HERE = Path(__file__).resolve().parent
_POSTGRES_BIN = "/usr/lib/postgresql/15/bin"


@click.command()
@click.option("--peers", default="all", show_default=True, help="all, short, or names with commas between.")
@click.option(
    "--measures", default=",".join(DEFAULT), show_default=True, help=f"Of floor,{','.join(MEASURES)}."
)
@click.option("--rounds", default=3, show_default=True, help="Interleaved rounds; the medians are over them.")
@click.option("--heavy-rounds", default=1, show_default=True, help="Rounds of churn and of the backlogs.")
@click.option("--jobs", default=20_000, show_default=True, help="Jobs of a drain.")
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of a backlog.")
@click.option("--paced-seconds", default=5, show_default=True, help="Seconds at each fixed rate.")
@click.option("--processes", default=1, show_default=True, help="Server processes of Fencepost.")
@click.option("--database-url", help="A PostgreSQL to use, as superuser; by default a new one is started.")
@click.option("--postgres-bin", default=_POSTGRES_BIN, show_default=True, type=click.Path(path_type=Path))
@click.option(
    "--home",
    envvar="PEERBENCH_HOME",
    default=Path(tempfile.gettempdir()) / "fencepost-peers",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the systems are installed.",
)
@click.option(
    "--output",
    default=_HERE / "results" / "latest.jsonl",
    type=click.Path(path_type=Path),
    help="Results file; the report and the plots are written beside it.",
)
def main(
    *,
    peers: str,
    measures: str,
    rounds: int,
    heavy_rounds: int,
    jobs: int,
    rows: int,
    paced_seconds: int,
    processes: int,
    database_url: str | None,
    postgres_bin: Path,
    home: Path,
    output: Path,
) -> None:
    """Measure Fencepost beside other job queues, in interleaved rounds on one PostgreSQL."""
    # An end from outside takes the way of every other: what was started is stopped.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    chosen, measured = _chosen_systems(peers), _chosen_measures(measures)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o755)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    installs, writer = Installs(home), Writer(output)
    try:
        # The report's pictures need it, whoever is measured.
        installs.install("python")
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    with (
        (home / "log.txt").open("a") as log,
        running_servers(home, postgres_bin=postgres_bin, postgres_url=database_url) as servers,
    ):
        databases = Databases(servers.postgres_url)
        stage = Stage(
            databases=databases,
            servers=servers,
            installs=installs,
            sizes=Sizes(jobs=jobs, rows=rows, paced_seconds=paced_seconds),
            log=log,
            processes=processes,
        )
        present = [system for system in chosen if _prepare(stage, servers, system)]
        options = {"processes": processes, "jobs": jobs, "rows": rows, "rounds": rounds}
        writer.environment(_environment(databases, installs, present, options))
        run_rounds(
            stage,
            present,
            measured=measured,
            rounds=rounds,
            heavy_rounds=heavy_rounds,
            pgbench=postgres_bin / "pgbench",
            writer=writer,
        )
        for system in present:
            stage.clean_up(system)
        databases.close()
    output.with_suffix(".md").write_text(report.render(read([output])))
    subprocess.run([str(installs.python), "-m", "benchmarks.peers.plots", str(output)], check=True)
    click.echo(f"results in {output}, tables in {output.with_suffix('.md')}", err=True)


def _chosen_systems(text: str) -> list[System]:
    names = {"all": tuple(SYSTEMS), "short": SHORT}.get(text, tuple(text.split(",")))
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(SYSTEMS)}")
    return [SYSTEMS[name] for name in names]


def _chosen_measures(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name != "floor" and name not in MEASURES]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: not one of floor, {', '.join(MEASURES)}")
    return names


def _prepare(stage: Stage, servers: Servers, system: System) -> bool:
    """Return whether the system can be measured here; the reason why not is printed."""
    missing = {"redis": servers.redis_url is None, "beanstalkd": servers.beanstalkd_url is None}
    if missing.get(system.store, False):
        click.echo(f"{system.name} is left out: {system.store} is not installed", err=True)
        return False
    try:
        stage.prepare(system)
    except (NotInstalled, AdapterFailed) as error:
        click.echo(f"{system.name} is left out: {error}", err=True)
        return False
    return True


def _environment(
    databases: Databases, installs: Installs, systems: Sequence[System], options: dict[str, Any]
) -> dict[str, Any]:
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "kernel": platform.release(),
        },
        "options": options,
        "postgres": databases.settings(),
        "outside": outside_versions(),
        "systems": {
            system.name: {"version": installs.version(system), "settings": system.settings}
            for system in systems
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
