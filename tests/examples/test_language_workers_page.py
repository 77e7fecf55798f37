"""The page of the workers in other languages: its session runs, and it knows every worker."""

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.docs.documents import code, links, read, section
from tests.examples.language_workers import DEADLINE_SECONDS, LANGUAGES, WORKERS
from tests.support.server import ServerProcess

PAGE = WORKERS / "README.md"


@pytest.mark.slow
def test_session_of_the_page_submits_each_job_once(serve: Callable[..., ServerProcess]) -> None:
    session = code(section(read(PAGE), "## Try one"), "sh")
    assert session.count("http://127.0.0.1:8000") == 1
    done = subprocess.run(
        ["sh", "-eu"],  # noqa: S607 - as a reader pastes it
        input=session.replace("http://127.0.0.1:8000", serve().url),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    nap, again, failing = [json.loads(line) for line in done.stdout.splitlines()]
    assert nap["id"] == again["id"] != failing["id"]
    assert {job["state"] for job in (nap, again, failing)} == {"ready"}


def test_page_links_every_worker_and_the_tests_run_every_one() -> None:
    workers = {path.name for path in WORKERS.iterdir() if path != PAGE}
    linked = {target.partition("/")[0] for target in links(read(PAGE)) if not target.startswith("..")}
    assert linked == workers
    assert len(LANGUAGES) == len(workers)
