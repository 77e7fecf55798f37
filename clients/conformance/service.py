"""The jobs and leases of one case, answered as the service answers: docs/protocol.md, without its clocks.

Nothing expires by itself: a case says when a lease is taken away. An answer is a value; the server sends it.
"""

import json
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from clients.conformance.case import JobPlan
from clients.conformance.record import ENDS, Call, Item

# The service's clock stands wherever it likes: no client may compare it with its own.
EPOCH = datetime(2031, 3, 1, 12, 0, 0, tzinfo=UTC)
STATES = {"complete": "succeeded", "fail": "scheduled", "release": "ready"}


@dataclass
class Answer:
    """What is sent back: a status, and a JSON value (None for an empty body)."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Job:
    """A job of the case. It waits, is held, elsewhere, ended, or gone."""

    plan: JobPlan
    id: str
    version: int
    state: str = "waiting"
    attempt: int = 0
    lease_seconds: float = 60
    cancel_requested: bool = False
    why_lost: str = "expired"
    checkpoint: Any = None
    ends: dict[int, tuple[str, Any]] = field(default_factory=dict)


class Service:
    """All jobs that a case knows, by the letter that the case gives them."""

    def __init__(self, plans: Iterable[JobPlan], *, seed: int) -> None:
        chance = random.Random(seed)
        self.jobs = {plan.name: self._job(plan, chance) for plan in plans}
        self._chance = chance
        self._by_id = {job.id: job for job in self.jobs.values()}
        self._granted: dict[tuple[str, str], tuple[Any, list[tuple[str, int]]]] = {}
        self._submitted: dict[str, tuple[Any, dict[str, Any]]] = {}

    def _job(self, plan: JobPlan, chance: random.Random) -> Job:
        # A version in the middle: who counts for itself, or sends 1, is found out.
        state = "later" if plan.later else "waiting"
        version = chance.randrange(10, 90) if plan.version is None else plan.version
        return Job(plan=plan, id=job_id(chance), version=version, state=state)

    def letter(self, identity: str | None) -> str | None:
        job = self._by_id.get(identity or "")
        return job.plan.name if job else None

    # What the script does.

    def offer(self, name: str) -> None:
        self.jobs[name].state = "waiting"

    def lose(self, name: str, why: str = "expired") -> None:
        """Take the lease away and give the job to somebody else."""
        job = self.jobs[name]
        job.version += 1
        job.why_lost = why
        job.state = "elsewhere"

    def regrant(self, name: str) -> None:
        """Take the lease away and offer the job again, to whoever asks next."""
        self.lose(name)
        self.jobs[name].state = "waiting"

    def forget(self, name: str) -> None:
        self.jobs[name].state = "gone"

    def cancel(self, name: str) -> None:
        self.jobs[name].cancel_requested = True

    def settle(self, name: str) -> None:
        """End the job as if its handler had done so in a transaction of its own."""
        self.jobs[name].state = "ended"

    @property
    def is_done(self) -> bool:
        """Whether nobody has anything more to do."""
        return not any(job.state in ("waiting", "held") for job in self.jobs.values())

    # What a client asks for.

    def lease(self, body: Mapping[str, Any], *, now: float) -> list[dict[str, Any]]:
        """Grant what there is. The same request_id gives the same grant."""
        known = self._granted.get((body["worker_id"], body.get("request_id") or ""))
        if known is not None and body.get("request_id"):
            granted = known[1]
        else:
            waiting = [
                job
                for job in self.jobs.values()
                if job.state == "waiting" and job.plan.queue in body["queues"]
            ]
            granted = [self._grant(job, body) for job in waiting[: body.get("max_jobs", 1)]]
            if granted and body.get("request_id"):
                self._granted[body["worker_id"], body["request_id"]] = (body, granted)
        return [
            self._leased(self.jobs[name], now=now)
            for name, version in granted
            if self._holds(self.jobs[name], version)
        ]

    def _grant(self, job: Job, body: Mapping[str, Any]) -> tuple[str, int]:
        job.version += 1
        job.attempt += 1
        job.state = "held"
        job.lease_seconds = body.get("lease_seconds", 60)
        return job.plan.name, job.version

    @staticmethod
    def _holds(job: Job, version: int | None) -> bool:
        return job.state == "held" and job.version == version

    def _leased(self, job: Job, *, now: float) -> dict[str, Any]:
        members = dict(job.plan.members)
        deadline = members.pop("deadline_in_seconds", None)
        return {
            "id": job.id,
            "queue": job.plan.queue,
            "kind": job.plan.kind,
            "payload": {"steps": list(job.plan.steps)},
            "metadata": {},
            "priority": 0,
            "attempt": job.attempt,
            "max_attempts": 10,
            "lease_version": job.version,
            "lease_expires_at": at(now + job.lease_seconds),
            "lease_seconds": job.lease_seconds,
            "deadline_at": None if deadline is None else at(now + deadline),
            "checkpoint": job.checkpoint,
            "previous": None,
            "created_at": at(0),
            "run_at": at(0),
            "traceparent": None,
            "tracestate": None,
            "parent": None,
            **members,
        }

    def held(self, *, now: float) -> dict[str, Any]:
        """Answer GET /v1/leases."""
        held = [job for job in self.jobs.values() if job.state == "held"]
        return {
            "leases": [
                {
                    "job_id": job.id,
                    "lease_version": job.version,
                    "queue": job.plan.queue,
                    "kind": job.plan.kind,
                    "attempt": job.attempt,
                    "granted_at": at(now),
                    "expires_at": at(now + job.lease_seconds),
                    "deadline_at": None,
                    "cancel_requested": job.cancel_requested,
                }
                for job in held
            ]
        }

    def hold(self, verb: str, item: Item, *, now: float) -> dict[str, Any]:
        """Do a holder's call for one job; return a result as in a call for many, and note its status."""
        job = self._by_id.get(item.job_id or "")
        if job is None or job.state == "gone":
            item.status = "not_found"
            return {"job_id": item.job_id, "status": "not_found", **problem("job_not_found")}
        ended = job.ends.get(item.version or -1)
        if ended is not None and verb in ENDS and ended == (verb, item.body):
            item.status = "replayed"
        elif not self._holds(job, item.version):
            item.status = "lease_lost"
            return {"job_id": job.id, "status": "lease_lost", **self.lost(job, item.version)}
        else:
            item.status = "ok"
            if verb in ENDS:
                job.ends[job.version] = (verb, item.body)
                job.state = "ended"
            elif "checkpoint" in item.body:
                job.checkpoint = item.body["checkpoint"]
        members = {"state": STATES[verb]} if verb in ENDS else self._renewed(job, now=now)
        return {"job_id": job.id, "status": item.status, **members}

    @staticmethod
    def _renewed(job: Job, *, now: float) -> dict[str, Any]:
        return {
            "lease_expires_at": at(now + job.lease_seconds),
            "deadline_at": None,
            "cancel_requested": job.cancel_requested,
        }

    @staticmethod
    def lost(job: Job, version: int | None) -> dict[str, Any]:
        return {
            **problem("lease_lost"),
            "presented_version": version,
            "current_version": job.version,
            "job_state": "succeeded" if job.state == "ended" else "running",
            "reason": "finished" if job.state == "ended" else job.why_lost,
        }

    def submit(self, body: Mapping[str, Any], *, key: str | None, now: float) -> tuple[bool, dict[str, Any]]:
        """Create a job; return whether it is new, and the job.

        Raises LookupError when the parent's lease is not held, with the job whose lease it is.
        """
        meaning = {name: value for name, value in body.items() if name not in ("idempotency_key", "parent")}
        if key is not None and key in self._submitted:
            known, job = self._submitted[key]
            if known != meaning:
                raise KeyError(key)
            return False, job
        parent = body.get("parent")
        if parent is not None:
            holder = self._by_id.get(parent["job_id"])
            if holder is None or not self._holds(holder, parent["lease_version"]):
                raise ParentLost(holder, parent["lease_version"])
        job = job_view(job_id(self._chance), body, key=key, now=now)
        if key is not None:
            self._submitted[key] = (meaning, job)
        return True, job


