"""kill -9 under load: what was promised must be there, once, and end.

    python -m benchmarks.crash --seconds 60 --seed 7

The service runs as real processes on its bundled PostgreSQL (fsync on). Producers and workers call it
over HTTP and repeat whatever got no answer or a 5xx, with the same key, version or request_id. Meanwhile
the service, one of its server processes or its PostgreSQL is killed at random moments. In the end every
acknowledged job must be found once and finished, no accepted complete undone, no refused one done, every
write under a lease_version that was passed on refused, and ``fencepost doctor`` content.

All choices (who is killed and when, what is sent) follow from the seed; how the operating system
interleaves them does not. A killed process loses its memory, not the page cache of the machine: this
shows recovery, not what a disk does when the power fails.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.embedded.server import BundledServer

Json = dict[str, Any]

QUEUE = "crash"
PRODUCERS = 3
WORKERS = 6
# A call that is repeated for this long has met a service that does not come back.
PATIENCE_SECONDS = 60.0
DRAIN_SECONDS = 90.0
END_SECONDS = 15.0
VICTIMS = ("service", "server process", "postgres")


class CrashError(Exception):
    """The run could not be brought to its end."""


@dataclass
class Ledger:
    """What the service said, and what that obliges it to."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    second_ids: list[str] = field(default_factory=list)
    holders: dict[tuple[str, int], str] = field(default_factory=dict)
    granted_twice: list[str] = field(default_factory=list)
    accepted: dict[str, tuple[int, str]] = field(default_factory=dict)
    accepted_twice: list[str] = field(default_factory=list)
    refused: set[tuple[str, int]] = field(default_factory=set)
    abandoned: dict[str, list[int]] = field(default_factory=dict)
    stale_attempted: int = 0
    stale_accepted: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    repeated_calls: int = 0
    unexpected: list[str] = field(default_factory=list)

    def acknowledge(self, job_id: str, key: str) -> None:
        """Note a promise; the same key must always name the same job."""
        if self.acknowledged.setdefault(key, job_id) != job_id:
            self.second_ids.append(job_id)

    def grant(self, leased: Json, *, holder: str) -> None:
        """Note a grant; a version belongs to one lease call, however often that is repeated."""
        if self.holders.setdefault((leased["id"], leased["lease_version"]), holder) != holder:
            self.granted_twice.append(leased["id"])

    def accept(self, leased: Json, result: str) -> None:
        """Note an accepted complete; there can be one a job."""
        if leased["id"] in self.accepted:
            self.accepted_twice.append(leased["id"])
        self.accepted[leased["id"]] = (leased["lease_version"], result)


@dataclass(frozen=True, slots=True)
class Report:
    """The table in the end; ``faults`` are sentences, none of them is success."""

    rows: Mapping[str, object]
    faults: list[str]

    def print(self) -> None:
        width = max(map(len, self.rows))
        for name, value in self.rows.items():
            print(f"{name:<{width}}  {value}")
        for fault in self.faults:
            print(f"FAULT: {fault}")


