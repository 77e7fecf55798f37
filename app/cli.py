"""The command line: serve, migrate, grant, openapi, expire, doctor, work. The only reader of argv.

An option wins over its environment variable. Exit codes: 0 done, 1 failed or something is wrong, 2 bad
settings or usage; every failure that an operator can mend is one line on stderr.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from app.domain.errors import FencepostError
from app.embedded.binaries import BundledServerError
from app.embedded.child import end_with_parent
from app.embedded.server import BundledServer
from app.embedded.supervisor import Supervisor
from app.logs import configure_logging
from app.main import create_app, migrate, run_doctor, run_expire
from app.processes import ServerProcesses
from app.serving import ServingError, listener_url, open_listener, serve_app
from app.settings import Settings, SettingsError, environment_of_child
from app.store.privileges import grant
from app.work.command import work

_logger = logging.getLogger(__name__)

# What of the ten seconds is left for the database when the server process needed all of its own time.
_DATABASE_STOP_SECONDS = 2.5


class _BadSettings(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """Turns the errors that an operator can mend into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            raise _BadSettings(str(error)) from error
        except (BundledServerError, ServingError, FencepostError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fencepost schedules jobs over HTTP and fences the workers that run them."""


main.add_command(work)

_data_dir_option = click.option(
    "--data-dir", metavar="FOLDER", help="Where the bundled PostgreSQL keeps its data."
)


@main.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 lets the system choose.")
@_data_dir_option
@click.option("--processes", type=int, help="Number of server processes.")
@click.option("--insecure", is_flag=True, help="Listen on other than loopback addresses without API keys.")
def serve(
    *, host: str | None, port: int | None, data_dir: str | None, processes: int | None, insecure: bool
) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT."""
    settings = Settings.from_environment(
        os.environ, host=host, port=port, data_dir=data_dir, processes=processes, insecure=insecure
    )
    settings.refuse_unsafe_serving()
    configure_logging(log_format=settings.log_format, log_level=settings.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_quietly)
    # The listener comes first: a taken port is told before anything else is touched.
    with (
        open_listener(settings.host, settings.port) as listener,
        _supervised_database(settings) as database_url,
    ):
        migrate(settings.listen_url or database_url)
        if settings.processes == 1:
            serve_app(create_app(settings, database_url=database_url), listener)
        else:
            _logger.info("starting %d server processes for %s", settings.processes, listener_url(listener))
            environ = environment_of_child(os.environ, database_url=database_url)
            ServerProcesses(count=settings.processes, listener=listener, environ=environ).run()


@main.command("serve-process", hidden=True)
@click.option("--descriptor", type=int, required=True)
@click.option("--parent", type=int, required=True)
def serve_process(*, descriptor: int, parent: int) -> None:
    """Serve as one of several processes, on a socket that the parent has opened."""
    end_with_parent(parent, signal.SIGTERM)
    settings = Settings.from_environment(os.environ)
    configure_logging(log_format=settings.log_format, log_level=settings.log_level)
    if settings.database_url is None:
        raise SettingsError("serve-process is started by serve, which gives it FENCEPOST_DATABASE_URL")
    with socket.socket(fileno=descriptor) as listener:
        serve_app(create_app(settings, database_url=settings.database_url), listener)


@main.command("migrate")
@_data_dir_option
def migrate_command(data_dir: str | None) -> None:
    """Bring the database to the schema of this version."""
    settings = _settings(data_dir)
    with _database(settings, may_create=True) as database_url:
        migrate(settings.listen_url or database_url)


@main.command("grant")
@click.argument("role")
@_data_dir_option
def grant_command(role: str, data_dir: str | None) -> None:
    """Let a role of the database call the functions for applications."""
    settings = _settings(data_dir)
    with _database(settings) as database_url:
        grant(settings.listen_url or database_url, role)


@main.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def openapi(output: Path | None) -> None:
    """Print the OpenAPI document."""
    # The defaults, whatever the environment says: the document is part of the sources.
    document = create_app(Settings(), database_url="postgresql:///").openapi()
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


@main.command()
@_data_dir_option
def expire(data_dir: str | None) -> None:
    """Run one pass of the reaper and print how many leases it ended."""
    settings = _settings(data_dir)
    with _database(settings) as database_url:
        click.echo(asyncio.run(run_expire(settings, database_url)))


@main.command()
@_data_dir_option
def doctor(data_dir: str | None) -> None:
    """Check that every job is in exactly one state and the counters are sane."""
    settings = _settings(data_dir)
    with _database(settings) as database_url:
        findings = asyncio.run(run_doctor(settings, database_url))
    for finding in findings:
        click.echo(finding)
    if findings:
        raise SystemExit(1)


def _settings(data_dir: str | None) -> Settings:
    settings = Settings.from_environment(os.environ, data_dir=data_dir)
    configure_logging(log_format=settings.log_format, log_level=settings.log_level)
    return settings


@contextlib.contextmanager
def _database(settings: Settings, *, may_create: bool = False) -> Iterator[str]:
    """Give the database URL for one command; a bundled server that this command had to start ends with it.

    A data folder that does not exist is a mistyped one, unless the command may create it.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    if not may_create and not settings.data_dir.exists():
        raise SettingsError(f"there is no data in {settings.data_dir}; name its folder with --data-dir")
    server = BundledServer(settings.data_dir)
    try:
        yield server.start()
    finally:
        if not server.is_adopted:
            server.stop()


@contextlib.contextmanager
def _supervised_database(settings: Settings) -> Iterator[str]:
    """Give the database URL while the service serves; keep the bundled server running, stop it at the end."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    server = BundledServer(settings.data_dir)
    # The signal takes the way of every other end; the supervisor's failure then decides the exit code.
    supervisor = Supervisor(server, on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        database_url = server.start()
        supervisor.start()
        yield database_url
    finally:
        supervisor.stop(timeout_seconds=_DATABASE_STOP_SECONDS)
        if supervisor.failure is not None:
            raise BundledServerError(supervisor.failure)


def _end_quietly(number: int, frame: FrameType | None) -> NoReturn:
    """End a start that is under way; what it has begun is undone by the context managers it passes."""
    del number, frame
    raise SystemExit(0)
