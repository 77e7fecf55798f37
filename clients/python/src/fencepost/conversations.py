"""What a producer says and hears, without the sending: each verb is a generator of steps.

A step is a ``Request`` (answered with the answer, or with why there was none) or a ``Pause``. The
sync and the async client only carry the steps out, so that nothing of this stands twice.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fencepost import wire
from fencepost.answers import Answer
from fencepost.clock import now
from fencepost.errors import Unavailable, problem_of
from fencepost.jobs import FINISHED, JobRecord, NewJob, Submitted, new_key
from fencepost.pauses import Pauses, is_weather

# The longest that one call waits for a job's end; the service allows 30.
WAIT_SECONDS = 20.0
_KEY = re.compile(r"[ -~]{1,255}")


@dataclass(frozen=True, slots=True)
class Request:
    """One try of a call; ``patience_seconds`` is how long the service may take on purpose."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, float] = field(default_factory=dict)
    patience_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


Heard = Answer | Exception | None
Meaning = TypeVar("Meaning")
Conversation = Generator[Request | Pause, Heard, Meaning]


def call(request: Request, *, retry_seconds: float) -> Conversation[Answer]:
    """Send the same call until there is an answer; raise Unavailable when none came in ``retry_seconds``."""
    pauses, give_up_at = Pauses(), now() + retry_seconds
    while True:
        heard = yield request
        answer = heard if isinstance(heard, Answer) else None
        if answer is not None and not is_weather(answer):
            if answer.is_success:
                return answer
            raise problem_of(answer)
        pause = pauses.next(answer)
        if now() + pause > give_up_at:
            if answer is not None:
                raise Unavailable(f"the service answered {answer.status}") from problem_of(answer)
            cause = heard if isinstance(heard, Exception) else None
            raise Unavailable(f"no answer from the service: {cause}") from cause
        yield Pause(pause)


def submission(job: NewJob) -> Request:
    """Return the request that makes a job; its idempotency key is made here, before the first try."""
    body = _with_key(job)
    key = body.pop("idempotency_key")
    if not _KEY.fullmatch(key):
        raise ValueError(f"the idempotency key {key!r} is not 1 to 255 printable ASCII characters")
    return Request("POST", "/v1/jobs", wire.bytes_of(body), wire.HEADERS | {"Idempotency-Key": _quoted(key)})


def submitted(answer: Answer) -> Submitted:
    """Read the answer to a submission."""
    return Submitted(cast("JobRecord", answer.members), created=answer.status == 201)


def submit(job: NewJob, *, retry_seconds: float) -> Conversation[Submitted]:
    """Make a job."""
    return submitted((yield from call(submission(job), retry_seconds=retry_seconds)))


def submit_many(jobs: Sequence[NewJob], *, retry_seconds: float) -> Conversation[list[Submitted]]:
    """Make jobs, all or none."""
    bodies = {"jobs": [_with_key(job) for job in jobs]}
    request = Request("POST", "/v1/jobs/batch", wire.bytes_of(bodies), wire.HEADERS)
    answer = yield from call(request, retry_seconds=retry_seconds)
    return [Submitted(each["job"], created=each["created"]) for each in answer.members["jobs"]]


def get(job_id: str, *, wait_seconds: float, retry_seconds: float) -> Conversation[JobRecord]:
    """Read a job."""
    params = {"wait_seconds": wait_seconds} if wait_seconds else {}
    request = Request("GET", f"/v1/jobs/{job_id}", params=params, patience_seconds=wait_seconds)
    answer = yield from call(request, retry_seconds=retry_seconds)
    return _job(answer)


def wait(job_id: str, *, timeout_seconds: float | None, retry_seconds: float) -> Conversation[JobRecord]:
    """Read a job until it is finished; raise TimeoutError when it is not in time."""
    give_up_at = None if timeout_seconds is None else now() + timeout_seconds
    while True:
        left = float("inf") if give_up_at is None else max(0.0, give_up_at - now())
        job = yield from get(
            job_id, wait_seconds=min(left, WAIT_SECONDS), retry_seconds=min(left, retry_seconds)
        )
        if job["state"] in FINISHED:
            return job
        if left == 0:
            raise TimeoutError(f"job {job_id} is {job['state']} after {timeout_seconds} s")


def cancel(job_id: str, *, reason: str | None, force: bool, retry_seconds: float) -> Conversation[JobRecord]:
    """Cancel a job."""
    body = {"force": force} | ({} if reason is None else {"reason": reason})
    answer = yield from call(_post(f"/v1/jobs/{job_id}/cancel", body), retry_seconds=retry_seconds)
    return _job(answer)


def redrive(job_id: str, *, run_at: str | None, retry_seconds: float) -> Conversation[JobRecord]:
    """Make a dead or cancelled job ready again."""
    body = {} if run_at is None else {"run_at": run_at}
    answer = yield from call(_post(f"/v1/jobs/{job_id}/redrive", body), retry_seconds=retry_seconds)
    return _job(answer)


def _post(path: str, body: Mapping[str, Any]) -> Request:
    return Request("POST", path, wire.bytes_of(body), wire.HEADERS)


def _with_key(job: NewJob) -> dict[str, Any]:
    body = job.body()
    if body.get("idempotency_key") is None:
        body["idempotency_key"] = new_key()
    return body


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _job(answer: Answer) -> JobRecord:
    return cast("JobRecord", answer.members)
