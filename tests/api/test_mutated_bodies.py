"""Bodies that were good once: bytes and tokens of each route's body, changed at random.

Whatever comes of a body, the answer is one that the document promises (the client's hook looks), a refused
request leaves every row as it was, and jobs can be created and leased afterwards. The run is the same every
time; FUZZ_EXAMPLES=5000 makes a longer one a route, with a new seed each time. What was answered how often is
told by ``--hypothesis-show-statistics``.
"""

import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from psycopg import sql

from app.settings import Settings
from tests.support.api import Json, refused, run_job, submit, tell, tell_ok
from tests.support.document import Operation, operations

pytestmark = pytest.mark.slow

ASKED_EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
RUN = settings(
    max_examples=int(ASKED_EXAMPLES or 50),
    derandomize=ASKED_EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

WITH_BODY = [operation for operation in operations() if operation.has_body]
JOB = {
    "kind": "work",
    "queue": "default",
    "payload": {"a": [1, 0.10, "b", None, True], "c": {"d": "e"}},
    "priority": -5,
    "delay_seconds": 0.5,
    "max_attempts": 3,
    "backoff": {"type": "linear", "base_seconds": 1, "factor": 2, "max_seconds": 60, "jitter": 0.5},
    "max_runtime_seconds": 600,
    "progress_timeout_seconds": 60,
    "metadata": {"m": "n"},
}
# What the documented examples leave out.
FULLER: dict[str, dict[str, Any]] = {
    "submit_job": JOB,
    "submit_batch": {"jobs": [JOB | {"idempotency_key": "k"}, {"kind": "work"}]},
    "lease_jobs": {"queues": ["default", "other"], "max_jobs": 2, "request_id": "r"},
    "cancel_job": {"reason": "why", "force": True},
    "redrive_job": {"run_at": "2026-03-01T09:30:00+01:00"},
    "edit_job": {"priority": 1, "run_at": "2026-03-01T09:30:00Z", "max_attempts": 5},
    "heartbeat_job": {
        "extend_seconds": 60,
        "progress": {"seq": 1, "percent": 50.5, "message": "half"},
        "checkpoint": [1],
    },
    "complete_job": {"result": {"ok": 1.0}, "enqueue": [JOB]},
    "fail_job": {
        "error": {"message": "m", "type": "t", "details": {"d": [1]}},
        "retryable": True,
        "retry_after_seconds": 5,
    },
    "release_job": {"delay_seconds": 1, "reason": "why"},
}
# Background loops move jobs between these two; the rest of the rows changes by calls alone.
WAITING = ("scheduled", "ready")
TABLES = ("jobs", "leases", "finished", "attempts", "idempotency_keys", "lease_requests")
ROWS = sql.SQL("SELECT {}, {}").format(
    sql.SQL(" + ").join(
        sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier("fencepost", table)) for table in WAITING
    ),
    sql.SQL(", ").join(
        sql.SQL("(SELECT count(*) || '/' || coalesce(sum(hashtext(r::text)), 0) FROM {} r)").format(
            sql.Identifier("fencepost", table)
        )
        for table in TABLES
    ),
)

# JSON, however odd, to stand for a value.
ODD_VALUES = [
    *(
        b"null",
        b"true",
        b"false",
        b"{}",
        b"[]",
        b'[{"kind":"work"}]',
        b'{"a":1,"a":2}',
        b'{"\\u0061":1,"a":2}',
    ),
    *(b"0", b"-0", b"1", b"-1", b"5.0", b"1E+2", b"1e400", b"9" * 400, b"0." + b"0" * 400 + b"1", b"32768"),
    *(b"9007199254740993", b"9223372036854775808", b"1e-999", b"604801"),
    *(
        b'""',
        b'" "',
        b'"5"',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\\ud83d\\ude00"',
        b'"\\/"',
        b'"work\\n"',
        b'"true"',
    ),
    *('"\u00e9\U0001f600\u2028"'.encode(), b'"' + b"x" * 2_000 + b'"'),
    *(b'"9999-12-31T23:59:59-14:00"', b'"0001-01-01T00:00:00Z"', b'"2026-02-30T00:00:00Z"', b'"2026-01-01"'),
    *(b"[" * 99 + b"]" * 99, b"[" * 120 + b"]" * 120, b'{"a":' * 130 + b"1" + b"}" * 130),
]
ODD_NAMES = [
    *(
        b'"kind"',
        b'"\\u006bind"',
        b'"lease_\\u0076ersion"',
        b'"payload"',
        b'"details"',
        b'"metadata"',
        b'"Kind"',
    ),
    *(
        b'"parent"',
        b'"enqueue"',
        b'"reason"',
        b'""',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"a/b~c"',
        '"\u00e9"'.encode(),
    ),
]
NO_JSON = [
    *(b"NaN", b"-Infinity", b"01", b"+1", b".5", b"0x10", b"nul", b"True", b"'a'", b'"\\x41"', b'"\\u00"'),
    *(b",", b":", b"{", b"}", b"[", b"]", b'"', b"\\", b"\x00", b"\xff", b"\xc0\x80", b"\xef\xbb\xbf", b"//"),
]
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\w.+-]+|\s+|.', re.DOTALL)


def tokens_of(body: bytes) -> tuple[list[bytes], list[int], list[int]]:
    """Return the tokens, and where names and where single values stand among them."""
    tokens = [token for token in TOKEN.findall(body) if not token.isspace()]
    texts = [at for at, token in enumerate(tokens) if token not in b"{}[]:,"]
    names = [at for at in texts if tokens[at + 1 : at + 2] == [b":"]]
    return tokens, names, [at for at in texts if at not in names]


