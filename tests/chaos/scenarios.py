"""What happens in each scenario: which clients there are, and which faults meet them.

Each runs its round of faults once at least, in an order that follows from the seed, and again until its time
is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from clients.conformance.adapters import Adapter
from tests.chaos.database_faults import DatabaseFaults
from tests.chaos.fleet import POSTGRES, SERVER, Database
from tests.chaos.grounds import Outpost
from tests.chaos.history import now
from tests.chaos.stage import Stage

Fault = Callable[[], Awaitable[object]]


async def mixed_load_with_kills(stage: Stage, database: Database, *, until: float) -> None:
    stage.add_crew(producers=2, workers=3)
    victim = stage.add_crew(producers=1, workers=2)

    async def kill_clients() -> None:
        nonlocal victim
        victim = await stage.kill_crew(victim, producers=1, workers=2)

    kill_database = DatabaseFaults(stage, database).kill
    await _rounds(stage, [stage.kill_replica, kill_database, kill_clients], until=until)


async def rolling_restarts(stage: Stage, *, until: float) -> None:
    stage.add_crew(producers=2, workers=3)
    stage.add_crew(producers=1, workers=2)
    await _rounds(stage, [stage.roll_replicas], until=until)


async def database_trouble(stage: Stage, database: Database, *, until: float) -> None:
    stage.add_crew(producers=2, workers=2)
    stage.add_crew(producers=1, workers=3)
    faults = DatabaseFaults(stage, database)
    kinds = [
        faults.kill,
        faults.stop_for_a_while,
        faults.end_sessions,
        faults.end_listeners,
        faults.lock_table,
    ]
    await _rounds(stage, kinds, until=until)


async def frozen_processes(stage: Stage, *, until: float) -> None:
    stage.add_crew(producers=2, workers=3)
    victims = [stage.add_crew(producers=0, workers=2) for _ in range(2)]

    async def freeze_workers() -> None:
        await stage.freeze_crew(stage.chance.choice(victims))

    await _rounds(stage, [freeze_workers, stage.freeze_replica], until=until)


async def network_cut(stage: Stage, outpost: Outpost, *, until: float) -> None:
    stage.add_crew(producers=2, workers=3)
    stage.add_crew(producers=1, workers=3, entrance=outpost.cable.entrance, replica=outpost.replica)

    async def cut_off() -> None:
        await stage.cut_off(outpost.cable)

    await _rounds(stage, [cut_off], until=until)


async def programs_in_many_languages(stage: Stage, clients: Sequence[Adapter], *, until: float) -> None:
    """Strike the workers of the clients, each of them by chance."""
    stage.add_crew(producers=1, workers=0, is_scripted=True)
    programs = [await stage.add_program(client) for client in clients]

    async def freeze_some() -> None:
        victims = stage.chance.sample(programs, stage.chance.randint(1, len(programs)))
        await asyncio.gather(*(stage.freeze_crew(victim) for victim in victims))

    async def kill_one() -> None:
        await stage.kill_program(stage.chance.choice(programs))

    async def end_one() -> None:
        await stage.end_program(stage.chance.choice(programs))

    await _rounds(stage, [freeze_some, kill_one, end_one, stage.kill_replica], until=until)


async def service_with_its_own_database(stage: Stage, *, until: float) -> None:
    stage.add_crew(producers=2, workers=3)

    async def kill_postgres() -> None:
        await stage.kill_child(POSTGRES)

    async def kill_server() -> None:
        await stage.kill_child(SERVER)

    await _rounds(stage, [kill_postgres, kill_server, stage.kill_replica], until=until)


async def _rounds(stage: Stage, faults: Sequence[Fault], *, until: float) -> None:
    is_first = True
    while is_first or now() < until:
        for fault in stage.chance.sample(faults, len(faults)):
            if is_first or now() < until:
                await _pause(stage)
                await fault()
        is_first = False
    await _pause(stage)


async def _pause(stage: Stage) -> None:
    """Let the load come back, and then go on for a moment."""
    await stage.until_flowing()
    await asyncio.sleep(stage.chance.uniform(0.2, 0.8) if stage.is_short else stage.chance.uniform(1.0, 4.0))
