"""Runs the scenarios one after the other on one fleet; each ends with a drain, and its history is judged."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from app.main import run_doctor
from app.settings import Settings
from clients.conformance.adapters import Adapter, declared
from tests.chaos import database_faults, scenarios
from tests.chaos.checker import check
from tests.chaos.facts import TERMINAL, gather
from tests.chaos.fleet import POSTGRES, READY_SECONDS, until
from tests.chaos.grounds import Ground, SharedGround, replicas_on_one_database, service_with_its_own_database
from tests.chaos.history import Json, Listed, Log, merge, now
from tests.chaos.measures import measure
from tests.chaos.report import Outcome, Report
from tests.chaos.stage import Stage, kill_of

KILLS = "mixed load with kills"
ROLLING = "rolling restarts"
DATABASE_TROUBLE = "database trouble"
FREEZES = "frozen processes"
NETWORK_CUT = "network cut"
PROGRAMS = "programs in many languages"
OWN_DATABASE = "service with its own database"
SHARED = (KILLS, ROLLING, DATABASE_TROUBLE, FREEZES, NETWORK_CUT, PROGRAMS)
ALL = (*SHARED, OWN_DATABASE)

# What takes the database away; the answers meanwhile are measured.
TROUBLE = (*database_faults.ALL, kill_of(POSTGRES))
UNFINISHED = ("scheduled", "ready", "running")
_STATES = (*UNFINISHED, *sorted(TERMINAL))
# A job moves while it is looked for. Against its way, once more where it began, and all of it twice: one that
# fails and waits would have to be out of sight each time.
_LOOKS = ("running", "ready", "scheduled", "running") * 2
_DRAIN_SECONDS = 120.0
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds`` of faults in all; a scenario that is not done with its first round takes longer.

    ``names`` are the scenarios that are run.
    """

    seed: int
    seconds: float = 0.0
    is_short: bool = False
    names: Sequence[str] = ALL

    def includes(self, *names: str) -> bool:
        """Whether any of these scenarios is run."""
        return not set(names).isdisjoint(self.names)


def draw_seed() -> int:
    return random.SystemRandom().randrange(10**6)


_Scenario = Callable[..., Awaitable[None]]


async def run(plan: Plan, *, folder: Path, say: Callable[[str], None]) -> Report:
    """Run the whole campaign; histories of scenarios that broke something stay in folder."""
    report = Report(plan.seed)
    if plan.includes(*SHARED):
        async with replicas_on_one_database(folder, report.complaints) as ground:
            if plan.includes(NETWORK_CUT):
                report.skipped += ground.skipped
            clients = _clients(report) if plan.includes(PROGRAMS) else []
            for name, scenario in _scenarios(ground, clients).items():
                if plan.includes(name):
                    outcome = await _run_scenario(name, scenario, plan, ground, folder=folder, say=say)
                    report.outcomes.append(outcome)
    if plan.includes(OWN_DATABASE):
        async with service_with_its_own_database(folder, report.complaints) as ground:
            scenario = scenarios.service_with_its_own_database
            outcome = await _run_scenario(OWN_DATABASE, scenario, plan, ground, folder=folder, say=say)
            report.outcomes.append(outcome)
    return report


def _clients(report: Report) -> list[Adapter]:
    """Build the clients, and return them; one whose tools are not here is skipped."""
    built: list[Adapter] = []
    for adapter in declared():
        if adapter.missing:
            report.skipped.append(f"{adapter.name}: there is no {adapter.missing}")
        else:
            adapter.make()
            built.append(adapter)
    return built


def _scenarios(ground: SharedGround, clients: Sequence[Adapter]) -> dict[str, _Scenario]:
    found: dict[str, _Scenario] = {
        KILLS: partial(scenarios.mixed_load_with_kills, database=ground.database),
        ROLLING: scenarios.rolling_restarts,
        DATABASE_TROUBLE: partial(scenarios.database_trouble, database=ground.database),
        FREEZES: scenarios.frozen_processes,
    }
    if clients:
        found[PROGRAMS] = partial(scenarios.programs_in_many_languages, clients=clients)
    if ground.outpost is not None:
        found[NETWORK_CUT] = partial(scenarios.network_cut, outpost=ground.outpost)
    return found


