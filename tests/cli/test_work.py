"""`fencepost work` as its operator sees it: a real service, real commands, signals and exit codes."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.command_worker import LIMIT_SECONDS, Service, Work, until
from tests.support.server import ServerProcess

Start = Callable[..., Work]

# A job that has failed is looked at before its next attempt, however busy the machine is.
NOT_AGAIN = {"type": "fixed", "base_seconds": 3600}
# Short, so that a worker soon hears of a cancel; and longer than a machine stands still.
LEASE_SECONDS = 6


@pytest.fixture(name="service")
def _service(shared_service: ServerProcess) -> Service:
    return Service(shared_service.url, queue=f"q-{uuid.uuid4().hex}")


@pytest.fixture(name="work")
def _work(service: Service, tmp_path: Path) -> Iterator[Start]:
    started: list[Work] = []

    def start(*command: str, **options: Any) -> Work:
        environ = options.pop("environ", None)
        arguments = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in ({"queue": service.queue} | options).items()
        ]
        worker = Work(service.url, tmp_path, command, options=arguments, environ=environ)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.end()


def _script(folder: Path, text: str) -> str:
    path = folder / f"command-{len(list(folder.glob('command-*')))}.sh"
    path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _runs(pid: int) -> bool:
    """Whether there is more of a process than the entry that waits for its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_PAYLOAD = {"to": "é\U0001f600", "n": 12345678901234567890}


def _failed(error_type: str, message: str, stderr: str = "") -> dict[str, Any]:
    return {
        "state": "scheduled",
        "attempt": 1,
        "error": {"type": error_type, "message": message, "details": {"stderr": stderr}},
    }


# What a job's command does, and what has to become of the job.
_ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("""echo noise; echo ' {"a": 1}'; echo; echo ' '""", {"state": "succeeded", "result": {"a": 1}}),
    "text": ("echo done it", {"state": "succeeded", "result": "done it"}),
    "no-line-end": ("printf 5", {"state": "succeeded", "result": 5}),
    "nothing": ("true", {"state": "succeeded", "result": None}),
    "payload": ("exec cat", {"state": "succeeded", "result": _PAYLOAD}),
    "arguments": ("echo $1/$2", {"state": "succeeded", "result": "one/two words"}),
    "1": ("echo first >&2; echo why >&2; exit 1", _failed("exit_1", "why", "first\nwhy\n")),
    "silent": ("exit 3", _failed("exit_3", "the command ended with exit code 3")),
    "signal": ("kill -SEGV $$", _failed("signal_SIGSEGV", "the command was killed by SIGSEGV")),
    "65": ("echo never >&2; exit 65", _failed("exit_65", "never", "never\n") | {"state": "dead"}),
    "75": ("echo busy >&2; exit 75", {"state": "scheduled", "attempt": 0, "error": None}),
    "own-error": (
        """echo 'error {"type": "t", "details": 7}' >&3; echo m >&2; exit 4""",
        {"state": "scheduled", "error": {"type": "t", "message": "m", "details": 7}},
    ),
    "long-stderr": (
        "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1",
        _failed("exit_1", "x" * 1_024, "x" * 4_096),
    ),
    "long-result": ("head -c 300000 /dev/zero | tr '\\0' x", {"state": "dead", "result": None}),
    "endless-line": ("head -c 20000000 /dev/zero | tr '\\0' x", {"state": "dead", "result": None}),
}


def test_the_end_of_a_command_is_the_end_of_its_attempt(
    service: Service, work: Start, tmp_path: Path
) -> None:
    jobs = {kind: service.submit(_PAYLOAD, kind=kind, backoff=NOT_AGAIN) for kind in _ENDS}
    cases = "".join(f"{kind}) {script};;\n" for kind, (script, _) in _ENDS.items())
    worker = work(
        _script(tmp_path, f"case $FENCEPOST_JOB_KIND in\n{cases}esac"), "one", "two words", concurrency=4
    )
    # A release leaves no attempt, but a version.
    ended = {
        kind: service.until(job_id, lambda job: job["lease_version"] == 1 and job["lease"] is None)
        for kind, job_id in jobs.items()
    }
    expected = {kind: members for kind, (_, members) in _ENDS.items()}
    assert {kind: {name: ended[kind][name] for name in expected[kind]} for kind in _ENDS} == expected
    refused = {ended[kind]["error"]["type"] for kind in ("long-result", "endless-line")}
    assert refused == {"result_refused"}
    [released] = service.attempts(jobs["75"])
    assert (released["outcome"], released["error"]["message"]) == ("released", "busy")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    # What commands write is passed on, whole lines of it.
    assert {"noise", "done it", "5", "one/two words"} <= set(worker.stdout.splitlines())
    assert {"first", "why", "never", "busy"} <= set(worker.stderr.splitlines())


