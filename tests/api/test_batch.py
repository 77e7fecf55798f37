"""POST /v1/jobs/batch: all or none, in the order of the input."""

import httpx

from tests.support.api import UNKNOWN_ID, invalid, lease, list_all, lost, refused, run_job, submit, tell_ok


async def test_batch_answers_every_item_in_input_order(client: httpx.AsyncClient) -> None:
    items = [{"kind": f"k{number}", "payload": number, "delay_seconds": number % 2} for number in range(20)]
    response = await client.post("/v1/jobs/batch", json={"jobs": items})
    assert response.status_code == 201
    entries = response.json()["jobs"]
    assert [entry["created"] for entry in entries] == [True] * 20
    assert [entry["job"]["payload"] for entry in entries] == list(range(20))
    assert [entry["job"]["state"] for entry in entries] == ["ready", "scheduled"] * 10
    ids = [entry["job"]["id"] for entry in entries]
    assert ids == sorted(ids)
    assert [job["id"] for job in await list_all(client)] == ids[::-1]
    single = await submit(client)
    assert entries[0]["job"].keys() == single.keys()


async def test_empty_batch_creates_nothing(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/jobs/batch", json={"jobs": []})
    assert (response.status_code, response.json()) == (201, {"jobs": []})
    invalid(await client.post("/v1/jobs/batch", json={}), "/jobs")
    invalid(await client.post("/v1/jobs/batch"), "/jobs")


async def test_jobs_of_one_batch_are_leased_in_input_order(client: httpx.AsyncClient) -> None:
    await client.post("/v1/jobs/batch", json={"jobs": [{"kind": "w", "payload": n} for n in range(50)]})
    assert [job["payload"] for job in await lease(client, max_jobs=50)] == list(range(50))


async def test_one_invalid_item_refuses_the_whole_batch(client: httpx.AsyncClient) -> None:
    good = {"kind": "w", "idempotency_key": "a"}
    for bad, pointer in [
        ({"kind": "w", "priority": 99999}, "/jobs/1/priority"),
        ({}, "/jobs/1/kind"),
        ({"kind": "w", "run_at": "1969-01-01T00:00:00Z"}, "/jobs/1/run_at"),
        ({"kind": "w", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "/jobs/1"),
        ({"kind": "w", "backoff": {"factor": 0}}, "/jobs/1/backoff/factor"),
        ("text", "/jobs/1"),
    ]:
        invalid(await client.post("/v1/jobs/batch", json={"jobs": [good, bad, good]}), pointer)
    assert await list_all(client) == []
    entry = (await client.post("/v1/jobs/batch", json={"jobs": [good]})).json()["jobs"][0]
    assert entry["created"] is True


async def test_same_key_twice_with_one_meaning_gives_one_job_twice(client: httpx.AsyncClient) -> None:
    items = [
        {"kind": "w", "payload": {"x": 1, "y": 2}, "idempotency_key": "a"},
        {"kind": "w"},
        {"kind": "w", "payload": {"y": 2, "x": 1}, "queue": "default", "idempotency_key": "a"},
    ]
    entries = (await client.post("/v1/jobs/batch", json={"jobs": items})).json()["jobs"]
    assert [entry["created"] for entry in entries] == [True, True, False]
    assert entries[0]["job"] == entries[2]["job"]
    assert len(await list_all(client)) == 2
    repeat = (await client.post("/v1/jobs/batch", json={"jobs": [items[0], items[2]]})).json()["jobs"]
    assert [entry["created"] for entry in repeat] == [False, False]
    assert repeat[0]["job"] == entries[0]["job"]


async def test_reused_key_refuses_the_whole_batch_with_a_pointer(client: httpx.AsyncClient) -> None:
    known = {"kind": "w", "idempotency_key": "a"}
    job = (await client.post("/v1/jobs/batch", json={"jobs": [known]})).json()["jobs"][0]["job"]
    for items in (
        [{"kind": "w"}, {"kind": "other", "idempotency_key": "a"}],
        [{"kind": "w", "idempotency_key": "b"}, {"kind": "w", "priority": 1, "idempotency_key": "a"}],
    ):
        problem = refused(
            await client.post("/v1/jobs/batch", json={"jobs": items}), 422, "idempotency_key_reused"
        )
        assert problem["job_id"] == job["id"]
        assert problem["errors"][0]["pointer"].startswith("/jobs/1")
    within = [{"kind": "w", "idempotency_key": "c"}, {"kind": "x", "idempotency_key": "c"}]
    problem = refused(
        await client.post("/v1/jobs/batch", json={"jobs": within}), 422, "idempotency_key_reused"
    )
    assert problem["errors"][0]["pointer"].startswith("/jobs/1")
    assert [job["id"] for job in await list_all(client)] == [job["id"]]
    entry = (await client.post("/v1/jobs/batch", json={"jobs": [within[0]]})).json()["jobs"][0]
    assert entry["created"] is True


async def test_item_whose_parent_is_lost_refuses_the_whole_batch(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    held = {"job_id": leased["id"], "lease_version": leased["lease_version"]}
    gone = {"job_id": UNKNOWN_ID, "lease_version": 1}
    items = [{"kind": "w", "parent": held, "idempotency_key": "a"}, {"kind": "w", "parent": gone}]
    problem = lost(await client.post("/v1/jobs/batch", json={"jobs": items}), "unknown")
    assert problem["pointer"].startswith("/jobs/1")
    assert problem["job_id"] == UNKNOWN_ID
    assert len(await list_all(client)) == 1
    entries = (await client.post("/v1/jobs/batch", json={"jobs": items[:1]})).json()["jobs"]
    assert (entries[0]["created"], entries[0]["job"]["parent"]) == (True, held)
    await tell_ok(client, "complete", leased)
