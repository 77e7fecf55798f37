"""One key, one job: what other services got wrong."""

import asyncio

import httpx

from tests.support.api import invalid, lease, list_all, lost, read, refused, submit_with_key, tell_ok
from tests.support.standing_rules import Start


async def test_same_key_with_another_request_is_refused_and_the_job_unchanged(
    client: httpx.AsyncClient,
) -> None:
    """BO-13."""
    body = {"payload": {"order": 1}, "run_at": "2099-01-01T00:00:00Z"}
    created = await submit_with_key(client, "K", **body)
    assert created.status_code == 201
    repeat = await submit_with_key(client, "K", **body)
    assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (200, "true")
    assert repeat.json() == created.json()
    for change in (
        {"payload": {"order": 2}},
        {"queue": "other"},
        {"priority": 1},
        {"run_at": "2099-01-01T00:00:01Z"},
    ):
        problem = refused(await submit_with_key(client, "K", **body | change), 422, "idempotency_key_reused")
        assert problem["job_id"] == created.json()["id"]
    assert await list_all(client, include="payload,result") == [created.json()]


async def test_first_requests_that_arrive_together_are_one_job(start: Start) -> None:
    """BO-14: 60 twins, 20 keys, 2 replicas."""
    replicas = [start(), start()]
    for number in range(20):
        headers = {"Idempotency-Key": f"key-{number}"}
        body = {"kind": "case", "payload": number}
        answers = await asyncio.gather(
            *(replicas[twin % 2].call("POST", "/v1/jobs", dict(body), headers=headers) for twin in range(60))
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 59 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        replays = [answer for answer in answers if answer.headers.get("idempotent-replayed") == "true"]
        assert len(replays) == 59
    assert len([job async for job in replicas[0].pages()]) == 20


async def test_refused_first_attempt_gives_the_key_back(client: httpx.AsyncClient) -> None:
    """BO-15; keys of callers come with a later issue."""
    invalid(await submit_with_key(client, "K", priority=99_999))
    refused(await submit_with_key(client, "K", payload="x" * 1_048_576), 413, "too_large")
    parent = {"job_id": "0193a3f0-5c00-7000-8000-000000000000", "lease_version": 1}
    lost(await submit_with_key(client, "K", parent=parent), "unknown")
    created = await submit_with_key(client, "K", payload=1)
    assert created.status_code == 201
    repeat = await submit_with_key(client, "K", payload=1)
    assert (repeat.status_code, repeat.json()["id"]) == (200, created.json()["id"])


async def test_unusual_keys_are_accepted_or_refused_never_a_fault(client: httpx.AsyncClient) -> None:
    """BO-16; raw bytes and doubled headers are in tests/api/test_sockets.py too."""
    for key in ("a", "z" * 255, "~!@#$%^&*()_+{}|:<>?", "abc", "ABC"):
        created = await submit_with_key(client, key)
        assert created.status_code == 201, key
        repeat = await submit_with_key(client, key)
        assert (repeat.status_code, repeat.json()["id"]) == (200, created.json()["id"])
    for key in ("y" * 256, "r4" * 3_000, "", " ", "   "):
        invalid(await submit_with_key(client, key), "Idempotency-Key")
    for values in ([b"a", b"b"], [b"a", b"a"], [b"\xc3\xa9"], [b"a\tb"]):
        headers = [(b"Idempotency-Key", value) for value in values]
        answer = await client.post("/v1/jobs", json={"kind": "work"}, headers=headers)
        invalid(answer, "Idempotency-Key")
    repeat = await client.post("/v1/jobs", json={"kind": "work"}, headers={"iDeMpOtEnCy-KeY": "abc"})
    assert repeat.status_code == 200


async def test_repeat_after_the_end_shows_that_nothing_was_created(client: httpx.AsyncClient) -> None:
    """BO-18."""
    created = (await submit_with_key(client, "K", payload=1)).json()
    (leased,) = await lease(client)
    await tell_ok(client, "complete", leased)
    repeat = await submit_with_key(client, "K", payload=1)
    assert (repeat.status_code, repeat.headers["idempotent-replayed"]) == (200, "true")
    assert (repeat.json()["state"], repeat.json()["created_at"]) == ("succeeded", created["created_at"])
    assert repeat.json() == await read(client, created["id"])
    assert len(await list_all(client)) == 1
