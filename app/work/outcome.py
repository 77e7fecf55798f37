"""What the end of a command means for its job."""

import json
import os
import signal
from collections.abc import Mapping
from typing import Any, NoReturn

from fencepost import Complete, Fail, Release

# sysexits.h: "the user is invited to retry", and "the input data was incorrect".
RELEASE_EXIT_CODE = os.EX_TEMPFAIL
FAIL_FOR_GOOD_EXIT_CODE = os.EX_DATAERR

# The contract's limit for the reason of a release; a message has more room than anybody reads.
_SENTENCE_CHARACTERS = 1_024


def outcome_of(
    exit_code: int,
    *,
    stdout_line: bytes | None,
    stderr_tail: bytes,
    delay_seconds: float | None,
    error: Mapping[str, Any],
) -> Complete | Fail | Release:
    """Decide how an attempt ends by how its command did.

    exit_code is negative for a signal. stdout_line is the last line of stdout that is not blank; None for one
    that was too long to keep. stderr_tail is the end of stderr. delay_seconds None leaves the delay of a
    failure to the job's backoff; a release is then without a delay. error has the members of a failure that
    the command has set itself.
    """
    if exit_code == 0:
        if stdout_line is None:
            return Fail(
                "the last line of stdout is too long for a result", type="result_refused", retryable=False
            )
        return Complete(_result(stdout_line))
    ending, error_type = _ending(exit_code)
    said = stderr_tail.decode(errors="replace")
    sentence = (_last_line(said) or f"the command {ending}")[:_SENTENCE_CHARACTERS]
    if exit_code == RELEASE_EXIT_CODE:
        return Release(delay_seconds or 0.0, sentence)
    return Fail(
        error.get("message", sentence),
        type=error.get("type", error_type),
        details=error.get("details", {"stderr": said}),
        retryable=exit_code != FAIL_FOR_GOOD_EXIT_CODE,
        retry_after_seconds=delay_seconds,
    )


def not_started(error: OSError | ValueError) -> Fail:
    """Return the failure of a command that the system would not run."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return Fail(f"the command could not be started: {reason}", type="command_not_started")


def _ending(exit_code: int) -> tuple[str, str]:
    if exit_code > 0:
        return f"ended with exit code {exit_code}", f"exit_{exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        # A real-time signal has no name.
        name = str(-exit_code)
    return f"was killed by {name}", f"signal_{name}"


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return lines[-1].strip() if lines else ""


def _result(line: bytes) -> Any:
    """Read a result: JSON if it is JSON, else text. A blank line is no result."""
    text = line.decode(errors="replace").strip()
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
