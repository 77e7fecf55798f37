"""The reference client as a producer."""

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from tests.conformance.reference.calls import Caller, NoAnswer, Reply, encode, pauses
from tests.conformance.reference.wrongs import Wrongs

LIMIT_SECONDS = 15


class Producer:
    """Submits jobs, and repeats a call until it is answered."""

    def __init__(self, caller: Caller, wrongs: Wrongs) -> None:
        self._caller = caller
        self._wrong = wrongs

    def submit(self, body: Mapping[str, Any]) -> Reply:
        job = dict(body)
        if self._wrong("rounds_durations") and "delay_seconds" in job:
            whole, fraction = divmod(job["delay_seconds"], 1)
            job["delay_seconds"] = whole + round(fraction, 9)
        given = job.pop("idempotency_key", None)
        key = self._key() if given is None or self._wrong("ignores_given_key") else given
        return self._repeat("/v1/jobs", encode(job), key)

    def submit_many(self, bodies: list[Mapping[str, Any]]) -> Reply:
        keyless = self._wrong("batch_without_keys")
        jobs = [body if keyless else {"idempotency_key": self._key(), **body} for body in bodies]
        return self._repeat("/v1/jobs/batch", encode({"jobs": jobs}), None)

    def _key(self) -> str | None:
        if self._wrong("no_idempotency_key"):
            return None
        return "the-key" if self._wrong("one_key_for_all") else str(uuid.uuid4())

    def _repeat(self, path: str, raw: bytes, key: str | None) -> Reply:
        began = time.monotonic()
        reply = Reply(503, {"code": "unavailable"}, 0)
        for pause in pauses():
            least = 0.0
            try:
                is_shown = not self._wrong("no_key_on_submits")
                reply = self._caller.send("POST", path, raw, idempotency_key=key, with_key=is_shown)
                if not reply.is_weather and not (self._wrong("retries_422") and reply.status == 422):
                    return reply
                least = 0 if self._wrong("ignores_retry_after") else reply.retry_after
            except NoAnswer:
                if self._wrong("gives_up_submitting"):
                    return reply
            if time.monotonic() - began > LIMIT_SECONDS:
                return reply
            if self._wrong("new_key_each_try"):
                key = key and self._key()
                raw = re.sub(rb'("idempotency_key": )"[^"]*"', rb'\1"%s"' % uuid.uuid4().hex.encode(), raw)
            time.sleep(max(least, 0.05 if self._wrong("hammers") else pause))
        return reply
