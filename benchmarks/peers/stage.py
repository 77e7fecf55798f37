"""Runs one operation of one system on a database that was made for it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from benchmarks.peers.databases import Databases, wait_until_empty
from benchmarks.peers.installs import Installs
from benchmarks.peers.processes import AdapterProcess, Service, running_service
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import System

BATCH = 1000
_START_SECONDS = 60
_SETTLE_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured; `jobs` of a drain, `rows` of a backlog, `seconds` that one operation may take."""

    jobs: int
    rows: int
    paced_seconds: int
    seconds: float = 180

    def enqueued(self, clients: int) -> int:
        """Return how many jobs are enqueued one by one: enough for a second or more."""
        return self.jobs // 10 if clients == 1 else self.jobs * 3 // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A system with a place of its own: what adapters connect to, and the database behind it.

    Outside PostgreSQL there is no database; `service` is the Fencepost that serves this one.
    """

    system: System
    url: str
    conf: Mapping[str, Any]
    pickup_conf: Mapping[str, Any]
    paced_conf: Mapping[str, Any]
    database: str | None
    database_url: str
    service: Service | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Seconds from the worker's start to the last job finished and to the last handler; processor time."""

    seconds: float
    handled_seconds: float
    worker_cpu_seconds: float
    service_cpu_seconds: float


