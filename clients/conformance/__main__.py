"""``python -m clients.conformance``: all cases with all declared adapters, and the table."""

import asyncio
import os
import shlex
from pathlib import Path

import click

from clients.conformance import adapters as declarations
from clients.conformance import report, suite
from clients.conformance.adapters import Adapter, BuildError
from clients.conformance.case import Case, load
from clients.conformance.stage import Verdict


@click.command()
@click.option("--client", "names", multiple=True, help="Only this declared client; may be repeated.")
@click.option("--run", "command", help="A command in this folder is the only adapter, declared or not.")
@click.option("--cannot", multiple=True, help="What the client of --run does not offer; may be repeated.")
@click.option(
    "--case", "wanted", multiple=True, help="Only cases whose name has this in it; may be repeated."
)
@click.option(
    "--at-once", default=suite.AT_ONCE, show_default=True, help="How many cases run at the same time."
)
@click.option("--no-build", is_flag=True, help="The adapters are built already.")
@click.option("--list", "is_list", is_flag=True, help="Only say what each case demands.")
def main(
    *,
    names: tuple[str, ...],
    command: str | None,
    cannot: tuple[str, ...],
    wanted: tuple[str, ...],
    at_once: int,
    no_build: bool,
    is_list: bool,
) -> None:
    """Run the cases; exit code 1 when one of them failed twice, or in CI when a client could not be run."""
    cases = [case for case in load() if not wanted or any(part in case.name for part in wanted)]
    if is_list:
        _list(cases)
        return
    if command is not None:
        clients = [Adapter("client", shlex.split(command), cannot=frozenset(cannot), folder=Path.cwd())]
    else:
        clients = [client for client in declarations.declared() if not names or client.name in names]
    ready = [client for client in clients if _is_ready(client, build=not no_build)]
    if not ready or not cases:
        raise click.ClickException("there is no client, or no case, of that name")
    doubtful: list[Verdict] = []
    verdicts = asyncio.run(
        suite.run_twice(
            suite.pairs_of(cases, ready),
            at_once=at_once,
            say=lambda verdict: click.echo("." if verdict.passed else "F", nl=False),
            doubt=doubtful.append,
        )
    )
    click.echo()
    for verdict in doubtful:
        click.echo("\n".join([*report.story(verdict), "  It passed when it was played again, alone.", ""]))
    for verdict in verdicts:
        if not verdict.passed:
            click.echo("\n".join([*report.story(verdict), ""]))
    click.echo("\n".join(report.table(cases, ready, verdicts)))
    if any(not verdict.passed for verdict in verdicts) or (
        len(ready) < len(clients) and os.environ.get("CI")
    ):
        raise SystemExit(1)


def _is_ready(client: Adapter, *, build: bool) -> bool:
    if client.missing:
        click.echo(f"{client.name}: skipped, {client.missing} is not installed")
        return False
    if build:
        try:
            client.make()
        except BuildError as error:
            raise click.ClickException(str(error)) from error
    return True


def _list(cases: list[Case]) -> None:
    section = ""
    for case in cases:
        if case.section != section:
            section = case.section
            click.echo(f"\n{section}")
        click.echo(f"  {case.name:<40} {case.says}")


if __name__ == "__main__":
    main()
