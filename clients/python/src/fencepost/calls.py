"""The worker's calls: repeated until there is an answer, the same bytes each time."""

import asyncio
import logging
from collections.abc import Callable, Container, Mapping
from typing import Any

import httpx

from fencepost import answers, wire
from fencepost.answers import Answer, Unreadable
from fencepost.errors import Unavailable
from fencepost.pauses import Pauses, is_weather

log = logging.getLogger("fencepost")


def for_ever() -> bool:
    """Let a call be repeated for as long as it takes."""
    return True


class Calls:
    """One HTTP client, and what is known of the weather between here and the service."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._is_away = False

    async def once(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer | None:
        """Send one try; None: no answer."""
        return await self._try(
            method, path, content=content, headers=wire.HEADERS, params=params, timeout=timeout_seconds
        )

    async def post(
        self,
        path: str,
        content: bytes | None,
        *,
        timeout_seconds: float,
        headers: Mapping[str, str] = wire.HEADERS,
        while_true: Callable[[], bool] = for_ever,
        pauses: Pauses | None = None,
        accepted: Container[int] | None = None,
    ) -> Answer:
        """Send the same call until it is answered; raise Unavailable when it is no longer wanted.

        ``pauses`` goes on from an earlier call that had no answer. ``accepted`` are the statuses that answer
        it; None: all that would be the same later.
        """
        pauses = pauses or Pauses()
        while True:
            answer = await self._try(
                "POST", path, accepted=accepted, content=content, headers=headers, timeout=timeout_seconds
            )
            if answer is not None and _is_answer(answer, accepted):
                pauses.reset()
                return answer
            await asyncio.sleep(pauses.next(answer))
            if not while_true():
                raise Unavailable(f"no answer to {path}")

    async def _try(
        self, method: str, path: str, *, accepted: Container[int] | None = None, **options: Any
    ) -> Answer | None:
        try:
            answer = answers.read(await self._http.request(method, path, **options))
        except (httpx.RequestError, Unreadable) as error:
            self._note(f"{type(error).__name__}: {error}")
            return None
        self._note(None if _is_answer(answer, accepted) else str(answer.status))
        return answer

    def _note(self, trouble: str | None) -> None:
        """Log the change of the weather, not the weather."""
        if trouble is not None and not self._is_away:
            log.warning("the service is away (%s); calls are repeated", trouble)
        elif trouble is None and self._is_away:
            log.info("the service is back")
        self._is_away = trouble is not None


def _is_answer(answer: Answer, accepted: Container[int] | None) -> bool:
    return not is_weather(answer) if accepted is None else answer.status in accepted
