"""The reason this service exists: a worker that lost its lease is refused everywhere."""

import httpx


async def test_stale_worker_is_refused_everywhere_and_changes_nothing(client: httpx.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json={"kind": "charge", "max_attempts": 3})).json()
    lease = {"worker_id": "frozen", "queues": ["default"], "lease_seconds": 1}
    first = (await client.post("/v1/leases", json=lease)).json()["jobs"][0]
    second = (
        await client.post(
            "/v1/leases", json=lease | {"worker_id": "second", "wait_seconds": 10, "lease_seconds": 60}
        )
    ).json()["jobs"][0]
    assert second["lease_version"] > first["lease_version"]
    assert second["attempt"] == 2
    assert second["previous"]["outcome"] == "lease_expired"
    before = (await client.get(f"/v1/jobs/{job['id']}")).json()

    stale = {"lease_version": first["lease_version"]}
    calls = [
        (f"/v1/jobs/{job['id']}/heartbeat", stale),
        (f"/v1/jobs/{job['id']}/complete", stale | {"result": "mine"}),
        (f"/v1/jobs/{job['id']}/fail", stale | {"error": {"message": "late"}}),
        (f"/v1/jobs/{job['id']}/release", stale),
        (f"/v1/jobs/{job['id']}/verify", stale),
        ("/v1/jobs", {"kind": "child", "parent": {"job_id": job["id"]} | stale}),
    ]
    for path, body in calls:
        refused = await client.post(path, json=body)
        assert refused.status_code == 409, path
        problem = refused.json()
        assert problem["code"] == "lease_lost"
        assert problem["presented_version"] == first["lease_version"]
        assert problem["current_version"] == second["lease_version"]
        assert problem["job_state"] == "running"
        assert problem["reason"] == "expired"

    assert (await client.get(f"/v1/jobs/{job['id']}")).json() == before
    assert len((await client.get("/v1/jobs")).json()["jobs"]) == 1
    done = await client.post(
        f"/v1/jobs/{job['id']}/complete", json={"lease_version": second["lease_version"], "result": "ours"}
    )
    assert done.status_code == 200
    assert done.json()["result"] == "ours"