class ParentLost(Exception):
    """The lease under which a job should be created is not held."""

    def __init__(self, holder: Job | None, version: int) -> None:
        super().__init__("the parent's lease is lost")
        self.holder = holder
        self.version = version


def at(seconds: float) -> str:
    """Return a time on the service's clock."""
    return (EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def job_id(chance: random.Random) -> str:
    value = 0x019A3C5E_7B00 << 80 | 7 << 76 | chance.getrandbits(76)
    return str(uuid.UUID(int=value & ~(0xC << 60) | 0x8 << 60))


def problem(code: str) -> dict[str, Any]:
    return {"code": code, "detail": f"The conformance suite answers {code}."}


def job_view(identity: str, body: Mapping[str, Any], *, key: str | None, now: float) -> dict[str, Any]:
    """Return a job as the service shows it."""
    return {
        "id": identity,
        "queue": body.get("queue", "default"),
        "kind": body.get("kind", "scripted"),
        "state": body.get("state", "ready"),
        "priority": body.get("priority", 0),
        "payload": body.get("payload"),
        "metadata": body.get("metadata", {}),
        "run_at": at(now),
        "created_at": at(now),
        "finished_at": None,
        "attempt": 0,
        "max_attempts": body.get("max_attempts", 10),
        "backoff": {
            "type": "exponential",
            "base_seconds": 5,
            "factor": 2,
            "max_seconds": 3600,
            "jitter": 0.1,
        },
        "max_runtime_seconds": body.get("max_runtime_seconds"),
        "progress_timeout_seconds": body.get("progress_timeout_seconds"),
        "lease_version": 0,
        "lease": None,
        "result": None,
        "error": None,
        "checkpoint": None,
        "parent": body.get("parent"),
        "idempotency_key": key,
    }


def problem_answer(status: int, code: str, **members: Any) -> Answer:
    """Return a refusal in the shape of RFC 9457."""
    body = {
        "type": f"/problems/{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "request_id": "conformance",
        **problem(code),
        **members,
    }
    return Answer(status, body)


def answer_call(service: Service, call: Call, *, now: float) -> Answer:
    """Do what a call asks for, apart from leasing, which may have to wait."""
    if call.verb == "leases":
        return Answer(200, service.held(now=now))
    if call.verb in ("submit", "submit_many"):
        return _submit(service, call, now=now)
    results = [service.hold(call.verb, item, now=now) for item in call.items]
    if call.target.startswith("/v1/leases/"):
        return Answer(200, {"results": results})
    if call.verb not in (*ENDS, "heartbeat", "verify"):
        return problem_answer(404, "not_found")
    [result] = results
    if result["status"] == "not_found":
        return problem_answer(404, "job_not_found", job_id=result["job_id"])
    if result["status"] == "lease_lost":
        del result["status"]
        return problem_answer(409, **result)
    if call.verb == "verify":
        return Answer(204)
    headers = {"Idempotent-Replayed": "true"} if result["status"] == "replayed" else {}
    if call.verb == "heartbeat":
        return Answer(200, {key: result[key] for key in result if key not in ("job_id", "status")}, headers)
    return Answer(200, job_view(result["job_id"], {"state": result["state"]}, key=None, now=now), headers)


def _submit(service: Service, call: Call, *, now: float) -> Answer:
    made: list[dict[str, Any]] = []
    for item in call.items:
        try:
            created, job = service.submit(item.body, key=item.body.get("idempotency_key"), now=now)
        except ParentLost as lost:
            item.status = "lease_lost"
            holder = lost.holder
            if holder is None:
                return problem_answer(404, "job_not_found")
            return problem_answer(409, **service.lost(holder, lost.version))
        except KeyError:
            item.status = "refused"
            return problem_answer(422, "idempotency_key_reused")
        item.status = "ok" if created else "replayed"
        made.append({"created": created, "job": job})
    if call.verb == "submit_many":
        return Answer(201, {"jobs": made})
    [one] = made
    headers = {"Location": f"/v1/jobs/{one['job']['id']}"}
    if one["created"]:
        return Answer(201, one["job"], headers)
    return Answer(200, one["job"], {**headers, "Idempotent-Replayed": "true"})


def encode(value: Any) -> bytes:
    return b"" if value is None else json.dumps(value, separators=(",", ":")).encode()
