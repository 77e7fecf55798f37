"""Lists: equal times, broken cursors, silly limits and very many jobs."""

import time

import httpx

from tests.support.api import invalid, lease, list_all, refused, submit, tell_ok


async def test_page_boundary_inside_one_transaction_loses_and_repeats_nothing(
    client: httpx.AsyncClient,
) -> None:
    """BO-49."""
    batch = {"jobs": [{"kind": "w", "queue": "paged"}] * 25}
    entries = (await client.post("/v1/jobs/batch", json=batch)).json()["jobs"]
    ids = {entry["job"]["id"] for entry in entries}
    for filters in ({}, {"queue": "paged"}, {"state": "ready", "kind": "w"}):
        listed = [job["id"] for job in await list_all(client, limit=7, **filters)]
        assert len(listed) == 25
        assert set(listed) == ids
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        query: dict[str, str | int] = {"limit": 7, "queue": "paged", **cursor}
        page = (await client.get("/v1/jobs", params=query)).json()
        seen += [job["id"] for job in page["jobs"]]
        await submit(client, queue="paged")
        (leased,) = await lease(client, queue="paged")
        await tell_ok(client, "complete", leased)
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == len(set(seen)) == 25
    assert set(seen) == ids
    used = (await client.get("/v1/jobs", params={"limit": 7})).json()["next_cursor"]
    changed = used[:-1] + ("A" if used[-1] != "A" else "B")
    for params in ({"cursor": changed}, {"cursor": used, "queue": "paged"}):
        refused(await client.get("/v1/jobs", params=params), 400, "invalid_cursor")


async def test_twenty_thousand_jobs_are_listed_in_bounded_pages(client: httpx.AsyncClient) -> None:
    """BO-50."""
    batch = {"jobs": [{"kind": "w", "payload": "x" * 1000}] * 1000}
    for _ in range(20):
        assert (await client.post("/v1/jobs/batch", json=batch)).status_code == 201
    for params in ({}, {"include": "payload", "limit": "200"}, {"state": "ready"}, {"state": "dead"}):
        begun = time.monotonic()
        answer = await client.get("/v1/jobs", params=params)
        assert time.monotonic() - begun < 1
        assert answer.status_code == 200
        assert len(answer.content) < 1_000_000
    default = (await client.get("/v1/jobs")).json()
    assert len(default["jobs"]) == 50
    assert default["next_cursor"]
    for limit in ("0", "-1", "1000000000", "1" + "0" * 30, "abc"):
        invalid(await client.get("/v1/jobs", params={"limit": limit}), "limit")
    invalid(await client.get("/v1/jobs", params={"state": "nonsense"}), "state")
    invalid(await client.get("/v1/jobs", params={"created_after": "nonsense"}), "created_after")
    assert len(await list_all(client)) == 20_000
