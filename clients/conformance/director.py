"""Plays the script of a case: waits for what it names, and does what it says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clients.conformance.case import CaseError
from clients.conformance.faults import read_fault
from clients.conformance.moments import described, find
from clients.conformance.record import Act, Record
from clients.conformance.server import Server

LOOK_SECONDS = 0.01


class Stuck(Exception):
    """What the script waits for did not come in time."""


class Process(Protocol):
    """The adapter, as far as a script can touch it."""

    @property
    def exit_code(self) -> int | None: ...

    def signal(self, name: str) -> None: ...

    async def restart(self) -> None: ...


class Director:
    """One script. Each step is one of

    {await: M, times: n}      goes on when M has happened so often
    {pause: seconds}
    {offer: [b, c]}           jobs that were kept back (``later: true``) can be leased
    {lose: [a], why: reason}  the lease is taken away, and somebody else gets the job
    {regrant: [a]}            the lease is taken away, and the job can be leased again
    {forget: [a]}             the job is not known any more
    {cancel: [a]}             a cancel is asked for
    {settle: [a]}             the job has been completed in the handler's own transaction
    {signal: SIGTERM}         to the adapter's process
    {away: 503}, {away: refused}, {back: true}     the whole server; with ``retry_after: seconds``
    {answer: {…}}             an entry of ``answers``, from now on
    {restart: true}           the adapter is ended by SIGTERM, and started once more
    """

    def __init__(self, server: Server, record: Record, process: Process, clock: Callable[[], float]) -> None:
        self._server = server
        self._record = record
        self._process = process
        self._clock = clock

    async def play(self, script: Sequence[Mapping[str, Any]], *, until: float) -> None:
        """Do every step; raise Stuck when the case's time is over before that."""
        for step in script:
            await self._do(step, until=until)

    async def until(self, condition: Callable[[], bool], text: str, *, until: float) -> None:
        """Return when the condition holds; raise Stuck when it does not in time."""
        while not condition():
            if self._clock() > until:
                raise Stuck(f"waited in vain for {text}")
            if self._process.exit_code is not None:
                raise Stuck(f"the adapter ended with code {self._process.exit_code}, before {text}")
            await asyncio.sleep(LOOK_SECONDS)

    def note(self, name: str, job: str | None = None, told: str = "") -> None:
        self._record.add(Act(at=self._clock(), run=self._server.run, name=name, job=job, told=told))

    async def _do(self, step: Mapping[str, Any], *, until: float) -> None:
        match step:
            case {"await": wanted, **rest}:
                times = rest.get("times", 1)
                text = described(wanted) + (f", {times} times" if times > 1 else "")
                await self.until(lambda: len(find(self._record, wanted)) >= times, text, until=until)
            case {"pause": seconds}:
                await asyncio.sleep(seconds)
            case {"signal": name}:
                self.note(name)
                self._process.signal(name)
            case {"away": 503, **rest}:
                self.note("away", told="503")
                await self._server.go_away(
                    read_fault({"to": "all", "status": 503, "times": "always", **rest})
                )
            case {"away": "refused"}:
                self.note("away", told="connections refused")
                await self._server.go_away(None)
            case {"back": True}:
                self.note("back")
                await self._server.come_back()
            case {"answer": entry}:
                self._server.faults.add(entry)
            case {"restart": True}:
                self.note("restart")
                await self._process.restart()
            case _:
                self._to_jobs(step)

    def _to_jobs(self, step: Mapping[str, Any]) -> None:
        service = self._server.service
        acts: dict[str, Callable[[str], None]] = {
            "offer": service.offer,
            "regrant": service.regrant,
            "forget": service.forget,
            "cancel": service.cancel,
            "settle": service.settle,
            "lose": lambda job: service.lose(job, step.get("why", "expired")),
        }
        for name, act in acts.items():
            if name in step:
                for job in step[name]:
                    self.note(name, job)
                    act(job)
                self._server.wake()
                return
        raise CaseError(f"unknown in a script: {dict(step)}")