def test_exit_code_75_waits_for_the_delay_that_the_command_or_else_the_option_says(
    service: Service, work: Start, tmp_path: Path
) -> None:
    jobs = {kind: service.submit(kind=kind) for kind in ("command", "option")}
    script = "if [ $FENCEPOST_JOB_KIND = command ]; then echo delay 5000 >&3; fi; exit 75"
    work(_script(tmp_path, script), release_delay_seconds=1000)
    for kind, delay_seconds in (("command", 5000), ("option", 1000)):
        job = service.until(jobs[kind], lambda job: job["lease_version"] == 1 and job["lease"] is None)
        [attempt] = service.attempts(jobs[kind])
        waits = datetime.fromisoformat(job["run_at"]) - datetime.fromisoformat(attempt["ended_at"])
        assert abs(waits.total_seconds() - delay_seconds) < 1


def test_the_command_gets_the_facts_of_its_job_and_no_key(
    service: Service, work: Start, tmp_path: Path
) -> None:
    job_id = service.submit(metadata={"tenant": "a"}, max_attempts=3, max_runtime_seconds=100)
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    work(sys.executable, "-c", script, environ={"FENCEPOST_CLIENT_KEY": "hunter2", "MINE": "kept"})
    environ = service.until_state(job_id, "succeeded")["result"]
    facts = {name: value for name, value in environ.items() if name.startswith("FENCEPOST_")}
    assert facts.pop("FENCEPOST_JOB_DEADLINE_AT").endswith("Z")
    assert facts == {
        "FENCEPOST_URL": service.url,
        "FENCEPOST_JOB_ID": job_id,
        "FENCEPOST_JOB_QUEUE": service.queue,
        "FENCEPOST_JOB_KIND": "any",
        "FENCEPOST_LEASE_VERSION": "1",
        "FENCEPOST_JOB_ATTEMPT": "1",
        "FENCEPOST_JOB_MAX_ATTEMPTS": "3",
        "FENCEPOST_JOB_METADATA": '{"tenant": "a"}',
        "FENCEPOST_PROGRESS_FD": "3",
    }
    assert environ["MINE"] == "kept"


