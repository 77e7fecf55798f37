"""A fence for a call to somebody else's HTTP API that takes idempotency keys; standard library only.

The key is made of the job's id and the name of the step, without the lease version: the call of a stale
worker and that of its successor are then one request, and the remote side does it once, whoever comes first.
"""

import json
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

# A request with this key is still being worked on; too many requests. Both pass.
_PASSING = {409, 429}


def idempotency_key(job_id: str, step: str) -> str:
    """Return the key of one step of one job: the same in every attempt, and in no other job or step."""
    return f"{job_id}:{step}"


def charge(address: str, *, job_id: str, amount: int, patience_seconds: float = 60.0) -> Any:
    """Charge once for this job; return the answer, which is the first one's for all who ask again.

    Guaranteed, as far as the remote side keeps its promise: one charge for each job, however many workers
    ask, at once or one after the other, and whatever answers are lost.
    Not guaranteed: that it is the newest holder who charges, or that a stale worker does not. And not for
    longer than the remote side keeps keys, often 24 hours: let no job be redriven later than that.
    Every attempt has to send the same. Take all that goes into the request from the payload or the
    checkpoint: most remote sides refuse a known key with another body (422, here raised as HTTPError).
    Raises the last error when there is no answer in patience_seconds. The charge may be made all the same:
    fail the job, and its next attempt asks again with the same key.
    """
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key(job_id, "charge")}
    request = Request(address, json.dumps({"amount": amount}).encode(), headers)  # noqa: S310
    deadline = time.monotonic() + patience_seconds
    pause_seconds = 0.1
    while True:
        try:
            with urlopen(request, timeout=30) as answer:  # noqa: S310 - the address is ours
                return json.load(answer)
        except (OSError, HTTPException) as error:  # A refusal (HTTPError), no answer, or half of one.
            is_final = isinstance(error, HTTPError) and error.code < 500 and error.code not in _PASSING
            if is_final or time.monotonic() > deadline:
                raise
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, 5)
