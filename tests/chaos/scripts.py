"""What the handlers of programs do: steps in the payload, which adapters of the conformance suite obey.

Every attempt of a job does the same: one that fails does so until it is dead, and none may release, which
would go on for ever.
"""

import random
from collections.abc import Callable

from tests.chaos.history import Json

KIND = "scripted"
MOST_ATTEMPTS = 4


def steps_by(chance: random.Random, *, make_child: Callable[[], Json]) -> list[Json]:
    """Return the steps of one job; ``make_child`` makes a job that it may create on its way."""
    steps = [_middle(chance) for _ in range(chance.randint(0, 4))]
    if chance.random() < 0.2:
        steps.append({"submit": make_child(), "name": "child"})
    return [*steps, _end(chance, make_child)]


def _middle(chance: random.Random) -> Json:
    roll = chance.random()
    if roll < 0.4:
        return {"sleep": round(chance.uniform(0, 0.6), 3)}
    if roll < 0.65:
        return {"progress": {"percent": chance.randint(0, 100), "message": "on the way"}}
    if roll < 0.95:
        return {"checkpoint": {"step": chance.randint(0, 9)}}
    return {"stubborn": round(chance.uniform(0, 2), 3)}


def _end(chance: random.Random, make_child: Callable[[], Json]) -> Json:
    roll = chance.random()
    if roll < 0.08:
        return {"fail": {"message": "by chance", "retry_after_seconds": round(chance.uniform(0, 0.5), 3)}}
    if roll < 0.12:
        return {"raise": "by chance"}
    if roll < 0.14:
        return {"fail": {"message": "by chance", "retryable": False}}
    if roll < 0.25:
        return {"complete": {"result": "with a follow-up", "enqueue": [make_child()]}}
    return {"return": {"chance": chance.random()}}
