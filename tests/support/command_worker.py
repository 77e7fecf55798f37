"""``fencepost work`` as a real process, for tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0


class Work:
    """``python -m app work`` on a service, with its output in files."""

    def __init__(
        self,
        url: str,
        folder: Path,
        command: Sequence[str],
        *,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._stdout, self._stderr = folder / "work.stdout", folder / "work.stderr"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        # Where the checkout is not installed.
        path = os.pathsep.join([str(ROOT), str(ROOT / "clients" / "python" / "src")])
        with self._stdout.open("ab") as stdout, self._stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "work", *options, "--", *command],
                env={**inherited, "PYTHONPATH": path, "FENCEPOST_URL": url, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(LIMIT_SECONDS)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()


class Service:
    """The service's side: jobs are made in one queue, looked at and awaited."""

    def __init__(self, url: str, *, queue: str) -> None:
        self.url = url
        self.queue = queue
        self._http = httpx.Client(base_url=url, timeout=LIMIT_SECONDS)

    def post(self, path: str, body: Any) -> Any:
        answer = self._http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, payload: Any = None, **members: Any) -> str:
        body = {"kind": "any", "queue": self.queue, "payload": payload, **members}
        job_id: str = self.post("/v1/jobs", body)["id"]
        return job_id

    def job(self, job_id: str) -> Any:
        return self._http.get(f"/v1/jobs/{job_id}").raise_for_status().json()

    def attempts(self, job_id: str) -> Any:
        return self._http.get(f"/v1/jobs/{job_id}/attempts").raise_for_status().json()["attempts"]

    def until(self, job_id: str, condition: Callable[[Any], bool]) -> Any:
        """Return the job as soon as it is as wanted."""
        job: Any = None

        def is_so() -> bool:
            nonlocal job
            job = self.job(job_id)
            return condition(job)

        until(is_so, lambda: job)
        return job

    def until_state(self, job_id: str, state: str) -> Any:
        return self.until(job_id, lambda job: job["state"] == state)


def until(condition: Callable[[], object], told: Callable[[], object] = str) -> None:
    """Return as soon as the condition holds; raise with what there is to tell when it does not in time."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not so after {LIMIT_SECONDS} s: {told()}"
        time.sleep(0.02)
