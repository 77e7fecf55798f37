import json
from typing import Any

import pytest

from app.settings import Settings
from app.work.environment import base_environment, job_environment

_URL = "http://service:8000"
_FACTS: dict[str, Any] = {
    "id": "01a2",
    "queue": "mail",
    "kind": "email.send",
    "lease_version": 7,
    "attempt": 1,
    "max_attempts": 10,
    "deadline_at": None,
    "traceparent": None,
    "tracestate": None,
    "metadata": {},
    "checkpoint": None,
    "previous": None,
}
_SET_FOR_EVERY_JOB = {
    "FENCEPOST_URL": _URL,
    "FENCEPOST_PROGRESS_FD": "3",
    "FENCEPOST_JOB_ID": "01a2",
    "FENCEPOST_JOB_QUEUE": "mail",
    "FENCEPOST_JOB_KIND": "email.send",
    "FENCEPOST_LEASE_VERSION": "7",
    "FENCEPOST_JOB_ATTEMPT": "1",
    "FENCEPOST_JOB_MAX_ATTEMPTS": "10",
    "FENCEPOST_JOB_METADATA": "{}",
}


def _environment(environ: dict[str, str], **facts: Any) -> dict[str, str]:
    return job_environment(base_environment(environ, url=_URL), _FACTS | facts)


def test_the_command_gets_the_worker_s_own_environment_and_the_facts_of_its_job() -> None:
    assert _environment({"PATH": "/bin", "HOME": "/root"}) == {
        "PATH": "/bin",
        "HOME": "/root",
        **_SET_FOR_EVERY_JOB,
    }


@pytest.mark.parametrize(
    "name",
    [
        "FENCEPOST_CLIENT_KEY",
        "FENCEPOST_API_KEYS",
        "FENCEPOST_API_KEYS_FILE",
        "FENCEPOST_DATABASE_URL",
        "FENCEPOST_LISTEN_URL",
    ],
)
def test_no_secret_reaches_the_command(name: str) -> None:
    assert _environment({name: "hunter2"}) == _SET_FOR_EVERY_JOB


def test_what_a_job_lacks_is_unset_although_the_worker_itself_runs_under_another_job() -> None:
    outer = _environment(
        {},
        checkpoint={"page": 2},
        previous={"attempt": 1, "outcome": "failed", "error": None},
        deadline_at="2027-01-01T00:00:00Z",
        traceparent="00-1-2-01",
        tracestate="a=b",
    )
    assert set(outer) - set(_SET_FOR_EVERY_JOB) == {
        "FENCEPOST_JOB_CHECKPOINT",
        "FENCEPOST_JOB_PREVIOUS",
        "FENCEPOST_JOB_DEADLINE_AT",
        "TRACEPARENT",
        "TRACESTATE",
    }
    assert _environment(outer) == _SET_FOR_EVERY_JOB


def test_json_in_a_variable_is_ascii_without_nul_whatever_it_holds() -> None:
    metadata = {"\0": "é\ud800\n"}
    text = _environment({}, metadata=metadata)["FENCEPOST_JOB_METADATA"]
    assert text.isascii()
    assert "\0" not in text
    assert json.loads(text) == metadata


def test_programs_of_the_service_start_with_the_environment_of_a_command() -> None:
    environ = _environment({"FENCEPOST_CLIENT_KEY": "k"}, checkpoint=1, previous={}, deadline_at="2027")
    assert Settings.from_environment(environ) == Settings()
