"""The producer: ``Client`` for plain code, ``AsyncClient`` for coroutines, with the same conversations."""

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from fencepost import answers, conversations, service
from fencepost.answers import Unreadable
from fencepost.conversations import Conversation, Heard, Pause, Request
from fencepost.jobs import JobOptions, JobRecord, NewJob, Submitted

Meaning = TypeVar("Meaning")


class _Settings:
    """What both clients are made with."""

    def __init__(
        self,
        url: str = service.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._options = service.arguments(url, api_key)

    def _arguments(self, request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": request.path,
            "content": request.content,
            "headers": request.headers,
            "params": request.params,
            "timeout": self._timeout_seconds + request.patience_seconds,
        }


class Client(_Settings):
    """A producer over HTTP. One may be shared by threads, and by the processes of a fork.

    ``timeout_seconds`` is for one try; a call without an answer (or with 5xx, 408 or 429) is repeated for at
    most ``retry_seconds``, which is safe for every call here, and then raises Unavailable.
    """

    def __init__(
        self,
        url: str = service.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
    ) -> None:
        super().__init__(url, api_key=api_key, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        self._http = httpx.Client(**self._options)
        self._process_id = os.getpid()

    def submit(self, kind: str, payload: object = None, **options: Unpack[JobOptions]) -> Submitted:
        """Make a job. An ``idempotency_key`` is made when none is given, so that the tries make one job."""
        job = NewJob(kind, payload, **options)
        return self._say(conversations.submit(job, retry_seconds=self._retry_seconds))

    def submit_many(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Make jobs in one transaction, all or none; the answers are in the same order."""
        return self._say(conversations.submit_many(jobs, retry_seconds=self._retry_seconds))

    def get(self, job_id: str, *, wait_seconds: float = 0.0) -> JobRecord:
        """Return the job; with ``wait_seconds`` (up to 30) as soon as it is finished, or then as it is."""
        return self._say(
            conversations.get(job_id, wait_seconds=wait_seconds, retry_seconds=self._retry_seconds)
        )

    def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobRecord:
        """Return the job once it is finished; raises TimeoutError when it is not in time."""
        return self._say(
            conversations.wait(job_id, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)
        )

    def cancel(self, job_id: str, *, reason: str | None = None, force: bool = False) -> JobRecord:
        """Cancel a job. One that runs is asked to stop; with ``force`` its lease is void at once."""
        return self._say(
            conversations.cancel(job_id, reason=reason, force=force, retry_seconds=self._retry_seconds)
        )

    def redrive(self, job_id: str, *, run_at: datetime | None = None) -> JobRecord:
        """Make a dead or cancelled job ready again, or scheduled when ``run_at`` is ahead."""
        at = None if run_at is None else run_at.isoformat()
        return self._say(conversations.redrive(job_id, run_at=at, retry_seconds=self._retry_seconds))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connections(self) -> httpx.Client:
        # A process has its parent's connections after a fork, and each would read the other's answers.
        if self._process_id != os.getpid():
            self._http = httpx.Client(**self._options)
            self._process_id = os.getpid()
        return self._http

    def _say(self, conversation: Conversation[Meaning]) -> Meaning:
        heard: Heard = None
        while True:
            try:
                step = conversation.send(heard)
            except StopIteration as end:
                meaning: Meaning = end.value
                return meaning
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                heard = None
            else:
                try:
                    heard = answers.read(self._connections().request(**self._arguments(step)))
                except (httpx.RequestError, Unreadable) as error:
                    heard = error


class AsyncClient(_Settings):
    """``Client`` for coroutines, with the same verbs and options."""

    def __init__(
        self,
        url: str = service.DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 10.0,
        retry_seconds: float = 30.0,
    ) -> None:
        super().__init__(url, api_key=api_key, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        self._http = httpx.AsyncClient(**self._options)

    async def submit(self, kind: str, payload: object = None, **options: Unpack[JobOptions]) -> Submitted:
        """Make a job. An ``idempotency_key`` is made when none is given, so that the tries make one job."""
        job = NewJob(kind, payload, **options)
        return await self._say(conversations.submit(job, retry_seconds=self._retry_seconds))

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Make jobs in one transaction, all or none; the answers are in the same order."""
        return await self._say(conversations.submit_many(jobs, retry_seconds=self._retry_seconds))

    async def get(self, job_id: str, *, wait_seconds: float = 0.0) -> JobRecord:
        """Return the job; with ``wait_seconds`` (up to 30) as soon as it is finished, or then as it is."""
        return await self._say(
            conversations.get(job_id, wait_seconds=wait_seconds, retry_seconds=self._retry_seconds)
        )

    async def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobRecord:
        """Return the job once it is finished; raises TimeoutError when it is not in time."""
        return await self._say(
            conversations.wait(job_id, timeout_seconds=timeout_seconds, retry_seconds=self._retry_seconds)
        )

    async def cancel(self, job_id: str, *, reason: str | None = None, force: bool = False) -> JobRecord:
        """Cancel a job. One that runs is asked to stop; with ``force`` its lease is void at once."""
        return await self._say(
            conversations.cancel(job_id, reason=reason, force=force, retry_seconds=self._retry_seconds)
        )

    async def redrive(self, job_id: str, *, run_at: datetime | None = None) -> JobRecord:
        """Make a dead or cancelled job ready again, or scheduled when ``run_at`` is ahead."""
        at = None if run_at is None else run_at.isoformat()
        return await self._say(conversations.redrive(job_id, run_at=at, retry_seconds=self._retry_seconds))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _say(self, conversation: Conversation[Meaning]) -> Meaning:
        heard: Heard = None
        while True:
            try:
                step = conversation.send(heard)
            except StopIteration as end:
                meaning: Meaning = end.value
                return meaning
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                heard = None
            else:
                try:
                    heard = answers.read(await self._http.request(**self._arguments(step)))
                except (httpx.RequestError, Unreadable) as error:
                    heard = error
