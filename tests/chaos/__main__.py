"""``python -m tests.chaos --minutes 10 --seed N``: faults of every kind under load, and the account.

The replicas are real processes on a bundled PostgreSQL (fsync on), and so are the clients. All choices (who
is struck and when, what is sent) follow from the seed; how the operating system interleaves them does not. A
killed process loses its memory, not the page cache of the machine: this shows recovery, not what a disk does
when the power fails.

    campaign, scenarios, stage     what happens when; database_faults and network are two kinds of it
    grounds, fleet, tether         replicas, PostgreSQL and client processes; they end with this one
    crew, producer, worker, caller the clients
    programs, witness, scripts     workers of clients/, the proxy that writes for them, and their jobs
    history                        what they write down
    facts, checker, *_rules        the judge: reads a history, knows nothing of the fleet
    measures, report               times of trouble, and the table
    tale, *_stories, model_service histories made by hand and by chance, against which the judge is tested
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import click

from tests.chaos.campaign import ALL, Plan, draw_seed, run
from tests.chaos.fleet import FleetError


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long faults are injected, in all.")
@click.option("--seed", type=int, help="All choices follow from it; without it, one is drawn.")
@click.option("--short", is_flag=True, help="One round of every scenario, as the test does.")
@click.option("--only", multiple=True, type=click.Choice(ALL), help="Run this scenario; may be repeated.")
def main(*, minutes: float, seed: int | None, short: bool, only: tuple[str, ...]) -> None:
    """Run the scenarios; exit code 1 when anything was broken."""
    plan = Plan(
        seed=draw_seed() if seed is None else seed,
        seconds=0 if short else minutes * 60,
        is_short=short,
        names=only or ALL,
    )
    folder = Path(tempfile.mkdtemp(prefix="fencepost-chaos-"))
    click.echo(f"seed {plan.seed}, in {folder}")
    try:
        report = asyncio.run(run(plan, folder=folder, say=click.echo))
    except FleetError as error:
        raise click.ClickException(f"{error}; the histories are in {folder}") from error
    for line in report.lines():
        click.echo(line)
    if not report.is_good or (report.skipped and must_not_skip()):
        raise SystemExit(1)
    shutil.rmtree(folder)


def must_not_skip() -> bool:
    """Whether a scenario that cannot be run here is a failure: in CI, as root, all can."""
    return os.environ.get("CI") == "true" and os.geteuid() == 0


if __name__ == "__main__":
    main()