async def _run_scenario(
    name: str, scenario: _Scenario, plan: Plan, ground: Ground, *, folder: Path, say: Callable[[str], None]
) -> Outcome:
    began = now()
    slug = name.replace(" ", "-")
    scene = folder / slug
    scene.mkdir()
    stage = Stage(
        folder=scene,
        replicas=ground.replicas,
        name=slug,
        seed=str(plan.seed),
        # The workers of all languages are rivals for every job.
        queues=[f"{slug}-1"] if name == PROGRAMS else [f"{slug}-1", f"{slug}-2"],
        is_short=plan.is_short,
    )
    try:
        await scenario(stage, until=now() + plan.seconds / len(plan.names))
        await _come_to_rest(stage, ground, lists=scene / "lists.part")
    finally:
        for crew in stage.crews:
            await crew.close()
        stage.close()
    history = scene / "history.jsonl"
    events = merge(scene.glob("*.part"), history)
    is_trouble = not stage.faults.isdisjoint(TROUBLE)
    outcome = Outcome(
        name=name,
        history=history,
        account=check(events),
        doctor_findings=await run_doctor(Settings(), ground.database_url()),
        trouble=measure(events, gather(events), faults=TROUBLE) if is_trouble else None,
    )
    if outcome.is_good:
        shutil.rmtree(scene)
    say(f"{name}: {now() - began:.0f} s, complaints: {len(outcome.complaints)}")
    return outcome


async def _come_to_rest(stage: Stage, ground: Ground, *, lists: Path) -> None:
    """Stop asking for jobs, let every job end, and write the lists down."""
    await asyncio.gather(*(crew.stop_producing() for crew in stage.crews))
    await asyncio.gather(*(replica.until_ready() for replica in ground.replicas))
    async with httpx.AsyncClient(base_url=ground.replicas[0].url, timeout=30) as client:
        await _drain(client, stage.queues)
        await asyncio.gather(*(crew.end() for crew in stage.crews))
        await _write_lists(client, stage.queues, lists)


async def _drain(client: httpx.AsyncClient, queues: Sequence[str]) -> None:
    """Wait until every job has ended; what has not by then, the checker finds in the list."""
    deadline = now() + _DRAIN_SECONDS

    async def is_over() -> bool | None:
        for state in _LOOKS:
            for queue in queues:
                page = await _get(client, {"queue": queue, "state": state, "limit": 1})
                if page["jobs"] and now() < deadline:
                    return None
        return True

    await until(is_over, seconds=_DRAIN_SECONDS + 30, what="the drain")


async def _write_lists(client: httpx.AsyncClient, queues: Sequence[str], part: Path) -> None:
    """Write down the list of all jobs, and the lists of each state."""
    log = Log(part)
    for state in (None, *_STATES):
        for queue in queues:
            filters: dict[str, str | int] = {"queue": queue, "limit": _PAGE, "include": "result"}
            if state is not None:
                filters["state"] = state
            cursor: dict[str, str | int] = {}
            while True:
                page = await _get(client, filters | cursor)
                log.write(Listed(now(), state, page["jobs"]))
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
    log.close()


async def _get(client: httpx.AsyncClient, filters: dict[str, str | int]) -> Json:
    """Return a page of the list; one that does not come, or is 503, is asked for again."""

    async def ask() -> Json | None:
        try:
            answer = await client.get("/v1/jobs", params=filters)
        except httpx.TransportError:
            return None
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        answer.raise_for_status()
        page: Json = answer.json()
        return page

    return await until(ask, seconds=READY_SECONDS, what="a page of the list")
