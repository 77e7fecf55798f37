"""What a job costs in each verb, beside many jobs that wait or are kept."""

from collections.abc import Awaitable, Callable

from app.domain.job import LeasedJob
from benchmarks.ground import Ground, wish
from benchmarks.meter import Spent

JOBS_A_CALL = 100
VERBS = ("enqueue", "lease", "heartbeat", "complete")
_CALLS_A_TURN = 10
_WARM_UP_TURNS = 1


async def measure_verbs(ground: Ground, *, turns: int) -> dict[str, Spent]:
    """Enqueue, lease, heartbeat and complete in turns of some calls each; as many jobs come as go."""
    spent = {verb: Spent() for verb in VERBS}
    for _ in range(_WARM_UP_TURNS):
        await _turn(ground, {verb: Spent() for verb in VERBS})
    for _ in range(turns):
        await _turn(ground, spent)
    return spent


async def _turn(ground: Ground, spent: dict[str, Spent]) -> None:
    held: list[list[LeasedJob]] = []

    async def enqueue() -> int:
        return await ground.enqueue(JOBS_A_CALL)

    async def lease() -> int:
        held.append(await ground.lease([wish("q0", max_jobs=JOBS_A_CALL)]))
        return len(held[-1])

    await ground.meter.spend(spent["enqueue"], [enqueue] * _CALLS_A_TURN)
    await ground.meter.spend(spent["lease"], [lease] * _CALLS_A_TURN)
    await ground.meter.spend(spent["heartbeat"], [_with(ground.heartbeat, jobs) for jobs in held])
    await ground.meter.spend(spent["complete"], [_with(ground.complete, jobs) for jobs in held])


def _with(
    verb: Callable[[list[LeasedJob]], Awaitable[int]], jobs: list[LeasedJob]
) -> Callable[[], Awaitable[int]]:
    return lambda: verb(jobs)
