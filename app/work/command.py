"""``fencepost work`` on the command line.

Serving must not load the client, nor working the service: what takes time to import is imported inside, and
``app.__main__`` comes here past ``app.cli``.
"""

import math
import os
from typing import Any

import click

from app.logs import configure_logging
from app.settings import Settings, SettingsError


class _BadUsage(click.ClickException):
    exit_code = 2


class _Seconds(click.FloatRange):
    """A range that NaN does not fit into, though it is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-q", "--queue", "queues", metavar="NAME", multiple=True, required=True, help="A queue to serve."
)
@click.option("-c", "--concurrency", type=click.IntRange(1, 1_000), default=1, help="Commands at once.")
@click.option("--url", envvar="FENCEPOST_URL", default="http://127.0.0.1:8000", help="The service.")
@click.option(
    "--lease-seconds",
    type=_Seconds(1, 3_600),
    default=60.0,
    help="A dead worker keeps its jobs so long.",
)
@click.option("--wait-seconds", type=_Seconds(0, 30), default=20.0, help="A call waits so long for work.")
@click.option(
    "--drain-seconds",
    type=_Seconds(0, 86_400),
    default=20.0,
    help="Commands may go on so long after SIGTERM.",
)
@click.option(
    "--grace-seconds",
    type=_Seconds(0, 86_400),
    default=5.0,
    help="Between SIGTERM and SIGKILL of a command.",
)
@click.option(
    "--release-delay-seconds",
    type=_Seconds(0, 31_536_000),
    default=10.0,
    help="The delay of a release.",
)
@click.option("--worker-id", metavar="NAME", help="The name that leases are under.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def work(**options: Any) -> None:
    """Run a command for each job of some queues, until SIGTERM or SIGINT."""
    from app.work.runner import BadOption, WorkError, WorkOptions, run_worker  # noqa: PLC0415

    try:
        settings = Settings.from_environment(os.environ)
        configure_logging(log_format=settings.log_format, log_level=settings.log_level)
        run_worker(WorkOptions(api_key=os.environ.get("FENCEPOST_CLIENT_KEY"), **options), os.environ)
    except (SettingsError, BadOption) as error:
        raise _BadUsage(str(error)) from error
    except WorkError as error:
        raise click.ClickException(str(error)) from error
