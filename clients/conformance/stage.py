"""One case with one adapter: everything is started, the script is played, and the record is judged."""

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from clients.conformance import judge, rules
from clients.conformance.adapters import Adapter
from clients.conformance.case import Case
from clients.conformance.contract import Contract
from clients.conformance.director import Director, Stuck
from clients.conformance.faults import Faults
from clients.conformance.process import AdapterProcess
from clients.conformance.record import Record
from clients.conformance.server import Server
from clients.conformance.service import Service

START_SECONDS = 60
EXIT_SECONDS = 15
# After the last job: what is sent twice is seen.
AFTERGLOW_SECONDS = 0.3


@dataclass(frozen=True)
class Verdict:
    """How one client did in one case. Without failures it passed."""

    case: Case
    adapter: str
    failures: list[str]
    record: Record
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures


async def play(case: Case, adapter: Adapter, contract: Contract, *, seed: int = 0) -> Verdict:
    """Run a case and judge it; never longer than its time, and what a start and an exit may take."""
    started = time.monotonic()

    def clock() -> float:
        return time.monotonic() - started

    service = Service(case.jobs.values(), seed=seed)
    record = Record(job_ids={name: job.id for name, job in service.jobs.items()})
    server = Server(service, Faults(case.answers), record, contract, clock=clock, api_key=case.api_key)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        await server.start()
        process = AdapterProcess(
            adapter.run,
            folder=adapter.folder,
            environment=adapter.environment,
            scratch=Path(scratch),
            settings=_settings(case, server.port),
            record=record,
            clock=clock,
            letter=service.letter,
        )
        failures: list[str] = []
        try:
            await _perform(
                case, server, process, Director(server, record, _Run(server, process), clock), record
            )
        except Stuck as stuck:
            failures.append(str(stuck))
        except OSError as error:
            failures.append(f"the adapter could not be run: {error}")
        finally:
            await process.end()
            await server.stop()
        output = process.output()
    if server.errors:
        # The suite's own mistake, never the client's.
        raise server.errors[0]
    record.entries.sort(key=lambda entry: entry.at)
    # In a thread: the servers of other cases go on answering.
    failures += await asyncio.to_thread(rules.broken, case, record)
    failures += await asyncio.to_thread(judge.failures, record, case.expect)
    return Verdict(case, adapter.name, failures, record, output, clock())


async def _perform(
    case: Case, server: Server, process: AdapterProcess, director: Director, record: Record
) -> None:
    await process.start()
    # However long a busy machine takes to start it: the case begins with its first sign of life.
    await director.until(lambda: bool(record.entries), "a first sign of life", until=START_SECONDS)
    until = record.entries[0].at + case.within_seconds
    await director.play(case.script, until=until)
    if case.drain:
        await director.until(
            lambda: server.service.is_done and record.is_answered, "the end of every job", until=until
        )
        await asyncio.sleep(AFTERGLOW_SECONDS)
        director.note("SIGTERM", told="the end of the case")
        process.signal("SIGTERM")
    try:
        code = await asyncio.wait_for(process.exited(), EXIT_SECONDS)
    except TimeoutError:
        raise Stuck(f"the adapter has not ended after {EXIT_SECONDS} s") from None
    if case.exit != "any" and (code == 0) != (case.exit == "0"):
        raise Stuck(f"the adapter ended with code {code}, not with {case.exit}")


def _settings(case: Case, port: int) -> dict[str, object]:
    settings: dict[str, object] = {"url": f"http://127.0.0.1:{port}", "role": case.role}
    settings |= {"produce": list(case.produce)} if case.produce else {"worker": dict(case.worker)}
    return settings | ({"api_key": case.api_key} if case.api_key is not None else {})


class _Run:
    """The process as the script sees it; the server learns which run its calls belong to."""

    def __init__(self, server: Server, process: AdapterProcess) -> None:
        self._server = server
        self._process = process

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def signal(self, name: str) -> None:
        self._process.signal(name)

    async def restart(self) -> None:
        await self._process.restart()
        self._server.run = self._process.run
