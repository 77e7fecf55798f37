"""Batches: twins inside, rivals outside, and the largest one."""

import asyncio
import random
from functools import partial

import httpx
import psycopg

from tests.support.api import Json, list_all, refused
from tests.support.sessions import read_sessions
from tests.support.standing_rules import Caller, Start, until


async def send(client: httpx.AsyncClient, jobs: list[Json]) -> httpx.Response:
    return await client.post("/v1/jobs/batch", json={"jobs": jobs})


async def test_same_key_twice_inside_one_batch(client: httpx.AsyncClient) -> None:
    """BO-20."""
    jobs: list[Json] = [{"kind": "w", "payload": key, "idempotency_key": key} for key in "abaca"]
    changed = [*jobs[:2], jobs[2] | {"payload": "other"}, *jobs[3:]]
    problem = refused(await send(client, changed), 422, "idempotency_key_reused")
    assert problem["errors"][0]["pointer"].startswith("/jobs/2")
    assert await list_all(client) == []
    answer = await send(client, jobs)
    assert answer.status_code == 201
    entries = answer.json()["jobs"]
    ids = [entry["job"]["id"] for entry in entries]
    assert [entry["job"]["payload"] for entry in entries] == list("abaca")
    assert ids[0] == ids[2] == ids[4]
    assert len(set(ids)) == 3
    assert [entry["created"] for entry in entries] == [True, True, False, True, False]
    assert len(await list_all(client)) == 3


async def _send_shuffled(caller: Caller, keys: list[str]) -> dict[str, str]:
    shuffled = random.sample(keys, len(keys))
    jobs = [{"kind": "w", "payload": key, "idempotency_key": key} for key in shuffled]
    answer = await caller.call("POST", "/v1/jobs/batch", {"jobs": jobs})
    assert answer.status_code == 201, answer.text
    ids = [entry["job"]["id"] for entry in answer.json()["jobs"]]
    return dict(zip(shuffled, ids, strict=True))


async def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock(
    start: Start, database_url: str
) -> None:
    """BO-21: 8 clients over 2 replicas, 40 rounds of the same keys, some that half overlap."""
    replicas = [start(), start()]
    for number in range(40):
        overlap = 100 if number % 4 == 3 else 0
        sets = [
            [f"r{number}-{key + (overlap if client % 2 else 0)}" for key in range(200)] for client in range(8)
        ]
        answers = await asyncio.gather(
            *(_send_shuffled(replicas[client % 2], keys) for client, keys in enumerate(sets))
        )
        agreed: dict[str, str] = {}
        for ids in answers:
            for key, job_id in ids.items():
                assert agreed.setdefault(key, job_id) == job_id
        assert len(set(agreed.values())) == len(agreed) == 200 + overlap
    for replica in replicas:
        await asyncio.to_thread(replica.server.end)
    await until(partial(_are_told, database_url))
    with psycopg.connect(database_url) as connection:
        count = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert count.fetchone() == (0,)


async def _are_told(database_url: str) -> bool:
    """Whether the sessions of the replicas have ended: a session tells what it counted at its end."""
    return not read_sessions(database_url)


async def test_largest_batch_with_every_field_set_is_whole_and_a_larger_one_nothing(
    client: httpx.AsyncClient,
) -> None:
    """BO-22."""
    parent = (await client.post("/v1/jobs", json={"kind": "parent", "queue": "parents"})).json()
    await client.post("/v1/leases", json={"worker_id": "w", "queues": ["parents"]})
    jobs: list[Json] = [
        {
            "kind": "w",
            "queue": f"q{number % 7}",
            "payload": {"number": number},
            "priority": number - 500,
            "delay_seconds": 3600 + number,
            "max_attempts": 7,
            "backoff": {
                "type": "linear",
                "base_seconds": 1,
                "factor": 3,
                "max_seconds": 9,
                "jitter": 0.5,
            },
            "max_runtime_seconds": 60,
            "progress_timeout_seconds": 30,
            "metadata": {"a": "b", "n": str(number)},
            "parent": {"job_id": parent["id"], "lease_version": 1},
            "idempotency_key": f"key-{number}",
        }
        for number in range(1000)
    ]
    for too_many in (jobs + jobs[:1], jobs * 10):
        problem = refused(await send(client, too_many), 413, "too_large")
        assert "1000" in problem["detail"]
    assert len(await list_all(client)) == 1
    answer = await send(client, jobs)
    assert answer.status_code == 201
    entries = answer.json()["jobs"]
    assert [entry["job"]["payload"]["number"] for entry in entries] == list(range(1000))
    assert all(entry["created"] for entry in entries)
    assert entries[41]["job"] == (await client.get(f"/v1/jobs/{entries[41]['job']['id']}")).json()
    repeat = (await send(client, jobs)).json()["jobs"]
    assert [entry["created"] for entry in repeat] == [False] * 1000
    assert [entry["job"] for entry in repeat] == [entry["job"] for entry in entries]