def test_a_checkpoint_reaches_the_next_attempt_with_how_this_one_ended(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = """
if [ -z "$FENCEPOST_JOB_CHECKPOINT" ]; then
    echo 'checkpoint {"page": 1}' >&3; read -r first <&3
    echo 'checkpoint no json' >&3; read -r second <&3
    echo verify >&3; read -r third <&3
    # This one nobody waits for: it is stored before the failure is told.
    echo 'checkpoint {"page": 2}' >&3
    echo "$first, $second, $third" >&2
    exit 1
fi
echo "[$FENCEPOST_JOB_CHECKPOINT, $FENCEPOST_JOB_PREVIOUS]"
"""
    job_id = service.submit(backoff={"type": "fixed", "base_seconds": 0})
    work(_script(tmp_path, script))
    checkpoint, previous = service.until_state(job_id, "succeeded")["result"]
    assert checkpoint == {"page": 2}
    assert (previous["attempt"], previous["outcome"]) == (1, "failed")
    assert previous["error"]["message"] == "stored, refused malformed_request, held"


def test_progress_lines_are_seen_and_nonsense_is_reported(
    service: Service, work: Start, tmp_path: Path
) -> None:
    lines = "nonsense\nprogress\nprogress 150 too much\nprogress 40% page 2 of 5"
    job_id = service.submit()
    worker = work(_script(tmp_path, f"echo '{lines}' >&3; exec sleep 600"))
    job = service.until(job_id, lambda job: job["lease"] and job["lease"]["progress"])
    progress = job["lease"]["progress"]
    assert (progress["percent"], progress["message"]) == (40, "page 2 of 5")
    until(lambda: "not understood: 'nonsense'" in worker.stderr and "150 is no percentage" in worker.stderr)


def test_a_command_that_writes_no_progress_loses_its_job_and_one_that_does_keeps_it(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = """
if [ $FENCEPOST_JOB_KIND = stuck ]; then
    trap "echo $FENCEPOST_LEASE_VERSION >>stopped; exit 0" TERM
    sleep 600 & wait
fi
for _ in {1..18}; do sleep 0.5; echo progress >&3; done
"""
    jobs = {
        # The busy one works for longer than that, and a slow machine has time between two lines.
        kind: service.submit(kind=kind, progress_timeout_seconds=seconds, backoff=NOT_AGAIN)
        for kind, seconds in (("stuck", 2), ("busy", 7))
    }
    work(_script(tmp_path, f"cd {tmp_path}\n{script}"), concurrency=2, lease_seconds=LEASE_SECONDS)
    stuck = service.until(jobs["stuck"], lambda job: job["lease_version"] == 1 and job["lease"] is None)
    [attempt] = service.attempts(jobs["stuck"])
    assert (stuck["state"], attempt["outcome"]) == ("scheduled", "stalled")
    until(lambda: _lines(tmp_path / "stopped") == ["1"])
    assert service.until_state(jobs["busy"], "succeeded")["attempt"] == 1


def test_a_cancel_stops_the_whole_group_and_a_stubborn_one_is_killed(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = """
trap 'read -r why <&3; echo "$why" >&2; [ $FENCEPOST_JOB_KIND = stubborn ] || exit 3' TERM
sleep 600 & echo $! >>pids
while true; do wait; done
"""
    jobs = [service.submit(kind=kind) for kind in ("polite", "stubborn")]
    work(
        _script(tmp_path, f"cd {tmp_path}\n{script}"),
        concurrency=2,
        lease_seconds=LEASE_SECONDS,
        grace_seconds=1,
    )
    until(lambda: len(_lines(tmp_path / "pids")) == 2)
    for job_id in jobs:
        service.post(f"/v1/jobs/{job_id}/cancel", {})
    for job_id in jobs:
        job = service.until_state(job_id, "cancelled")
        assert (job["error"]["type"], job["error"]["message"]) == ("cancelled", "stop cancelled")
    until(lambda: not any(map(_runs, map(int, _lines(tmp_path / "pids")))))


def test_a_result_that_was_ready_wins_over_the_cancel(service: Service, work: Start, tmp_path: Path) -> None:
    job_id = service.submit()
    work(
        _script(tmp_path, f"trap 'echo ready; exit 0' TERM; touch {tmp_path}/begun; sleep 600 & wait"),
        lease_seconds=LEASE_SECONDS,
    )
    until((tmp_path / "begun").exists)
    service.post(f"/v1/jobs/{job_id}/cancel", {})
    assert service.until_state(job_id, "succeeded")["result"] == "ready"


def test_nothing_is_sent_for_a_lost_lease_whatever_the_command_says(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = f"""
trap 'read -r why <&3; echo "$why" >{tmp_path}/why; echo late; exit 0' TERM
touch {tmp_path}/begun
sleep 600 & wait
"""
    job_id = service.submit()
    worker = work(_script(tmp_path, script), lease_seconds=LEASE_SECONDS)
    until((tmp_path / "begun").exists)
    service.post(f"/v1/jobs/{job_id}/cancel", {"force": True})
    until(lambda: _lines(tmp_path / "why") == ["stop lease_lost"])
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    job = service.job(job_id)
    assert (job["state"], job["result"]) == ("cancelled", None)


def test_what_a_command_says_while_its_worker_is_stopped_for_longer_than_the_lease_counts_for_nothing(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = f"""
echo $FENCEPOST_LEASE_VERSION >>{tmp_path}/begun
while [ ! -e {tmp_path}/go ]; do sleep 0.05; done
echo '{{"version": '$FENCEPOST_LEASE_VERSION'}}'
echo $FENCEPOST_LEASE_VERSION >>{tmp_path}/ended
"""
    job_id = service.submit()
    worker = work(_script(tmp_path, script), lease_seconds=2)
    until(lambda: _lines(tmp_path / "begun") == ["1"])
    worker.signal(signal.SIGSTOP)
    service.until(job_id, lambda job: job["lease"] is None)
    (tmp_path / "go").touch()
    until(lambda: _lines(tmp_path / "ended") == ["1"])
    worker.signal(signal.SIGCONT)
    until(lambda: "lease lost" in worker.stderr)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    [first, *_] = service.attempts(job_id)
    assert (first["lease_version"], first["outcome"]) == (1, "lease_expired")
    assert service.job(job_id)["result"] != {"version": 1}


def test_the_drain_lets_commands_end_and_gives_back_what_does_not(
    service: Service, work: Start, tmp_path: Path
) -> None:
    script = f"""
touch {tmp_path}/begun-$FENCEPOST_JOB_KIND
if [ $FENCEPOST_JOB_KIND = long ]; then exec sleep 600; fi
while [ ! -e {tmp_path}/go ]; do sleep 0.05; done
echo in time
"""
    jobs = {kind: service.submit(kind=kind) for kind in ("long", "short")}
    late = service.submit(kind="late", delay_seconds=0)
    worker = work(_script(tmp_path, script), concurrency=2, drain_seconds=6, grace_seconds=1)
    until(lambda: (tmp_path / "begun-long").exists() and (tmp_path / "begun-short").exists())
    worker.signal(signal.SIGTERM)
    until(lambda: "shutting down" in worker.stderr)
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert service.job(jobs["short"])["result"] == "in time"
    given_back = service.job(jobs["long"])
    assert (given_back["state"], given_back["attempt"]) == ("ready", 0)
    assert service.job(late)["lease_version"] == 0


def test_a_second_signal_ends_the_drain(service: Service, work: Start, tmp_path: Path) -> None:
    job_id = service.submit()
    worker = work(_script(tmp_path, f"touch {tmp_path}/begun; exec sleep 600"), drain_seconds=3600)
    until((tmp_path / "begun").exists)
    worker.signal(signal.SIGTERM)
    until(lambda: "shutting down" in worker.stderr)
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0
    assert service.job(job_id)["state"] == "ready"


def test_the_death_of_the_worker_is_the_death_of_its_commands_and_what_they_started(
    service: Service, work: Start, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 600 & echo $$ $! >>{pids}; while true; do wait; done"
    for _ in range(3):
        service.submit()
    worker = work(_script(tmp_path, script), concurrency=3)
    until(lambda: len(_lines(pids)) == 3)
    every = [int(pid) for line in _lines(pids) for pid in line.split()]
    assert all(map(_runs, every))
    worker.signal(signal.SIGKILL)
    until(lambda: not any(map(_runs, every)))


def test_what_a_command_leaves_running_holds_nothing_up_and_is_killed(
    service: Service, work: Start, tmp_path: Path
) -> None:
    """Also one that has left the group, and has stdout and descriptor 3 open."""
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! >>{pids}; setsid sleep 60 & echo $! >>{pids}; echo done"
    jobs = [service.submit() for _ in range(2)]
    work(_script(tmp_path, script))
    for job_id in jobs:
        assert service.until_state(job_id, "succeeded")["result"] == "done"
    in_group, outside, *_ = [int(pid) for pid in _lines(pids)]
    until(lambda: not _runs(in_group))
    psutil.Process(outside).kill()


def test_the_last_lines_of_a_process_that_the_shell_does_not_wait_for_are_read(
    service: Service, work: Start, tmp_path: Path
) -> None:
    job_id = service.submit()
    work(_script(tmp_path, "exec > >(sleep 0.3; exec cat); echo through a pipe"))
    assert service.until_state(job_id, "succeeded")["result"] == "through a pipe"


def test_a_payload_that_nobody_reads_and_one_that_is_answered_at_once_do_no_harm(
    service: Service, work: Start, tmp_path: Path
) -> None:
    payload = "x" * 250_000
    jobs = {kind: service.submit(payload, kind=kind) for kind in ("ignores", "echoes", "closes")}
    script = "case $FENCEPOST_JOB_KIND in ignores) ;; echoes) cat;; closes) exec <&-; sleep 0.2;; esac"
    work(_script(tmp_path, script))
    results = {kind: service.until_state(job_id, "succeeded")["result"] for kind, job_id in jobs.items()}
    assert results == {"ignores": None, "echoes": payload, "closes": None}


def test_an_environment_that_is_too_large_fails_the_job_and_says_so(
    service: Service, work: Start, tmp_path: Path
) -> None:
    job_id = service.submit()
    [lease] = service.post("/v1/leases", {"worker_id": "w", "queues": [service.queue]})["jobs"]
    token = {"lease_version": lease["lease_version"]}
    details = "x" * 200_000
    service.post(
        f"/v1/jobs/{job_id}/fail",
        token | {"error": {"message": "m", "details": details}, "retry_after_seconds": 0},
    )
    work("true")
    job = service.until(job_id, lambda job: job["lease_version"] == 2 and job["lease"] is None)
    assert job["error"]["type"] == "command_not_started"
    assert job["error"]["message"] == "the command could not be started: Argument list too long"


def test_a_script_without_its_interpreter_fails_the_job(
    service: Service, work: Start, tmp_path: Path
) -> None:
    job_id = service.submit(backoff=NOT_AGAIN)
    path = tmp_path / "command"
    path.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    path.chmod(0o755)
    work(str(path))
    job = service.until(job_id, lambda job: job["lease_version"] == 1 and job["lease"] is None)
    assert job["error"]["message"] == "the command could not be started: No such file or directory"


def test_a_command_may_run_programs_of_the_service_itself(
    service: Service, work: Start, tmp_path: Path
) -> None:
    job_id = service.submit()
    work(sys.executable, "-m", "app", "openapi", "--output", str(tmp_path / "openapi.json"))
    assert service.until_state(job_id, "succeeded")["attempt"] == 1


def test_a_refused_set_up_ends_with_1_and_one_line(work: Start, tmp_path: Path) -> None:
    worker = work("true", queue="not a name")
    assert worker.wait() == 1
    assert worker.stderr.splitlines()[-1].startswith("Error: the service refuses this worker: 422 ")


@pytest.mark.parametrize(
    ("options", "command", "environ", "told"),
    [
        ([], ["/no/such/program"], {}, "there is no program /no/such/program"),
        ([], ["no-such-program"], {}, "there is no program no-such-program"),
        ([], [__file__], {}, "is not an executable file"),
        (["--url=ftp://host"], ["true"], {}, "the address of the service must be like http://127.0.0.1:8000"),
        ([], ["true"], {"FENCEPOST_CLIENT_KEY": ""}, "FENCEPOST_CLIENT_KEY"),
        ([], ["true"], {"FENCEPOST_LOG_LEVEL": "loud"}, "FENCEPOST_LOG_LEVEL"),
        ([], ["true"], {"FENCEPOST_URL": "postgresql://host/db"}, "FENCEPOST_URL"),
        (["--lease-seconds=nan"], ["true"], {}, "nan is no number of seconds"),
        (["--concurrency=1001"], ["true"], {}, "1001 is not in the range"),
        ([], [], {}, "Missing argument"),
    ],
)
def test_bad_usage_ends_with_2_and_says_what_is_wrong(
    tmp_path: Path, options: list[str], command: list[str], environ: dict[str, str], told: str
) -> None:
    worker = Work("http://127.0.0.1:9", tmp_path, command, options=["--queue=q", *options], environ=environ)
    assert worker.wait() == 2
    assert told in worker.stderr.splitlines()[-1]


def test_working_loads_no_service_and_serving_no_client() -> None:
    for module, strangers in (
        ("app.work.runner, app.work.command", ("sqlalchemy", "fastapi")),
        ("app.cli", ("httpx", "fencepost")),
    ):
        code = f"import sys, {module}; print(*[name for name in {strangers} if name in sys.modules])"
        path = os.pathsep.join(sys.path)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_SECONDS,
        )
        assert done.stdout == "\n"