class ServiceUnderFire:
    """``fencepost serve`` with two server processes, started again whenever it has ended."""

    def __init__(self, folder: Path, *, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.data_dir = folder / "data"
        self._port = port
        self._log_path = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep_running())

    async def stop(self) -> int | None:
        """End the service in order; returns its exit code, None when it did not end in time."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is None:
            return None
        self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self._process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            return None

    def pids(self, victim: str) -> list[int]:
        """Return the processes of this kind, all of them started by this program or by its service."""
        if self._process is None or self._process.poll() is not None:
            return []
        if victim == "service":
            return [self._process.pid]
        try:
            children = psutil.Process(self._process.pid).children()
            names = {child.pid: child.name() for child in children}
        except psutil.NoSuchProcess:
            return []
        is_postgres = victim == "postgres"
        return sorted(pid for pid, name in names.items() if (name == "postgres") == is_postgres)

    def doctor(self) -> list[str]:
        """Return what ``fencepost doctor`` finds."""
        command = [sys.executable, "-m", "app", "doctor", "--data-dir", str(self.data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, env=_environ(), check=False)
        if done.returncode == 0:
            return []
        return done.stdout.splitlines() or [f"doctor ended with {done.returncode}: {done.stderr[-300:]}"]

    async def _keep_running(self) -> None:
        while True:
            if self._process is None or self._process.poll() is not None:
                self._spawn()
            await asyncio.sleep(0.1)

    def _spawn(self) -> None:
        options = [f"--port={self._port}", f"--data-dir={self.data_dir}", "--processes=2"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", *options],
                env=_environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}


class Client:
    """Repeats a call until it is answered."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._http = httpx.AsyncClient(base_url=url, timeout=15)

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: Json, *, key: str | None = None) -> httpx.Response:
        return await self._send("POST", path, body, headers={"Idempotency-Key": key} if key else {})

    async def get(self, path: str) -> Json:
        answer: Json = (await self._send("GET", path, None, headers={})).json()
        return answer

    async def _send(
        self, method: str, path: str, body: Json | None, *, headers: Mapping[str, str]
    ) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                answer = await self._http.request(method, path, json=body, headers=headers)
            except httpx.TransportError:
                pass
            else:
                if answer.status_code < 500:
                    return answer
                if answer.status_code != 503:
                    self._ledger.unexpected.append(f"{method} {path}: {answer.status_code} {answer.text}")
            self._ledger.repeated_calls += 1
            await asyncio.sleep(0.05)
        raise CrashError(f"{method} {path} was not answered in {PATIENCE_SECONDS:.0f} s")


class Producer:
    """Submits jobs with idempotency keys, single and in batches, and cancels some."""

    def __init__(self, name: str, client: Client, ledger: Ledger, chance: random.Random) -> None:
        self._name = name
        self._client = client
        self._ledger = ledger
        self._chance = chance
        self._count = 0

    async def run(self, *, until: float) -> None:
        while time.monotonic() < until:
            if self._chance.random() < 0.2:
                await self._submit_batch()
            else:
                await self._submit_one()
            await asyncio.sleep(self._chance.uniform(0, 0.02))

    async def _submit_one(self) -> None:
        key, job = self._next_job()
        job_id = ""
        # Now and then a producer forgets that it has asked already.
        for _ in range(2 if self._chance.random() < 0.1 else 1):
            answer = await self._client.post("/v1/jobs", job, key=key)
            if answer.status_code not in (200, 201):
                self._ledger.unexpected.append(f"submit: {answer.status_code} {answer.text}")
                return
            job_id = answer.json()["id"]
            self._ledger.acknowledge(job_id, key)
        if self._chance.random() < 0.03:
            await self._client.post(f"/v1/jobs/{job_id}/cancel", {"force": True})

    async def _submit_batch(self) -> None:
        made = [self._next_job() for _ in range(self._chance.randint(2, 30))]
        body = {"jobs": [job | {"idempotency_key": key} for key, job in made]}
        answer = await self._client.post("/v1/jobs/batch", body)
        if answer.status_code != 201:
            self._ledger.unexpected.append(f"batch: {answer.status_code} {answer.text}")
            return
        for (key, _), item in zip(made, answer.json()["jobs"], strict=True):
            self._ledger.acknowledge(item["job"]["id"], key)

    def _next_job(self) -> tuple[str, Json]:
        self._count += 1
        key = f"{self._name}-{self._count}"
        job: Json = {
            "kind": "crash",
            "queue": QUEUE,
            "payload": {"key": key},
            "max_attempts": 2 if self._chance.random() < 0.1 else 1000,
            "backoff": {"type": "fixed", "base_seconds": 0.2},
        }
        if self._chance.random() < 0.2:
            job["delay_seconds"] = round(self._chance.uniform(0.1, 2.0), 3)
        return key, job


_STALE_CALLS: list[tuple[str, Json]] = [
    ("complete", {"result": "stale"}),
    ("fail", {"error": {"message": "stale"}}),
    ("release", {}),
    ("heartbeat", {}),
    ("verify", {}),
]


