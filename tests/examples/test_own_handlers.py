"""The workers with other handlers than they come with: what one of these does ends its job, and no worker."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.docs.documents import read
from tests.examples.language_workers import (
    DEADLINE_SECONDS,
    LANGUAGES,
    WORKERS,
    LanguageWorker,
    folder_of_the_run,
)
from tests.support.programs import needed_program
from tests.support.server import ServerProcess

pytestmark = pytest.mark.slow

PYTHON = "python"


class Language(NamedTuple):
    """Where a handler stands in the file, and how another one is written there."""

    file: Path
    handler: str
    template: str


WRITTEN = {
    "bash": Language(WORKERS / "worker.sh", r"^handle\(\) \{.*?^\}$", "handle() {{\n{}\n}}"),
    "java": Language(
        WORKERS / "Worker.java",
        r"^    static String handle\(.*?^    \}$",
        "    static String handle(String payload) throws Exception {{ {} }}",
    ),
    "perl": Language(WORKERS / "worker.pl", r"^sub handle \{.*?^\}$", "sub handle {{ {} }}"),
    "ruby": Language(
        WORKERS / "worker.rb", r"^def handle\(payload\)$.*?^end$", "def handle(payload)\n{}\nend"
    ),
    PYTHON: Language(
        WORKERS.parent / "worker.py", r"^def handle\(.*?(?=\n\n\n)", "def handle(job, stop):\n    {}"
    ),
}

# Rust's compiler knows what a result is.
NO_JSON = {
    "bash": "echo it is done",
    "java": 'return "it is done";',
    "perl": "return sub { 1 }",
    "ruby": '"\\xff"',
    PYTHON: "return {1}",
}
NOTHING = {
    "bash": "true",
    "java": "return null;",
    "perl": "return",
    "ruby": "",
    PYTHON: "pass",
}
# Larger than a request may be, and no text either where the language lets it be none.
LONG_COMPLAINT = {
    "bash": "head -c 2000000 /dev/zero >&2; return 1",
    "java": 'throw new Exception("x\\0".repeat(1_000_000));',
    "perl": 'die "\\xff\\0" x 1_000_000',
    "ruby": 'raise "\\xff\\0" * 1_000_000',
    PYTHON: 'raise OSError("\\udcff\\0" * 1_000_000)',
}


class Bench:
    """The service, and workers of one language with handlers of their own."""

    def __init__(self, server: ServerProcess, name: str, folder: Path) -> None:
        self._server = server
        self._name = name
        self._folder = folder
        self._queue = f"own-{name}-{folder.name}"
        self._started: list[LanguageWorker] = []

    def outcome(self, handler: str) -> dict[str, Any]:
        """Return the one job that the worker has ended twice over: it goes on after the first."""
        language = WRITTEN[self._name]
        program = self._folder / language.file.name
        own = language.template.format(handler)
        source, count = re.subn(
            language.handler, lambda _: own, read(language.file), flags=re.MULTILINE | re.DOTALL
        )
        assert count == 1
        program.write_text(source)
        program.chmod(0o700)
        worker = LanguageWorker([*self._command(), str(program)], self._server.url, self._queue, {})
        self._started.append(worker)
        job_ids = [self._submit() for _ in range(2)]
        for job_id in job_ids:
            assert worker.next_line().startswith(job_id)
        job: dict[str, Any] = httpx.get(f"{self._server.url}/v1/jobs/{job_ids[1]}").raise_for_status().json()
        return job

    def end(self) -> None:
        for worker in self._started:
            worker.end()

    def _command(self) -> list[str]:
        if self._name == PYTHON:
            return [sys.executable]
        return LANGUAGES[self._name](self._folder)[:-1]

    def _submit(self) -> str:
        body = {"kind": "own", "queue": self._queue, "max_attempts": 1}
        return str(httpx.post(f"{self._server.url}/v1/jobs", json=body).raise_for_status().json()["id"])


@pytest.fixture(params=WRITTEN)
def bench(request: pytest.FixtureRequest, shared_service: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(shared_service, request.param, tmp_path)
    yield opened
    opened.end()


@pytest.fixture
def language(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["bench"])


def test_a_result_that_is_no_json_fails_its_job(bench: Bench, language: str) -> None:
    job = bench.outcome(NO_JSON[language])
    assert job["state"] == "dead"
    assert job["error"]["message"]


def test_a_handler_that_returns_nothing_succeeds(bench: Bench, language: str) -> None:
    job = bench.outcome(NOTHING[language])
    assert (job["state"], job["result"]) == ("succeeded", None)


def test_a_complaint_that_is_too_long_is_cut(bench: Bench, language: str) -> None:
    job = bench.outcome(LONG_COMPLAINT[language])
    assert job["state"] == "dead"
    # What the handlers write of NUL is nothing, or the mark that the service puts in its place.
    assert len(job["error"]["message"]) <= 10_000


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_complaint_of_the_payload_is_cut_as_well(
    serve: Callable[..., ServerProcess], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In every language: the handler that the file comes with fails with what the payload says."""
    server = serve(max_body_bytes=30_000)
    item = {"kind": "nap", "queue": "naps", "max_attempts": 1, "payload": {"fail": "x" * 100_000}}
    batch = {"jobs": [item] * 2}
    created = httpx.post(f"{server.url}/v1/jobs/batch", json=batch).raise_for_status().json()["jobs"]
    worker = LanguageWorker(LANGUAGES[name](folder_of_the_run(tmp_path_factory)), server.url, "naps", {})
    try:
        lines = {worker.next_line() for _ in range(2)}
    finally:
        worker.end()
    assert lines == {f"{each['job']['id']} dead" for each in created}


@pytest.mark.parametrize("name", [*LANGUAGES, PYTHON])
def test_a_worker_without_its_arguments_says_how_it_is_called(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name == PYTHON:
        command = [sys.executable, str(WRITTEN[PYTHON].file)]
    else:
        command = LANGUAGES[name](folder_of_the_run(tmp_path_factory))
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode != 0
    assert re.fullmatch(r"usage: \S.* http://127.0.0.1:8000 my-queue\n", done.stderr)


@pytest.mark.parametrize("missing", ["curl", "jq"])
def test_the_worker_in_bash_names_the_program_that_it_misses(missing: str, tmp_path: Path) -> None:
    for program in {"curl", "jq"} - {missing}:
        (tmp_path / program).symlink_to(needed_program(program))
    done = subprocess.run(
        [needed_program("bash"), WORKERS / "worker.sh", "http://127.0.0.1:1", "naps"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f" needs {missing}\n")
