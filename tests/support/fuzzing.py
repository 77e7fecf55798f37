"""Schemathesis over the OpenAPI document: every operation, good and bad data, walks along the links.

What JSON Schema cannot say, and what a run must not wait for, is told to the engine here, each with its
reason: ``_shape`` and ``_DEPENDS_ON_OTHER_CALLS``. All else it finds is a fault of the service or of the
document. No check is switched off. The service is to be started with ``API_KEYS``.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.engine import Status, events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder

API_KEYS = "fuzz:produce+work+operate:secret"
_HEADERS = {"Authorization": "Bearer secret"}

PHASES = ("examples", "coverage", "fuzzing", "stateful")
_MAX_STEPS = 8
_REQUEST_TIMEOUT_SECONDS = 20.0
# Long waits cost time and show nothing more.
_MAX_WAIT_SECONDS = 30.0
_SHARE_OF_A_WAIT = 0.001

# What the document allows and other calls decide about: status, code, and the pointer where it counts.
_DEPENDS_ON_OTHER_CALLS = {
    # A cursor that no page gave out, or one of other filters.
    (400, "invalid_cursor", None),
    # A key or a request_id that is known with another body.
    (422, "idempotency_key_reused", None),
    (422, "invalid_request", "/request_id"),
}


@dataclass
class Run:
    """What a run did: cases by phase, checks by name, and links that were followed.

    ``steps`` counts (from, to, status) of operations as "POST /v1/jobs"; ``faults`` are texts for a person.
    """

    cases: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    steps: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    operations: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        phases = ", ".join(f"{count} {phase}" for phase, count in self.cases.items())
        taken = sum(count for (_, _, status), count in self.steps.items() if status < 300)
        return (
            f"schemathesis: {self.cases.total()} cases ({phases}), {self.checks.total()} checks,"
            f" {taken} links followed to a success, {len(self.faults)} failures"
        )


def fuzz(url: str, *, phases: Sequence[str], max_examples: int) -> Run:
    """Run phases over all operations of the service at ``url``.

    Data come from the document alone, not from chance; only ids and times in answers differ.
    """
    run = Run()
    _execute(run, url, phases=phases, max_examples=max_examples, seed=1)
    return run


def walk(url: str, *, min_case_count: int, operation_ids: Sequence[str] = ()) -> Run:
    """Walk along the links, between all operations unless some are named, until that many calls were made.

    The engine ends a walk when a repeat of its start is answered in another way, as a lease call is that
    finds other jobs: the next seed walks on.
    """
    run = Run()
    seeds = itertools.count(1)
    while run.cases["stateful"] < min_case_count and not run.faults:
        _execute(
            run,
            url,
            phases=["stateful"],
            max_examples=min_case_count,
            seed=next(seeds),
            operation_ids=operation_ids,
        )
    return run


def _execute(
    run: Run,
    url: str,
    *,
    phases: Sequence[str],
    max_examples: int,
    seed: int,
    operation_ids: Sequence[str] = (),
) -> None:
    # The document has its links; guessed ones lead away from them.
    stateful = {"max-steps": _MAX_STEPS, "inference": {"algorithms": []}}
    config = schemathesis.Config.from_dict(
        {
            "seed": seed,
            "headers": _HEADERS,
            "generation": {"deterministic": True, "max-examples": max_examples, "database": "none"},
            "cache": {"enabled": False},
            "phases": {
                name: {"enabled": name in phases} | (stateful if name == "stateful" else {})
                for name in PHASES
            },
            "continue-on-failure": True,
            "request-timeout": _REQUEST_TIMEOUT_SECONDS,
        }
    )
    with _hooks(url):
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config, headers=_HEADERS)
        chosen = schema.include(operation_id=[*operation_ids]) if operation_ids else schema
        for event in from_schema(chosen).execute():
            _record(run, event)


def _record(run: Run, event: events.EngineEvent) -> None:
    if isinstance(event, events.ScenarioFinished):
        run.cases[event.phase.value] += len(event.recorder.cases)
        _record_scenario(run, event.recorder)
    elif isinstance(event, events.NonFatalError):
        run.faults.append(f"{event.label}: {event.value!r}")
    elif isinstance(event, events.FatalError):
        raise event.exception


def _record_scenario(run: Run, recorder: ScenarioRecorder) -> None:
    for case_id, node in recorder.cases.items():
        run.operations.add(node.value.operation.label)
        response = recorder.find_response(case_id=case_id)
        if node.transition is not None and node.is_transition_applied and response is not None:
            source = recorder.cases[node.transition.parent_id].value
            run.steps[source.operation.label, node.value.operation.label, response.status_code] += 1
    for case_id, checks in recorder.checks.items():
        for check in checks:
            run.checks[check.name] += 1
            if check.status is not Status.SUCCESS:
                told = check.failure_info
                what = "crashed" if told is None else f"{told.failure}\n{told.code_sample}"
                run.faults.append(f"{check.name}: {what}\n{_answer_of(recorder, case_id)}")


def _answer_of(recorder: ScenarioRecorder, case_id: str) -> str:
    response = recorder.find_response(case_id=case_id)
    return "no answer" if response is None else f"{response.status_code} {response.text[:500]}"


@contextmanager
def _hooks(url: str) -> Iterator[None]:
    with httpx.Client(base_url=url, headers=_HEADERS, timeout=_REQUEST_TIMEOUT_SECONDS) as client:

        def before_call(_context: HookContext, case: Case[Any], _kwargs: dict[str, Any]) -> None:
            _shape(case, client)

        schemathesis.hook("before_call")(before_call)
        schemathesis.hook("filter_failure")(_is_fault)
        try:
            yield
        finally:
            schemathesis.hooks.unregister(before_call)
            schemathesis.hooks.unregister(_is_fault)


def _shape(case: Case[Any], client: httpx.Client) -> None:
    """Shorten what waits, write whole numbers as such, and let a lease call find a job."""
    _shorten_wait(case.query)
    if not isinstance(case.body, dict):
        return
    case.body = body = _with_whole_numbers(case.body)
    _shorten_wait(body)
    queues = body.get("queues")
    if case.operation.label == "POST /v1/leases" and isinstance(queues, list) and queues:
        # What is no name of a queue is refused here as it is there.
        client.post("/v1/jobs", json={"kind": "fuzz", "queue": queues[0]})


def _shorten_wait(members: Any) -> None:
    """Shorten a wait that is allowed, its digits kept; one that is not stays as it is, to be refused."""
    wait = members.get("wait_seconds") if members else None
    if wait is None or isinstance(wait, (bool, list, dict)):
        return
    try:
        seconds = float(wait)
    except ValueError:
        return
    if 0 < seconds <= _MAX_WAIT_SECONDS:
        shorter = seconds * _SHARE_OF_A_WAIT
        members["wait_seconds"] = str(shorter) if isinstance(wait, str) else shorter


def _with_whole_numbers(value: Any) -> Any:
    """Write 5.0 as 5: the same to JSON Schema, but for the service 5.0 is not a whole number."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _is_fault(_context: HookContext, failure: Failure, _case: Case[Any], response: Response) -> bool:
    if "positive_data_acceptance" not in failure.checks:
        return True
    problem = response.json()
    pointers = [None, *(error["pointer"] for error in problem.get("errors", []))]
    return _DEPENDS_ON_OTHER_CALLS.isdisjoint(
        (response.status_code, problem["code"], pointer) for pointer in pointers
    )