@st.composite
def mutations(draw: st.DrawFn, bodies: list[bytes]) -> bytes:
    """Return one of the bodies after a few changes, most of which leave it JSON."""
    body = draw(st.sampled_from(bodies))
    for _ in range(draw(st.integers(1, 3))):
        tokens, names, values = tokens_of(body)
        if not names or not values:
            break
        name, value = draw(st.sampled_from(names)), draw(st.sampled_from(values))
        match draw(st.sampled_from(["value", "value", "value", "name", "member", "swap", "drop", "break"])):
            case "value":
                tokens[value] = draw(st.sampled_from(ODD_VALUES))
            case "name":
                tokens[name] = draw(st.sampled_from(ODD_NAMES))
            case "member":
                # One that stands there already, or one that belongs elsewhere.
                doubled = draw(st.sampled_from([tokens[name], *ODD_NAMES]))
                tokens[name:name] = [doubled, b":", draw(st.sampled_from([tokens[value], *ODD_VALUES])), b","]
            case "swap":
                other = draw(st.sampled_from(values))
                tokens[value], tokens[other] = tokens[other], tokens[value]
            case "drop":
                del tokens[value]
            case "break":
                tokens.insert(draw(st.integers(0, len(tokens))), draw(st.sampled_from(NO_JSON)))
        body = b"".join(tokens)
    if draw(st.integers(0, 7)) == 7:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=4)) + body[at + draw(st.integers(0, 4)) :]
    return body


@dataclass
class Bench:
    """The service with a job at work, and its rows as they are."""

    client: httpx.AsyncClient
    connection: psycopg.Connection[Any]
    leased: Json = field(default_factory=dict)
    started_count: int = 0

    async def job_for(self, operation: Operation) -> str:
        """Return a job that the route can do something to; the one at work is there in any case."""
        if not self.leased or not (await tell(self.client, "verify", self.leased)).is_success:
            self.leased = await self.start_job()
        match operation.name:
            case "edit_job":
                return str((await submit(self.client))["id"])
            case "redrive_job":
                dead = await self.start_job()
                await tell_ok(self.client, "fail", dead, error={"message": "m"})
                return str(dead["id"])
            case _:
                return str(self.leased["id"])

    async def start_job(self) -> Json:
        self.started_count += 1
        queue = f"bench-{self.started_count}"
        return await run_job(self.client, queue=queue, lease_seconds=3600, max_attempts=1)

    def rows(self) -> Any:
        return self.connection.execute(ROWS).fetchone()

    def bodies(self, operation: Operation) -> list[bytes]:
        """Return bodies that the route accepts: the documented one for the job at work, and a fuller one."""
        token = {"lease_version": self.leased["lease_version"]}
        short = operation.example | (token if "lease_version" in operation.example else {})
        # A call that finds nothing must not wait for it.
        short.pop("wait_seconds", None)
        if "items" in short:
            single = FULLER[operation.name.replace("_leases", "_job")]
            item = token | {"job_id": self.leased["id"]}
            short = {"items": [short["items"][0] | item]}
            full = {"items": [short["items"][0] | single | item, short["items"][0]]}
        else:
            full = short | FULLER.get(operation.name, {})
        return [json.dumps(body).encode() for body in (short, full)]


@pytest.fixture(name="settings")
def _settings() -> Settings:
    # Clocks that run out between two looks would change rows without a call.
    return Settings(reaper_interval_seconds=86_400)


@pytest.fixture
async def bench(client: httpx.AsyncClient, database_url: str) -> AsyncIterator[Bench]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        made = Bench(client, connection)
        yield made
        # Whatever was sent: the next job takes its ordinary way.
        await tell_ok(client, "complete", await made.start_job(), result="done")


async def send(client: httpx.AsyncClient, operation: Operation, job_id: str, body: bytes) -> httpx.Response:
    return await client.request(
        operation.method,
        operation.path.replace("{job_id}", job_id),
        content=body,
        headers={"Content-Type": "application/json"},
    )


@pytest.mark.parametrize("operation", WITH_BODY, ids=[operation.name for operation in WITH_BODY])
@RUN
@given(data=st.data())
async def test_mutated_body_is_refused_in_one_shape_or_does_what_it_says(
    bench: Bench, operation: Operation, data: st.DataObject
) -> None:
    job_id = await bench.job_for(operation)
    body = data.draw(mutations(bench.bodies(operation)))
    before = bench.rows()
    answer = await send(bench.client, operation, job_id, body)
    event(f"answered {answer.status_code}")
    assert answer.status_code < 500
    told = json.loads(answer.content.decode() or "null", parse_constant=no_constant)
    if not answer.is_success:
        refused(answer, answer.status_code, told["code"])
        assert bench.rows() == before, "a refused request changed rows"


@pytest.mark.parametrize("operation", WITH_BODY, ids=[operation.name for operation in WITH_BODY])
async def test_bodies_to_be_mutated_are_accepted(bench: Bench, operation: Operation) -> None:
    for number in range(2):
        job_id = await bench.job_for(operation)
        answer = await send(bench.client, operation, job_id, bench.bodies(operation)[number])
        assert answer.is_success, answer.text


def no_constant(name: str) -> object:
    raise AssertionError(f"{name} is not JSON")
