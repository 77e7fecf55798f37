"""Times and delays that broke other services."""

from datetime import datetime

import httpx
import pytest

from tests.support.api import (
    invalid,
    lease,
    list_all,
    post_text,
    read,
    read_attempts,
    run_job,
    submit,
    tell,
    tell_ok,
)
from tests.support.standing_rules import Start


async def test_dates_beyond_the_calendar_and_absurd_delays_are_refused(client: httpx.AsyncClient) -> None:
    """BO-35."""
    leased = await run_job(client, queue="held")
    for run_at in ("9999-12-31T23:59:59-12:00", "10000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"):
        invalid(await client.post("/v1/jobs", json={"kind": "w", "run_at": run_at}), "run_at")
    for token in ("1000000000000", "1e308", "1e309", "-5"):
        invalid(
            await post_text(client, "/v1/jobs", f'{{"kind":"w","delay_seconds":{token}}}'), "delay_seconds"
        )
        report = f'{{"lease_version":1,"error":{{"message":"m"}},"retry_after_seconds":{token}}}'
        path = f"/v1/jobs/{leased['id']}"
        invalid(await post_text(client, f"{path}/fail", report), "retry_after_seconds")
        release = f'{{"lease_version":1,"delay_seconds":{token}}}'
        invalid(await post_text(client, f"{path}/release", release), "delay_seconds")
    last = await submit(client, run_at="9999-12-31T23:59:59Z")
    assert (await read(client, last["id"]))["run_at"] == "9999-12-31T23:59:59Z"
    assert await lease(client) == []
    assert len(await list_all(client)) == 2
    await tell_ok(client, "release", leased, delay_seconds=31_536_000)


async def test_time_without_a_zone_is_refused_whatever_the_zone_of_the_machine(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BO-36."""
    monkeypatch.setenv("TZ", "America/New_York")
    caller = start()
    naive = await caller.call("POST", "/v1/jobs", {"kind": "w", "run_at": "2027-01-01T12:00:00"})
    assert (naive.status_code, naive.json()["code"]) == (422, "invalid_request")
    for sent, answered in (
        ("2027-01-01T12:00:00Z", "2027-01-01T12:00:00Z"),
        ("2027-01-01T12:00:00+05:30", "2027-01-01T06:30:00Z"),
    ):
        job = await caller.submit(run_at=sent)
        assert job["run_at"] == answered
        assert (await caller.job(job["id"]))["run_at"] == answered


async def test_backoff_of_the_thousandth_attempt_is_within_its_cap(client: httpx.AsyncClient) -> None:
    """BO-37; the waits are skipped by editing run_at, so that a hundred attempts take seconds."""
    job = await submit(
        client,
        max_attempts=1000,
        backoff={"type": "exponential", "factor": 10, "base_seconds": 86_400, "max_seconds": 1, "jitter": 1},
    )
    for number in range(1, 121):
        (leased,) = await lease(client)
        assert leased["attempt"] == number
        failed = await tell_ok(client, "fail", leased, error={"message": "m"})
        attempt = (await read_attempts(client, job["id"]))[-1]
        wait = datetime.fromisoformat(failed["run_at"]) - datetime.fromisoformat(attempt["ended_at"])
        assert 0 <= wait.total_seconds() <= 2
        if failed["state"] == "scheduled":
            # It may have become due by itself meanwhile.
            await client.patch(f"/v1/jobs/{job['id']}", json={"run_at": "2020-01-01T00:00:00Z"})
    (leased,) = await lease(client)
    for token in ("1e9", "1000000000000000000", "-1"):
        said = f'"lease_version":{leased["lease_version"]},"error":{{"message":"m"}}'
        report = f'{{{said},"retry_after_seconds":{token}}}'
        answer = await post_text(client, f"/v1/jobs/{job['id']}/fail", report)
        invalid(answer, "retry_after_seconds")
    assert (await tell(client, "verify", leased)).status_code == 204
    now = await tell_ok(client, "fail", leased, error={"message": "m"}, retry_after_seconds=0)
    assert now["state"] == "ready"
