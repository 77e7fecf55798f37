"""The handler of the reference client: does the steps of a payload."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.conformance.reference.leases import Lease, LeaseLost, ValueRefused

# What ends an attempt: the verb and the members of its call. None sends nothing.
Outcome = tuple[str, dict[str, Any]] | None


class Context(Protocol):
    """What a handler can ask of its worker."""

    def report(self, event: str, lease: Lease, **members: Any) -> None: ...

    def progress(self, lease: Lease, step: Mapping[str, Any]) -> None: ...

    def save(self, lease: Lease, value: Any) -> None: ...

    def submit(self, lease: Lease, body: Mapping[str, Any], name: str) -> None: ...

    def verify(self, lease: Lease) -> None: ...


class Stopped(Exception):
    """The handler was told to stop, and did."""


def run(lease: Lease, context: Context) -> Outcome:
    """Return how the attempt ends; None when nothing is to be sent."""
    context.report("started", lease)
    try:
        outcome = _steps(lease, context)
        context.report("ended", lease, how="raised" if outcome and outcome[0] == "fail" else "returned")
        return outcome
    except Stopped:
        context.report("ended", lease, how="raised")
        if lease.reason == "cancelled":
            return "fail", {"error": {"type": "cancelled", "message": "told to stop"}}
        return "release", {}
    except (LeaseLost, ValueRefused) as error:
        context.report("error", lease, code=error.code)
        context.report("ended", lease, how="raised")
        return "fail", {"error": {"type": type(error).__name__, "message": str(error)}}


def told(verb: str, body: dict[str, Any], reason: str | None) -> tuple[str, dict[str, Any]]:
    """Return what an end means of a handler that was told to stop: a failure is no more than its stopping."""
    if verb == "fail" and reason == "shutdown":
        return "release", {}
    if verb == "fail" and reason == "cancelled":
        body["error"]["type"] = "cancelled"
    return verb, body


def _steps(lease: Lease, context: Context) -> Outcome:
    for step in lease.job["payload"]["steps"]:
        match step:
            case {"sleep": seconds}:
                _await_stop(lease, context, seconds)
            case {"hold": True}:
                _await_stop(lease, context, None)
            case {"stubborn": seconds}:
                _ignore_stop(lease, context, seconds)
            case {"progress": report}:
                context.progress(lease, report)
            case {"checkpoint": value}:
                context.save(lease, value)
            case {"submit": body, "name": name}:
                context.submit(lease, body, name)
            case {"verify": True}:
                context.verify(lease)
            case _:
                return _final(step)
    return "complete", {"result": None}


def _await_stop(lease: Lease, context: Context, seconds: float | None) -> None:
    if lease.stop.wait(seconds):
        context.report("stopped", lease, reason=lease.reason)
        raise Stopped


def _ignore_stop(lease: Lease, context: Context, seconds: float) -> None:
    until = time.monotonic() + seconds
    if lease.stop.wait(seconds):
        context.report("stopped", lease, reason=lease.reason)
    time.sleep(max(0.0, until - time.monotonic()))


_FINAL: dict[str, Callable[[Any], Outcome]] = {
    "return": lambda value: ("complete", {"result": value}),
    "complete": lambda value: ("complete", dict(value)),
    "raise": lambda message: ("fail", {"error": {"type": "RuntimeError", "message": message}}),
    "release": lambda value: ("release", dict(value)),
    "settled": lambda _: None,
}


def _final(step: Mapping[str, Any]) -> Outcome:
    [(kind, value)] = step.items()
    if kind != "fail":
        return _FINAL[kind](value)
    error = {"type": "Fail", **{key: value[key] for key in ("message", "type", "details") if key in value}}
    rest = {key: value[key] for key in ("retryable", "retry_after_seconds") if key in value}
    return "fail", {"error": error, **rest}