class Worker:
    """Leases and settles jobs; freezes over some, whose versions are presented again once passed on."""

    def __init__(self, name: str, client: Client, ledger: Ledger, chance: random.Random) -> None:
        self._name = name
        self._client = client
        self._ledger = ledger
        self._chance = chance
        self._count = 0

    async def run(self, *, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            self._count += 1
            answer = await self._client.post(
                "/v1/leases",
                {
                    "worker_id": self._name,
                    "queues": [QUEUE],
                    "max_jobs": self._chance.choice([1, 5, 20]),
                    "lease_seconds": self._chance.choice([1, 2, 4]),
                    "wait_seconds": 1,
                    "request_id": f"{self._count}",
                },
            )
            if answer.status_code != 200:
                self._ledger.unexpected.append(f"lease: {answer.status_code} {answer.text}")
                continue
            for leased in answer.json()["jobs"]:
                self._ledger.grant(leased, holder=f"{self._name} {self._count}")
            for leased in answer.json()["jobs"]:
                await self._present_stale_versions(leased)
                await self._work(leased)

    async def _present_stale_versions(self, leased: Json) -> None:
        job_id, version = leased["id"], leased["lease_version"]
        versions = self._ledger.abandoned.pop(job_id, [])
        # A higher one was granted while this answer was on its way.
        self._ledger.abandoned[job_id] = [kept for kept in versions if kept >= version]
        for stale in [passed_on for passed_on in versions if passed_on < version]:
            verb, members = self._chance.choice(_STALE_CALLS)
            self._ledger.stale_attempted += 1
            answer = await self._client.post(f"/v1/jobs/{job_id}/{verb}", {"lease_version": stale, **members})
            if answer.status_code != 409 or answer.json()["code"] != "lease_lost":
                self._ledger.stale_accepted.append(f"{verb} {job_id} {stale}: {answer.status_code}")

    async def _work(self, leased: Json) -> None:
        roll = self._chance.random()
        if roll < 0.08:
            self._ledger.abandoned.setdefault(leased["id"], []).append(leased["lease_version"])
        elif roll < 0.16:
            await self._say("fail", leased, error={"message": "by chance"}, retry_after_seconds=0.1)
        elif roll < 0.20:
            await self._say("release", leased)
        else:
            if roll < 0.4:
                await self._say("heartbeat", leased, checkpoint={"by": self._name})
            await self._complete(leased)

    async def _complete(self, leased: Json) -> None:
        result = f"{self._name} {leased['lease_version']}"
        answer = await self._say("complete", leased, result=result)
        if answer.status_code == 200:
            self._ledger.accept(leased, result)
        else:
            self._ledger.refused.add((leased["id"], leased["lease_version"]))

    async def _say(self, verb: str, leased: Json, **members: object) -> httpx.Response:
        body = {"lease_version": leased["lease_version"], **members}
        answer = await self._client.post(f"/v1/jobs/{leased['id']}/{verb}", body)
        if answer.status_code not in (200, 409):
            self._ledger.unexpected.append(f"{verb}: {answer.status_code} {answer.text}")
        return answer


async def _kill(
    service: ServiceUnderFire,
    ledger: Ledger,
    chance: random.Random,
    *,
    until: float,
    pause: tuple[float, float],
) -> None:
    order: list[str] = []
    while True:
        if not order:
            order = chance.sample(VICTIMS, len(VICTIMS))
        await asyncio.sleep(chance.uniform(*pause))
        victim, pick = order.pop(), chance.random()
        if time.monotonic() > until:
            return
        pids = service.pids(victim)
        if pids:
            os.kill(pids[int(pick * len(pids))], signal.SIGKILL)
            ledger.kills[victim] += 1


async def run(*, seconds: float, seed: int, folder: Path, pause: tuple[float, float] = (1.0, 5.0)) -> Report:
    """Run once; ``seconds`` of load, then the rest is worked off and everything is counted."""
    service = ServiceUnderFire(folder, port=_free_port())
    ledger = Ledger()
    client = Client(service.url, ledger)
    await service.start()
    try:
        await client.get("/readyz")
        is_over = asyncio.Event()
        workers = [
            asyncio.create_task(
                Worker(f"w{n}", client, ledger, random.Random(f"{seed} w{n}")).run(is_over=is_over)
            )
            for n in range(WORKERS)
        ]
        until = time.monotonic() + seconds
        await asyncio.gather(
            _kill(service, ledger, random.Random(f"{seed} kill"), until=until, pause=pause),
            *(
                Producer(f"p{n}", client, ledger, random.Random(f"{seed} p{n}")).run(until=until)
                for n in range(PRODUCERS)
            ),
        )
        await _drain(client, workers)
        is_over.set()
        await asyncio.gather(*workers)
        jobs = await _read_all(client)
    finally:
        await client.close()
        exit_code = await service.stop()
    return _report(ledger, jobs, seed=seed, exit_code=exit_code, findings=service.doctor())


async def _drain(client: Client, workers: "list[asyncio.Task[None]]") -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        for worker in workers:
            if worker.done():
                worker.result()
        left = [
            await client.get(f"/v1/jobs?limit=1&state={state}") for state in ("scheduled", "ready", "running")
        ]
        if not any(page["jobs"] for page in left):
            return
        await asyncio.sleep(0.2)
    # What is left is told by the report.


async def _read_all(client: Client) -> list[Json]:
    jobs: list[Json] = []
    cursor = ""
    while True:
        page = await client.get(f"/v1/jobs?limit=200&include=result{cursor}")
        jobs += page["jobs"]
        if page["next_cursor"] is None:
            return jobs
        cursor = f"&{httpx.QueryParams(cursor=page['next_cursor'])}"


def _report(
    ledger: Ledger, jobs: list[Json], *, seed: int, exit_code: int | None, findings: list[str]
) -> Report:
    found = {job["id"]: job for job in jobs}
    promised = set(ledger.acknowledged.values())
    states = Counter(job["state"] for job in jobs)
    undone = [
        job_id
        for job_id, (version, result) in ledger.accepted.items()
        if _outcome(found.get(job_id)) != ("succeeded", version, result)
    ]
    refused_but_done = [
        job_id
        for job_id, version in ledger.refused
        if _outcome(found.get(job_id))[:2] == ("succeeded", version) and job_id not in ledger.accepted
    ]
    counts: dict[str, int] = {
        "jobs lost": len(promised - found.keys()),
        "jobs nobody was told of": len(found.keys() - promised),
        "keys with two jobs": len(ledger.second_ids),
        "jobs listed twice": len(jobs) - len(found),
        "jobs that did not end": states["scheduled"] + states["ready"] + states["running"],
        "jobs in two states, or other findings of the doctor": len(findings),
        "versions granted twice": len(ledger.granted_twice),
        "accepted completes undone": len(undone),
        "accepted completes, two of a job": len(ledger.accepted_twice),
        "refused completes done": len(refused_but_done),
        "stale writes accepted": len(ledger.stale_accepted),
        "unexpected answers": len(ledger.unexpected),
    }
    rows: dict[str, object] = {
        "seed": seed,
        **{f"kills of a {victim}": ledger.kills[victim] for victim in VICTIMS},
        "calls repeated": ledger.repeated_calls,
        "jobs acknowledged": len(promised),
        **{f"jobs {state}": count for state, count in sorted(states.items())},
        "completes accepted": len(ledger.accepted),
        "completes refused": len(ledger.refused),
        "stale writes attempted": ledger.stale_attempted,
        **counts,
        "exit code of the service": exit_code,
    }
    examples = [*findings, *ledger.unexpected, *ledger.stale_accepted, *undone, *refused_but_done]
    faults = [f"{name}: {count}" for name, count in counts.items() if count] + examples[:20]
    if exit_code != 0:
        faults.append(f"the service ended with {exit_code}")
    return Report(rows, faults)


def _outcome(job: Json | None) -> tuple[object, object, object]:
    return (None, None, None) if job is None else (job["state"], job["lease_version"], job["result"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Run from the command line; exit code 1 when anything was broken."""
    parser = argparse.ArgumentParser(description="Kill the service and its PostgreSQL under load.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the load lasts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:.0f} seconds of load")
    with tempfile.TemporaryDirectory(prefix="fencepost-crash-") as folder:
        report = asyncio.run(run(seconds=options.seconds, seed=options.seed, folder=Path(folder)))
        BundledServer(Path(folder) / "data").stop()
    report.print()
    raise SystemExit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
