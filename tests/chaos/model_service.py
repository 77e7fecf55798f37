"""A small service in memory that keeps every promise, and writes the history its clients would write.

Every call takes effect at a moment between its beginning and its answer, whatever others do meanwhile; its
answer may be lost, before or after the effect. So whatever order of calls it is driven through, the history
is legal.
"""

from dataclasses import dataclass, field
from enum import Enum

from tests.chaos.facts import spell
from tests.chaos.history import Event, Json
from tests.chaos.tale import Tale, job, lost

STEP_SECONDS = 10.0


class Fate(Enum):
    """What becomes of a call; ``FAILED`` is a 503 after the effect."""

    ANSWERED = "answered"
    DONE_UNANSWERED = "done, unanswered"
    NOT_DONE = "not done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long before and after its effect a call begins and ends."""

    lead_seconds: float = 1.0
    tail_seconds: float = 1.0
    fate: Fate = Fate.ANSWERED


@dataclass(slots=True)
class _Job:
    mark: str
    key: str | None
    max_attempts: int
    state: str = "ready"
    version: int = 0
    attempt: int = 0
    result: object = None
    requester: tuple[str, str] | None = None
    ended: dict[int, str] = field(default_factory=dict)


class ModelService:
    """Drive it with verbs; ``finish`` gives what its clients have written down.

    ``told`` are the versions that clients know of, stale and ended ones included.
    """

    def __init__(self) -> None:
        self._tale = Tale()
        self._time = 0.0
        self._jobs: dict[str, _Job] = {}
        self._ids_by_key: dict[str, str] = {}
        self.told: list[tuple[str, int]] = []

    @property
    def job_ids(self) -> list[str]:
        return list(self._jobs)

    def submit(self, mark: str, key: str | None, max_attempts: int, timing: Timing) -> None:
        status = 201
        known_id = None if key is None else self._ids_by_key.get(key)
        if known_id is not None:
            status = 200
        elif timing.fate is not Fate.NOT_DONE:
            known_id = f"j{len(self._jobs)}"
            self._jobs[known_id] = _Job(mark, key, max_attempts)
            if key is not None:
                self._ids_by_key[key] = known_id
        body = {"metadata": {"mark": mark}, "max_attempts": max_attempts}
        answer = (status, {} if known_id is None else self._view(known_id))
        self._tell("/jobs", body, answer, timing, key=key, is_replay=status == 200)

    def lease(self, worker: str, request: str, timing: Timing) -> None:
        requester = (worker, request)
        granted: list[str] = []
        if timing.fate is not Fate.NOT_DONE:
            granted = [
                job_id
                for job_id, known in self._jobs.items()
                if known.state == "running" and known.requester == requester
            ]
            ready = [job_id for job_id, known in self._jobs.items() if known.state == "ready"]
            for job_id in ready[: 0 if granted else 2]:
                known = self._jobs[job_id]
                known.state, known.requester = "running", requester
                known.version += 1
                known.attempt += 1
                granted.append(job_id)
        body = {"worker_id": worker, "request_id": request}
        jobs = [self._view(job_id) for job_id in granted]
        self._tell("/leases", body, (200, {"jobs": jobs}), timing)
        if timing.fate is Fate.ANSWERED:
            self.told += [(job_id, self._jobs[job_id].version) for job_id in granted]

    def say(self, verb: str, job_id: str, version: int, members: Json, timing: Timing) -> None:
        known = self._jobs[job_id]
        said = spell([verb, members])
        is_held = known.state == "running" and known.version == version
        is_replay = not is_held and known.ended.get(version) == said
        if is_held and timing.fate is not Fate.NOT_DONE:
            self._settle(known, verb, said, members)
        answer = (200, self._view(job_id))
        if not is_held and not is_replay:
            answer = lost(current=known.version, state=known.state)
        body = {"lease_version": version, **members}
        self._tell(f"/jobs/{job_id}/{verb}", body, answer, timing, is_replay=is_replay)

    def _settle(self, known: _Job, verb: str, said: str, members: Json) -> None:
        if verb in ("complete", "fail", "release"):
            known.ended[known.version] = said
        match verb:
            case "complete":
                known.state, known.result = "succeeded", members.get("result")
            case "fail":
                known.state = "ready" if known.attempt < known.max_attempts else "dead"
            case "release":
                known.state = "ready"
                known.attempt -= 1

    def cancel(self, job_id: str, timing: Timing, *, force: bool) -> None:
        known = self._jobs[job_id]
        answer: tuple[int, Json]
        if known.state in ("succeeded", "dead"):
            answer = (409, {"code": "already_finished"})
        elif known.state == "running" and not force:
            answer = (202, self._view(job_id))
        else:
            if timing.fate is not Fate.NOT_DONE and known.state != "cancelled":
                known.state = "cancelled"
                known.version += int(force)
            answer = (200, self._view(job_id))
        self._tell(f"/jobs/{job_id}/cancel", {"force": force}, answer, timing)

    def expire(self, job_id: str) -> None:
        """Let the clock of a job run out, if it runs."""
        known = self._jobs[job_id]
        if known.state == "running":
            known.state = "ready" if known.attempt < known.max_attempts else "dead"

    def finish(self) -> list[Event]:
        """Bring every job to its end; return the history with the list."""
        for job_id in self._jobs:
            self.expire(job_id)
        while any(known.state == "ready" for known in self._jobs.values()):
            self.lease("last", f"{self._time}", Timing())
            for job_id, known in self._jobs.items():
                if known.state == "running":
                    self.say("complete", job_id, known.version, {"result": "last"}, Timing())
        self._tale.end(*(self._view(job_id) for job_id in self._jobs))
        return self._tale.events

    def _view(self, job_id: str) -> Json:
        known = self._jobs[job_id]
        return job(
            job_id,
            version=known.version,
            state=known.state,
            attempt=known.attempt,
            mark=known.mark,
            max_attempts=known.max_attempts,
            result=known.result,
            idempotency_key=known.key,
        )

    def _tell(
        self,
        path: str,
        body: Json,
        answer: tuple[int, Json],
        timing: Timing,
        *,
        key: str | None = None,
        is_replay: bool = False,
    ) -> None:
        self._time += STEP_SECONDS
        is_answered = timing.fate is Fate.ANSWERED
        is_failed = timing.fate is Fate.FAILED
        self._tale.tell(
            path,
            body,
            answer if is_answered else (503, {"code": "unavailable"}) if is_failed else None,
            key=key,
            began=self._time - timing.lead_seconds,
            ended=self._time + timing.tail_seconds,
            is_replay=is_replay and is_answered,
            retry_after="1" if is_failed else None,
        )
