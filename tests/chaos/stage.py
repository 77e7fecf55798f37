"""One scenario's stage: the fleet, its crews, a history, and the faults, each written into the history.

Every fault is a coroutine that strikes, waits, and heals. Which victim and how long follow from the seed.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from clients.conformance.adapters import Adapter
from tests.chaos.crew import Crew
from tests.chaos.fleet import Clients, CrewProcess, Replica, until
from tests.chaos.history import Healed, Log, Struck, now
from tests.chaos.network import Cable
from tests.chaos.programs import Program

# Some calls with their answers.
_FLOW_BYTES = 5_000
FLOW_SECONDS = 120.0


def kill_of(kind: str) -> str:
    """Name the fault that ends a process of this kind."""
    return f"SIGKILL of a {kind}"


class Stage:
    """``is_short`` makes leases, troubles and the pauses between them shorter; no fault is left out."""

    def __init__(
        self,
        *,
        folder: Path,
        replicas: list[Replica],
        name: str,
        seed: str,
        queues: list[str],
        is_short: bool,
    ) -> None:
        self.folder = folder
        self.queues = queues
        self.chance = random.Random(f"{seed} {name}")
        self.is_short = is_short
        self.crews: list[Clients] = []
        self.faults: set[str] = set()
        self._name = name
        self._seed = seed
        self._replicas = replicas
        self._log = Log(folder / "faults.part")
        self._crew_count = 0
        self._lease_seconds = [1.0, 2.0] if is_short else [2.0, 3.0, 4.0]

    def add_crew(
        self,
        *,
        producers: int,
        workers: int,
        entrance: Sequence[str] = (),
        replica: Replica | None = None,
        is_scripted: bool = False,
    ) -> CrewProcess:
        """Start a process of clients that call all replicas, or the one that is given."""
        self._crew_count += 1
        # Marks and keys begin with the name of the crew, and all scenarios share one database.
        name = f"{self._name}.{self._crew_count}"
        crew = Crew(
            name=name,
            seed=self._seed,
            history=str(self.folder / f"{name}.part"),
            replicas={each.name: each.url for each in ([replica] if replica else self._replicas)},
            queues=self.queues,
            lease_seconds=self._lease_seconds,
            producer_count=producers,
            worker_count=workers,
            is_scripted=is_scripted,
        )
        process = CrewProcess(crew, folder=self.folder, entrance=entrance)
        self.crews.append(process)
        return process

    async def add_program(self, adapter: Adapter) -> Program:
        """Start a client's worker, through a witness that calls all replicas."""
        program = Program(
            adapter,
            folder=self.folder,
            replicas={each.name: each.url for each in self._replicas},
            queues=self.queues,
            lease_seconds=max(self._lease_seconds),
        )
        await program.open()
        self.crews.append(program)
        return program

    @asynccontextmanager
    async def strike(self, fault: str, target: str = "") -> AsyncIterator[None]:
        """Write down when a fault begins and when it is over."""
        self.faults.add(fault)
        self._log.write(Struck(now(), fault, target))
        try:
            yield
        finally:
            self._log.write(Healed(now(), fault, target))

    async def until_flowing(self) -> None:
        """Return when every crew has gone on writing its history for a while."""
        seen = {crew: crew.history_bytes() for crew in self.crews}

        async def is_flowing() -> bool | None:
            return all(crew.history_bytes() - seen[crew] >= _FLOW_BYTES for crew in self.crews) or None

        await until(is_flowing, seconds=FLOW_SECONDS, what="all clients to be answered again")

    # Of the replicas.

    async def kill_replica(self) -> None:
        replica = self.chance.choice(self._replicas)
        async with self.strike("SIGKILL of a replica", replica.name):
            replica.kill()
            await replica.until_ready()

    async def freeze_replica(self) -> None:
        replica = self.chance.choice(self._replicas)
        async with self.strike("SIGSTOP of a replica", replica.name):
            replica.freeze()
            try:
                await asyncio.sleep(self._longer_than_a_lease())
            finally:
                replica.thaw()

    async def kill_child(self, kind: str) -> None:
        """Kill a process that the service keeps running by itself: its PostgreSQL, or one of its servers."""
        (service,) = self._replicas

        async def find() -> list[int] | None:
            return service.children(kind) or None

        pids = await until(find, seconds=FLOW_SECONDS, what=f"a {kind}")
        async with self.strike(kill_of(kind), service.name):
            os.kill(self.chance.choice(pids), signal.SIGKILL)
            await service.until_ready()

    async def roll_replicas(self) -> None:
        """Restart one after the other by SIGTERM, as a deployment does."""
        for replica in self._replicas:
            async with self.strike("SIGTERM of a replica", replica.name):
                await replica.end()
                replica.start()
                await replica.until_ready()

    # Of the clients.

    async def kill_crew(self, victim: CrewProcess, *, producers: int, workers: int) -> CrewProcess:
        """Kill a process of clients; another takes its place, knowing nothing. Returns that one."""
        async with self.strike("SIGKILL of clients", victim.name):
            victim.kill()
            self.crews.remove(victim)
            return self.add_crew(producers=producers, workers=workers)

    async def kill_program(self, victim: Program) -> None:
        async with self.strike("SIGKILL of a program", victim.name):
            victim.kill()
            victim.start()

    async def end_program(self, victim: Program) -> None:
        """End it in order, as a deployment does, and start it again."""
        async with self.strike("SIGTERM of a program", victim.name):
            await victim.end()
            victim.start()

    async def freeze_crew(self, victim: Clients) -> None:
        async with self.strike("SIGSTOP of workers", victim.name):
            victim.freeze()
            try:
                await asyncio.sleep(self._longer_than_a_lease())
            finally:
                victim.thaw()

    async def cut_off(self, cable: Cable) -> None:
        async with self.strike("network cut", cable.device):
            cable.pull()
            await asyncio.sleep(self._longer_than_a_lease())
            cable.plug_in()

    def _longer_than_a_lease(self) -> float:
        return max(self._lease_seconds) + self.chance.uniform(0.5, 2.0)

    def close(self) -> None:
        self._log.close()
