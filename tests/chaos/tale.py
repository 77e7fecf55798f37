"""A history written by hand: calls with the times that a test wants, and the list in the end."""

from typing import Any

from tests.chaos.history import Answered, Asked, Event, Json, Listed, Unanswered


def lost(*, current: int, state: str = "running") -> tuple[int, Json]:
    """Return a 409 lease_lost that shows the current version."""
    return 409, {"code": "lease_lost", "current_version": current, "job_state": state}


class Tale:
    """Tells one call after the other, each from one second to the next, unless a time is given.

    ``ended`` None means that the call has no answer. Answers are as the service gives them, cut down to what
    a rule reads.
    """

    def __init__(self) -> None:
        self._told: list[Event] = []
        self._time = 0.0
        self._count = 0
        self._rows: dict[str, list[Json]] = {}

    @property
    def events(self) -> list[Event]:
        """All events in the order of time; the lists come last."""
        end = max((event.at for event in self._told), default=0.0) + 1
        jobs = [row for rows in self._rows.values() for row in rows]
        states = sorted({row["state"] for row in jobs})
        lists = [Listed(end, None, jobs)]
        lists += [Listed(end, state, [row for row in jobs if row["state"] == state]) for state in states]
        return [*sorted(self._told, key=lambda event: event.at), *lists]

    def tell(
        self,
        path: str,
        body: Json,
        answer: tuple[int, Any] | None,
        *,
        key: str | None = None,
        began: float | None = None,
        ended: float | None = None,
        is_replay: bool = False,
        retry_after: str | None = None,
    ) -> None:
        self._count += 1
        call = f"c{self._count}"
        began = self._time if began is None else began
        ended = began + 1 if ended is None else ended
        self._time = max(self._time, began + 2, ended + 1)
        self._told.append(Asked(began, call, "client", "r0", "POST", f"/v1{path}", body, key))
        if answer is None:
            self._told.append(Unanswered(ended, call, "ReadTimeout"))
        else:
            self._told.append(Answered(ended, call, *answer, is_replay=is_replay, retry_after=retry_after))

    def submit(
        self,
        job_id: str | None = "j",
        *,
        mark: str = "m",
        key: str | None = None,
        status: int = 201,
        body: Json | None = None,
        began: float | None = None,
        ended: float | None = None,
    ) -> None:
        """Ask for a job; ``job_id`` None means that there was no answer."""
        answer = None if job_id is None else (status, job(job_id, version=0, state="ready", mark=mark))
        asked = {"metadata": {"mark": mark}, **(body or {})}
        self.tell("/jobs", asked, answer, key=key, is_replay=status == 200, began=began, ended=ended)

    def lease(
        self,
        *granted: tuple[str, int, int],
        worker: str = "w",
        request: str | None = None,
        is_answered: bool = True,
        began: float | None = None,
        ended: float | None = None,
    ) -> None:
        """Lease; ``granted`` are job ids with version and attempt."""
        body = {"worker_id": worker, "request_id": request or f"r{self._count}"}
        jobs = [
            {"id": job_id, "lease_version": version, "attempt": attempt}
            for job_id, version, attempt in granted
        ]
        self.tell("/leases", body, (200, {"jobs": jobs}) if is_answered else None, began=began, ended=ended)

    def say(
        self,
        verb: str,
        version: int,
        answer: tuple[int, Any] | str | None = "ok",
        *,
        job_id: str = "j",
        began: float | None = None,
        ended: float | None = None,
        **members: object,
    ) -> None:
        """Speak as a holder; the answer is ok, replayed, none at all (None), or a status with a body."""
        is_replay = answer == "replayed"
        told = (200, {}) if isinstance(answer, str) else answer
        body = {"lease_version": version, **members}
        self.tell(f"/jobs/{job_id}/{verb}", body, told, is_replay=is_replay, began=began, ended=ended)

    def cancel(self, answer: tuple[int, Json] | None, *, force: bool = False) -> None:
        self.tell("/jobs/j/cancel", {"force": force}, answer)

    def end(self, *rows: Json) -> None:
        """Say how the jobs are listed in the end."""
        for row in rows:
            self._rows.setdefault(row["id"], []).append(row)


def job(
    job_id: str = "j",
    *,
    version: int,
    state: str = "succeeded",
    attempt: int = 1,
    mark: str = "m",
    **members: object,
) -> Json:
    """Return a job as the service shows it."""
    return {
        "id": job_id,
        "state": state,
        "lease_version": version,
        "attempt": attempt,
        "max_attempts": 10,
        "result": None,
        "metadata": {"mark": mark},
        "idempotency_key": None,
        **members,
    }
