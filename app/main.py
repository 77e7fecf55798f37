"""The composition root: what is built of what, in which order it starts and ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from app.api import handlers, health, holders, jobs, leases, openapi
from app.api.application import Application
from app.api.callers import Keyring
from app.api.dispatch import Dispatcher
from app.api.middleware import Authentication, RequestIds
from app.api.requests import Limits
from app.api.service import make_service
from app.background.listener import Listener
from app.background.loops import Loops
from app.deadlines import DEADLINES, Deadlines
from app.domain.caller import Caller
from app.domain.retention import Retention
from app.operations.context import Context
from app.operations.expire import expire_leases
from app.operations.polls import Polls
from app.operations.upkeep import examine
from app.settings import Settings
from app.store import schema
from app.store.engine import Database

# What is left of the ten seconds of an end when slow answers have used up theirs, the database's share apart.
SETTLE_SECONDS = 1.0

ROUTES = (jobs.routes, leases.routes, holders.routes, health.routes)

DESCRIPTION = """\
Jobs arrive by POST; workers lease them and show the **lease_version** of their lease, the fencing token,
with everything they do. A worker that has lost its lease is refused everywhere.
"""


def create_app(
    settings: Settings,
    *,
    database_url: str,
    max_coalesced_items: int = 500,
    deadlines: Deadlines = DEADLINES,
) -> Application:
    """Return the application; its lifespan opens the pool and starts the background loops.

    The schema must be at its head. ``max_coalesced_items`` 1 turns coalescing off.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = Database(database_url, pool_size=settings.pool_size)
        loops = Loops(reaper_interval_seconds=settings.reaper_interval_seconds)
        context = Context(database, _retention(settings), loops)
        polls = Polls(context, announce_parked=loops.wakeups.announce_parked)
        listener = Listener(settings.listen_url or database_url, loops.wakeups)
        try:
            await loops.start(context, polls, listener)
            app.state.service = make_service(
                context,
                limits=_limits(settings, body_seconds=deadlines.body_seconds),
                polls=polls,
                finishes=loops.finishes,
                clock=loops.clock,
                loops=loops.loops,
                schema_version=schema.head(),
                max_coalesced_items=max_coalesced_items,
            )
            yield
            app.state.service.drain()
            await polls.settled(timeout_seconds=SETTLE_SECONDS)
        finally:
            await loops.stop()
            await database.close()

    app = describe_app(lifespan=lifespan)
    app.state.deadlines = deadlines
    app.door = Dispatcher(ROUTES, otherwise=app.behind_the_door)
    if settings.api_keys:
        app.door = Authentication(app.door, keyring=_keyring(settings), open_paths=_open_paths())
    # Around everything else, so that every answer has its request id.
    app.door = RequestIds(app.door)
    handlers.install(app)
    return app


def describe_app(*, lifespan: object = None) -> Application:
    """Return the routes with their document, without anything behind them."""
    app = Application(
        title="Fencepost",
        version=version("fencepost"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    for routes in ROUTES:
        routes.install(app)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]  # FastAPI documents this override
    return app


def migrate(database_url: str) -> None:
    """Bring the schema to its head; safe when many replicas do it at once."""
    schema.migrate(database_url)


async def run_expire(settings: Settings, database_url: str) -> int:
    """Run one reaper pass; return how many leases were ended."""
    async with _offline(settings, database_url) as context:
        return await expire_leases(context)


async def run_doctor(settings: Settings, database_url: str) -> list[str]:
    """Return one sentence for each job that breaks an invariant of the schema."""
    async with _offline(settings, database_url) as context:
        return await examine(context)


@asynccontextmanager
async def _offline(settings: Settings, database_url: str) -> AsyncIterator[Context]:
    """Open what a verb needs, for one command: nobody waits, so nobody is told."""
    database = Database(database_url, pool_size=1)
    loops = Loops(reaper_interval_seconds=settings.reaper_interval_seconds)
    try:
        yield Context(database, _retention(settings), loops)
    finally:
        await database.close()


def _keyring(settings: Settings) -> Keyring:
    return Keyring((key.secret, Caller(key.name, key.scopes)) for key in settings.api_keys)


def _open_paths() -> list[str]:
    return [endpoint.path for routes in ROUTES for endpoint in routes.endpoints if endpoint.scopes is None]


def _retention(settings: Settings) -> Retention:
    return Retention(
        finished_seconds=settings.retention_seconds,
        dead_seconds=settings.dead_retention_seconds,
        idempotency_seconds=settings.idempotency_ttl_seconds,
    )


def _limits(settings: Settings, *, body_seconds: float) -> Limits:
    return Limits(
        max_payload_bytes=settings.max_payload_bytes,
        max_result_bytes=settings.max_result_bytes,
        max_checkpoint_bytes=settings.max_checkpoint_bytes,
        max_metadata_bytes=settings.max_metadata_bytes,
        max_body_bytes=settings.max_body_bytes,
        max_batch_body_bytes=settings.max_batch_body_bytes,
        max_batch_items=settings.max_batch_items,
        body_seconds=body_seconds,
    )
