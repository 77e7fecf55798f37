"""A client that writes everything down, fails over between replicas, and repeats what was not answered."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.history import Answered, Asked, Json, Log, Unanswered, now

# A call that is repeated for this long has met a service that does not come back.
PATIENCE_SECONDS = 75.0
_LONGEST_PAUSE_SECONDS = 0.3
# Now and then a caller goes elsewhere without need, so that every replica is asked at all times.
_WANDERING = 0.1


class ServiceGone(Exception):
    """No replica has answered for longer than any fault lasts."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    is_replay: bool

    @property
    def is_success(self) -> bool:
        return self.status < 300


class Caller:
    """One client; ``replicas`` are addresses by name, ``timeout_seconds`` how long it waits for an answer.

    An impatient one repeats a call elsewhere while the first is still under way.
    """

    def __init__(
        self,
        name: str,
        *,
        http: httpx.AsyncClient,
        replicas: Mapping[str, str],
        log: Log,
        chance: random.Random,
        timeout_seconds: float,
    ) -> None:
        self.name = name
        self._addresses = list(replicas.items())
        self._log = log
        self._chance = chance
        self._timeout_seconds = timeout_seconds
        self._turn = chance.randrange(len(self._addresses))
        self._count = 0
        self._http = http

    async def once(self, path: str, body: Json, *, key: str | None = None) -> Answer | None:
        """Make one call; None when it is in doubt."""
        replica, url = self._addresses[self._turn % len(self._addresses)]
        self._count += 1
        call = f"{self.name}-{self._count}"
        self._log.write(Asked(now(), call, self.name, replica, "POST", path, body, key))
        try:
            response = await self._http.post(
                url + path,
                json=body,
                headers={} if key is None else {"Idempotency-Key": key},
                timeout=self._timeout_seconds + body.get("wait_seconds", 0),
            )
        except httpx.TransportError as error:
            self._log.write(Unanswered(now(), call, type(error).__name__))
            self._turn += 1
            return None
        answer = Answer(
            response.status_code,
            _value(response),
            is_replay=response.headers.get("idempotent-replayed") == "true",
        )
        self._log.write(
            Answered(
                now(),
                call,
                answer.status,
                answer.body,
                answer.is_replay,
                response.headers.get("retry-after"),
            )
        )
        is_final = answer.status < 500
        if not is_final or self._chance.random() < _WANDERING:
            self._turn += 1
        return answer if is_final else None

    async def call(self, path: str, body: Json, *, key: str | None = None) -> Answer:
        """Make a call that is safe to repeat, until it is answered. Raises ServiceGone."""
        deadline = now() + PATIENCE_SECONDS
        while now() < deadline:
            answer = await self.once(path, body, key=key)
            if answer is not None:
                return answer
            await asyncio.sleep(self._chance.uniform(0, _LONGEST_PAUSE_SECONDS))
        raise ServiceGone(f"{self.name}: {path} was not answered in {PATIENCE_SECONDS:.0f} s")


@dataclass(frozen=True, slots=True)
class Mind:
    """What a producer or a worker acts with; all its choices come from ``chance``."""

    caller: Caller
    queues: Sequence[str]
    lease_seconds: Sequence[float]
    chance: random.Random
    is_scripted: bool


def _value(response: httpx.Response) -> Any:
    """Return the answer as JSON, or as the text that it should not be."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        return response.text
