"""The command that ``fencepost work`` runs under the conformance suite: it does the steps of the payload.

It shows what a command has to do, in any language: exit codes, lines on descriptor 3, and the service's
own address for what it wants to say there itself.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

_EVENTS = json.loads(os.environ["CONFORMANCE"])["events"]
_KEY = json.loads(os.environ["CONFORMANCE"]).get("api_key")
_URL = os.environ["FENCEPOST_URL"]
_TOKEN = {
    "job_id": os.environ["FENCEPOST_JOB_ID"],
    "lease_version": int(os.environ["FENCEPOST_LEASE_VERSION"]),
}
_STOP = {signal.SIGTERM}
_TRY_AGAIN_SECONDS = 0.2


class Stopped(Exception):
    """The command was told to stop, and does."""


class Refused(Exception):
    """The service has refused a step; the text is its code."""


class Worker:
    """The other end of descriptor 3."""

    def __init__(self) -> None:
        self._lines = socket.socket(fileno=int(os.environ["FENCEPOST_PROGRESS_FD"])).makefile("rwb")
        self._reason: str | None = None

    def tell(self, line: str) -> None:
        """Write a line."""
        self._lines.write(line.encode() + b"\n")
        self._lines.flush()

    def ask(self, line: str) -> None:
        """Write a line and await its answer; raise Refused."""
        self.tell(line)
        word, rest = self._read()
        while word == "stop":
            self._reason = rest
            word, rest = self._read()
        if word == "refused":
            raise Refused(rest)

    def reason(self) -> str:
        """Return why this process is to stop."""
        if self._reason is None:
            _, self._reason = self._read()
        return self._reason

    def _read(self) -> tuple[str, str]:
        word, _, rest = self._lines.readline().decode().strip().partition(" ")
        return word, rest


def main() -> int:
    """Do the steps, and return the exit code."""
    # Looked at where a step waits, so that no step is torn.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    worker = Worker()
    steps = json.load(sys.stdin)["steps"]
    _write("started")
    try:
        code = _do(steps, worker)
    except Stopped:
        _write("ended", how="raised")
        _die()
    except Refused as error:
        _write("error", code=str(error))
        _write("ended", how="raised")
        print(error, file=sys.stderr)
        return 1
    _write("ended", how="raised" if code in (1, 65) else "returned")
    return code


def _do(steps: list[dict[str, Any]], worker: Worker) -> int:
    for step in steps:
        match step:
            case {"sleep": seconds}:
                _rest(worker, seconds)
            case {"hold": True}:
                _rest(worker, None)
            case {"stubborn": seconds}:
                until = time.monotonic() + seconds
                with contextlib.suppress(Stopped):
                    _rest(worker, seconds)
                time.sleep(max(0.0, until - time.monotonic()))
            case {"progress": {"percent": percent, **rest}}:
                worker.tell(f"progress {percent} {rest.get('message', '')}")
            case {"progress": report}:
                worker.tell(f"progress {report.get('message', '')}")
            case {"checkpoint": value}:
                worker.ask(f"checkpoint {json.dumps(value)}")
            case {"verify": True}:
                worker.ask("verify")
            case {"submit": body, "name": name}:
                _submit(worker, body, name)
            case _:
                return _end(step, worker)
    return 0


def _rest(worker: Worker, seconds: float | None) -> None:
    told = signal.sigwait(_STOP) if seconds is None else signal.sigtimedwait(_STOP, seconds)
    if told is not None:
        _write("stopped", reason=worker.reason())
        raise Stopped


def _submit(worker: Worker, body: dict[str, Any], name: str) -> None:
    # Only here: loading it takes longer than all the rest, and most jobs do not call.
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{_TOKEN['job_id']}:{name}"}
    if _KEY:
        headers["Authorization"] = f"Bearer {_KEY}"
    data = json.dumps({**body, "parent": _TOKEN}).encode()
    request = urllib.request.Request(f"{_URL}/v1/jobs", data, headers)
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                # The worker has not seen this answer: let it ask, so that it knows too.
                worker.ask("verify")
                raise Refused(json.load(error)["code"]) from error
        except OSError:
            pass
        time.sleep(_TRY_AGAIN_SECONDS)


def _end(step: dict[str, Any], worker: Worker) -> int:
    [(kind, value)] = step.items()
    match kind:
        case "return":
            print(json.dumps(value))
            return 0
        case "complete":
            print(json.dumps(value.get("result")))
            return 0
        case "release":
            worker.tell(f"delay {value.get('delay_seconds', 0)}")
            print(value.get("reason", ""), file=sys.stderr)
            return os.EX_TEMPFAIL
        case "raise":
            print(value, file=sys.stderr)
            return 1
        case "fail":
            if "retry_after_seconds" in value:
                worker.tell(f"delay {value['retry_after_seconds']}")
            members = ("type", "message", "details")
            worker.tell(f"error {json.dumps({name: value[name] for name in members if name in value})}")
            return 1 if value.get("retryable", True) else os.EX_DATAERR
        case _:
            raise ValueError(kind)


def _write(event: str, **members: str) -> None:
    with open(_EVENTS, "ab", buffering=0) as events:
        events.write(json.dumps({"event": event, **_TOKEN, **members}).encode() + b"\n")


def _die() -> NoReturn:
    """End as a program does that leaves SIGTERM alone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
