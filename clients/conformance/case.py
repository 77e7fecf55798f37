"""Cases as data: read from ``cases/*.yaml``, refused where they say what nobody would look at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "cases"

# Steps and roles that an adapter may say it cannot do; everything else every client must.
OPTIONAL = (
    "producer", "progress", "checkpoint", "submit", "verify", "settled", "enqueue", "release", "details",
    "types", "kinds", "many",
)  # fmt: skip
FINAL_STEPS = ("return", "complete", "fail", "raise", "release", "settled")
STEPS = (*FINAL_STEPS, "sleep", "hold", "stubborn", "progress", "checkpoint", "submit", "verify")


class CaseError(Exception):
    """A case file that does not say what the suite can do."""


@dataclass(frozen=True)
class JobPlan:
    """A job as the case offers it. version is the one before its first grant; None is any."""

    name: str
    steps: Sequence[Mapping[str, Any]]
    kind: str = "scripted"
    queue: str = "default"
    later: bool = False
    version: int | None = None
    members: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What one client is put through once, and what is expected of it.

    ``section`` is the heading of docs/worker-protocol.md that it holds a client to, as an address.
    ``needs`` are the optional abilities without which the case says nothing.
    """

    name: str
    says: str
    section: str
    worker: Mapping[str, Any]
    jobs: Mapping[str, JobPlan]
    produce: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    script: Sequence[Mapping[str, Any]]
    expect: Sequence[Mapping[str, Any]]
    exit: str
    drain: bool
    within_seconds: float
    api_key: str | None
    needs: frozenset[str]

    @property
    def role(self) -> str:
        return "producer" if self.produce else "worker"


WORKER = {
    "queues": ["default"],
    "concurrency": 2,
    "lease_seconds": 30,
    "drain_seconds": 5,
    "grace_seconds": 3,
}
_MEMBERS = {
    "case", "says", "section", "worker", "jobs", "produce", "answers", "script", "expect", "exit", "drain",
    "within_seconds", "api_key", "needs",
}  # fmt: skip


def load(folder: Path = FOLDER) -> list[Case]:
    """Return all cases of a folder, in the order of its files."""
    cases = [
        read(document)
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load(path.read_text("utf-8"))
    ]
    names = [case.name for case in cases]
    if twins := {name for name in names if names.count(name) > 1}:
        raise CaseError(f"named twice: {', '.join(sorted(twins))}")
    return cases


def read(document: Mapping[str, Any]) -> Case:
    """Return a case as a value; raise CaseError where it cannot be one."""
    name = str(document.get("case"))
    try:
        _refuse_unknown(document, _MEMBERS)
        jobs = {job.name: job for key, plan in document.get("jobs", {}).items() for job in _jobs(key, plan)}
        is_producer = bool(document.get("produce"))
        return Case(
            name=name,
            says=document["says"],
            section=document["section"],
            worker=_worker(document.get("worker", {})),
            jobs=jobs,
            produce=document.get("produce", []),
            answers=document.get("answers", []),
            script=document.get("script", []),
            expect=_something(document["expect"]),
            exit=str(document.get("exit", 0)),
            drain=document.get("drain", not is_producer),
            within_seconds=document.get("within_seconds", 20),
            api_key=document.get("api_key"),
            needs=frozenset(document.get("needs", [])) | _needs(jobs.values(), is_producer=is_producer),
        )
    except (CaseError, KeyError, TypeError) as error:
        raise CaseError(f"case {name}: {error}") from error


def _worker(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a worker; it waits for at most a third of the lease, as the protocol has it."""
    _refuse_unknown(options, {*WORKER, "wait_seconds"})
    worker = {**WORKER, **options}
    return {"wait_seconds": max(1, min(5, worker["lease_seconds"] // 3)), **worker}


def _something(expectations: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not expectations:
        raise CaseError("it expects nothing")
    return expectations


def _jobs(name: str, plan: Any) -> list[JobPlan]:
    """Read a job: a list of steps, or an object with its steps and other members.

    With ``copies`` it is so many jobs: a1, a2, …
    """
    members: dict[str, Any] = {"steps": plan} if isinstance(plan, list) else dict(plan)
    steps = members.pop("steps")
    for step in steps:
        if not set(step) & set(STEPS):
            raise CaseError(f"job {name} has an unknown step: {step}")
    copies = members.pop("copies", None)
    names = [name] if copies is None else [f"{name}{number + 1}" for number in range(copies)]
    own: dict[str, Any] = {
        key: members.pop(key) for key in ("kind", "queue", "later", "version") if key in members
    }
    return [JobPlan(name=each, steps=steps, members=members, **own) for each in names]


def _needs(jobs: Iterable[JobPlan], *, is_producer: bool) -> set[str]:
    needs = {"producer"} if is_producer else set()
    for step in (step for job in jobs for step in job.steps):
        needs |= set(step) & set(OPTIONAL)
        needs |= {"enqueue"} & set(step.get("complete", {}))
        needs |= {"details"} & set(step.get("fail", {}))
        needs |= {"types"} if "type" in step.get("fail", {}) else set()
    return needs


def _refuse_unknown(given: Mapping[str, Any], known: Any) -> None:
    if unknown := set(given) - set(known):
        raise CaseError(f"unknown: {', '.join(sorted(unknown))}")
