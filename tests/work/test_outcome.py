import errno
import os
import signal

import pytest
from fencepost import Complete, Fail, Release

from app.work.outcome import not_started, outcome_of


def _succeeded(line: bytes | None) -> Complete | Fail | Release:
    return outcome_of(0, stdout_line=line, stderr_tail=b"ignored", delay_seconds=None, error={"type": "x"})


def _ended(
    exit_code: int, *, stderr: bytes = b"", delay_seconds: float | None = None, **error: object
) -> Complete | Fail | Release:
    return outcome_of(
        exit_code, stdout_line=b"5", stderr_tail=stderr, delay_seconds=delay_seconds, error=error
    )


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (b"", None),
        (b' {"a": [1, null]} ', {"a": [1, None]}),
        (b"12345678901234567890123", 12345678901234567890123),
        (b'"text"', "text"),
        (b"null", None),
        (b"plain text ", "plain text"),
        # JSON to Python, but to nobody else.
        (b"NaN", "NaN"),
        (b"-Infinity", "-Infinity"),
        (b"{broken", "{broken"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_the_line_is_the_result_as_json_if_it_is_json_else_as_text(line: bytes, result: object) -> None:
    outcome = _succeeded(line)
    assert isinstance(outcome, Complete)
    assert outcome.result == result


def test_a_line_that_was_too_long_to_keep_is_a_refused_result() -> None:
    outcome = _succeeded(None)
    assert isinstance(outcome, Fail)
    assert (outcome.type, outcome.retryable) == ("result_refused", False)


@pytest.mark.parametrize(
    ("exit_code", "error_type", "retryable", "message"),
    [
        (1, "exit_1", True, "the command ended with exit code 1"),
        (65, "exit_65", False, "the command ended with exit code 65"),
        (255, "exit_255", True, "the command ended with exit code 255"),
        (-signal.SIGSEGV, "signal_SIGSEGV", True, "the command was killed by SIGSEGV"),
        (-signal.SIGKILL, "signal_SIGKILL", True, "the command was killed by SIGKILL"),
        (-40, "signal_40", True, "the command was killed by 40"),
    ],
)
def test_any_other_end_is_a_failure_that_names_it(
    exit_code: int, error_type: str, message: str, *, retryable: bool
) -> None:
    outcome = _ended(exit_code)
    assert isinstance(outcome, Fail)
    assert (outcome.type, outcome.retryable, outcome.message) == (error_type, retryable, message)
    assert outcome.retry_after_seconds is None


def test_the_message_is_the_last_line_of_stderr_that_is_not_blank() -> None:
    outcome = _ended(1, stderr=b"first\n  cannot open it  \n\n \n", delay_seconds=30)
    assert isinstance(outcome, Fail)
    assert outcome.message == "cannot open it"
    assert outcome.details == {"stderr": "first\n  cannot open it  \n\n \n"}
    assert outcome.retry_after_seconds == 30


def test_what_the_command_says_of_its_error_itself_goes_first() -> None:
    outcome = _ended(1, stderr=b"trace\n", type="bad_address", details=[1])
    assert isinstance(outcome, Fail)
    assert (outcome.type, outcome.message, outcome.details) == ("bad_address", "trace", [1])


def test_exit_code_75_gives_the_job_back_and_says_why() -> None:
    outcome = _ended(75, stderr=b"busy\n", delay_seconds=10)
    assert isinstance(outcome, Release)
    assert (outcome.delay_seconds, outcome.reason) == (10, "busy")


def test_a_sentence_fits_into_the_reason_of_a_release() -> None:
    outcome = _ended(75, stderr=b"x" * 5_000)
    assert isinstance(outcome, Release)
    assert outcome.reason == "x" * 1_024


def test_a_command_that_cannot_be_started_says_what_the_system_said() -> None:
    outcome = not_started(OSError(errno.E2BIG, os.strerror(errno.E2BIG)))
    assert (outcome.type, outcome.retryable) == ("command_not_started", True)
    assert outcome.message == "the command could not be started: Argument list too long"
    assert not_started(ValueError("embedded null byte")).message.endswith("embedded null byte")