class Stage:
    """What all measurements share: servers, installed systems, the log, and how much is measured.

    `processes` are the server processes of Fencepost.
    """

    def __init__(
        self,
        *,
        databases: Databases,
        servers: Servers,
        installs: Installs,
        sizes: Sizes,
        log: IO[str],
        processes: int,
    ) -> None:
        self.databases = databases
        self.sizes = sizes
        self._servers = servers
        self._installs = installs
        self._log = log
        self._processes = processes

    def prepare(self, system: System) -> None:
        """Make the template that every database of the system is copied from."""
        self._installs.install(system.runtime)
        if system.store != "postgres":
            return
        url = self.databases.create(_template(system))
        if system.is_service:
            # The first start migrates.
            with running_service(url, processes=1, log=self._log):
                return
        self._run(system, "setup", url=url, conf=system.conf)

    def clean_up(self, system: System) -> None:
        """Drop the template."""
        if system.store == "postgres":
            self.databases.drop(_template(system))

    @contextmanager
    def fresh(self, system: System, name: str = "run") -> Iterator[Target]:
        """Give the system an empty place of its own, which goes away afterwards."""
        if system.store != "postgres":
            url = self._servers.redis_url if system.store == "redis" else self._servers.beanstalkd_url
            assert url is not None
            self._run(system, "setup", url=url, conf=system.conf)
            yield self._target(system, url)
            return
        database = f"{system.name}_{name}"
        database_url = self.databases.create(database, template=_template(system))
        try:
            if not system.is_service:
                yield self._target(system, database_url, database)
                return
            with running_service(database_url, processes=self._processes, log=self._log) as service:
                yield self._target(system, service.url, database, service)
        finally:
            self.databases.drop(database)

    def _target(
        self, system: System, url: str, database: str | None = None, service: Service | None = None
    ) -> Target:
        pickup_conf = {**system.conf, **(system.pickup_conf or {})}
        return Target(
            system=system,
            url=url,
            conf=system.conf,
            pickup_conf=pickup_conf,
            paced_conf={**pickup_conf, **(system.paced_conf or {})},
            database=database,
            database_url=self.databases.url(database) if database else "",
            service=service,
        )

    def call(
        self, target: Target, operation: str, *, seconds: float | None = None, **arguments: int
    ) -> float:
        """Run an operation of a producer and return jobs a second."""
        result = self._run(
            target.system, operation, url=target.url, conf=target.conf, seconds=seconds, **arguments
        )
        return float(result["n"] / result["seconds"])

    def fill(
        self, target: Target, n: int, *, delay_seconds: int = 0, seconds: float | None = None
    ) -> float | None:
        """Enqueue n jobs by the bulk call and return jobs a second, None for a system without such a call."""
        if not target.system.has_bulk:
            # The operation warms up with one job, which counts as well.
            self.call(target, "enqueue", n=n - 1, clients=1)
            return None
        return self.call(target, "bulk", n=n, batch=BATCH, delay_seconds=delay_seconds, seconds=seconds)

    def drain(
        self,
        target: Target,
        n: int,
        *,
        ever: int | None = None,
        until_empty: bool = True,
        workers: int = 1,
        seconds: float | None = None,
    ) -> Drain:
        """Let workers run n jobs; `ever` is how many there have been (default n).

        Without until_empty jobs may be left over, and both spans end with the last handler.
        """
        limit = seconds or self.sizes.seconds
        service_before = target.service.cpu_seconds() if target.service else 0.0
        unfinished = target.system.unfinished if until_empty else None
        with self._workers(target, "drain", count=workers, conf=target.conf, n=n) as running:
            started_at = min(worker.wait("START", seconds=_START_SECONDS)["at"] for worker in running)
            # Of several workers none runs all the handlers.
            handled_at = running[0].wait("HANDLED", seconds=limit)["at"] if workers == 1 else None
            finished_at = handled_at
            if unfinished is not None:
                query = unfinished.replace("{n}", str(ever or n))
                finished_at = wait_until_empty(
                    target.database_url,
                    query,
                    seconds=limit,
                    look_seconds=0.005 if workers == 1 else 0.05,
                    ensure_worked_on=running[0].ensure_alive,
                )
            worker_cpu = sum(worker.cpu_seconds() for worker in running)
            service_cpu = (target.service.cpu_seconds() if target.service else 0.0) - service_before
        assert finished_at is not None
        return Drain(
            (finished_at - started_at) / 1e9,
            ((handled_at or finished_at) - started_at) / 1e9,
            worker_cpu,
            service_cpu,
        )

    def latencies(
        self, target: Target, *, conf: Mapping[str, Any], n: int, per_second: int, clients: int
    ) -> tuple[list[float], float]:
        """Return milliseconds from enqueue call to handler start of n jobs, and the pace that was kept."""
        with self._workers(target, "watch", count=1, conf=conf, n=n) as (worker,):
            worker.wait("READY", seconds=_START_SECONDS)
            # Its connections are open; its first look at the queue may still be under way.
            time.sleep(_SETTLE_SECONDS)
            producer = self._start(
                target.system,
                "pace",
                url=target.url,
                conf=conf,
                n=n,
                per_second=per_second,
                clients=clients,
            )
            try:
                pace = producer.wait("RESULT", seconds=self.sizes.seconds)
                found = worker.wait("WATCHED", seconds=self.sizes.seconds)
            finally:
                producer.stop()
        return found["milliseconds"], pace["n"] / pace["seconds"]

    def _run(
        self,
        system: System,
        operation: str,
        *,
        url: str,
        conf: Mapping[str, Any],
        seconds: float | None = None,
        **arguments: int,
    ) -> dict[str, Any]:
        adapter = self._start(system, operation, url=url, conf=conf, **arguments)
        try:
            return adapter.wait("RESULT", seconds=seconds or self.sizes.seconds)
        finally:
            adapter.stop()

    @contextmanager
    def _workers(
        self, target: Target, operation: str, *, count: int, conf: Mapping[str, Any], n: int
    ) -> Iterator[list[AdapterProcess]]:
        running = [
            self._start(target.system, operation, url=target.url, conf=conf, n=n) for _ in range(count)
        ]
        try:
            yield running
        finally:
            for worker in running:
                worker.stop()

    def _start(
        self, system: System, operation: str, *, url: str, conf: Mapping[str, Any], **arguments: int
    ) -> AdapterProcess:
        launch = self._installs.launch(system)
        return AdapterProcess(launch, operation, arguments=arguments, url=url, conf=conf, log=self._log)


def _template(system: System) -> str:
    return f"{system.name}_template"
