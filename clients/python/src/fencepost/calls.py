"""The worker's calls: repeated until there is an answer, the same bytes each time."""

import asyncio
import logging
from collections.abc import Callable, Container, Mapping
from typing import Any

import httpx

from fencepost import wire
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
    ) -> httpx.Response | None:
        """Send one try; None: no answer, or one that may be another later."""
        answer = await self._try(
            method, path, content=content, headers=wire.HEADERS, params=params, timeout=timeout_seconds
        )
        return None if answer is None or is_weather(answer) else answer

    async def post(
        self,
        path: str,
        content: bytes | None,
        *,
        timeout_seconds: float,
        headers: Mapping[str, str] = wire.HEADERS,
        while_true: Callable[[], bool] = for_ever,
        pauses: Pauses | None = None,
        answers: Container[int] | None = None,
    ) -> httpx.Response:
        """Send the same call until it is answered; raise Unavailable when it is no longer wanted.

        ``pauses`` goes on from an earlier call that had no answer. ``answers`` are the statuses that answer
        it; None: all that would be the same later.
        """
        pauses = pauses or Pauses()
        while True:
            answer = await self._try(
                "POST", path, answers=answers, content=content, headers=headers, timeout=timeout_seconds
            )
            if answer is not None and _is_answer(answer, answers):
                pauses.reset()
                return answer
            await asyncio.sleep(pauses.next(answer))
            if not while_true():
                raise Unavailable(f"no answer to {path}")

    async def _try(
        self, method: str, path: str, *, answers: Container[int] | None = None, **options: Any
    ) -> httpx.Response | None:
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            self._note(type(error).__name__)
            return None
        self._note(None if _is_answer(answer, answers) else str(answer.status_code))
        return answer

    def _note(self, trouble: str | None) -> None:
        """Log the change of the weather, not the weather."""
        if trouble is not None and not self._is_away:
            log.warning("the service is away (%s); calls are repeated", trouble)
        elif trouble is None and self._is_away:
            log.info("the service is back")
        self._is_away = trouble is not None


def _is_answer(answer: httpx.Response, answers: Container[int] | None) -> bool:
    return not is_weather(answer) if answers is None else answer.status_code in answers
