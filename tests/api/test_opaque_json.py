"""Payload, result, checkpoint and error details come back token for token, or are refused."""

import httpx
import pytest

from tests.support.api import invalid, lease, post_text, read, read_attempts, run_job, submit, tell_ok

KEPT = [
    "9007199254740993",
    "-9223372036854775808",
    "18446744073709551615",
    "1" + "0" * 400,
    "1e400",
    "-1E+400",
    "0.10",
    "1.0",
    "-0",
    "-0.0",
    "1e-400",
    "null",
    "true",
    '""',
    '"\\u00e9\\/\\ud83d\\ude00\\n"',
    '"\\\\u0000"',
    '"é😀\u2028\x7f"',
    "[]",
    "{}",
    '{"b":1,"a":2}',
    '{"a":1,"a":2}',
    '[1, 2 ,\t{"x" : [ ] }]',
    '{"":{"":0}}',
    "[" * 100 + "]" * 100,
    '{"a":' * 100 + "1" + "}" * 100,
    '{"payload":1,"payload":2,"kind":"x"}',
    "[" + ",".join(["[1]"] * 300) + "]",
]
REFUSED = [
    "NaN",
    "Infinity",
    "-Infinity",
    "[NaN]",
    '{"x":-Infinity}',
    '"\\ud83d"',
    '"\\udc00x"',
    '"\\ude00\\ud83d"',
    '["\\ud83d\\u0041"]',
    '{"\\ud83d":1}',
    "[" * 101 + "]" * 101,
    '{"a":' * 101 + "1" + "}" * 101,
    "[" * 1_000 + "]" * 1_000,
    "[" * 20_000 + "]" * 20_000,
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    "[0," * 101 + "NaN" + "]" * 101,
]


def member_text(text: str, name: str) -> str:
    """Return the raw text of a member of an answer, up to a known next member or the end."""
    start = text.index(f'"{name}":') + len(name) + 3
    return text[start:]


async def test_payload_comes_back_with_the_same_tokens_everywhere(client: httpx.AsyncClient) -> None:
    for value in KEPT:
        body = f'{{"kind":"w","payload":{value}}}'
        created = await post_text(client, "/v1/jobs", body)
        assert created.status_code == 201, value
        got = await client.get(f"/v1/jobs/{created.json()['id']}")
        listed = await client.get("/v1/jobs?include=payload&limit=1")
        leased = await client.post("/v1/leases", json={"worker_id": "w", "queues": ["default"]})
        for answer in (created, got, listed, leased):
            assert member_text(answer.text, "payload").startswith(value + ","), value
        batch = await post_text(client, "/v1/jobs/batch", f'{{"jobs":[{body}]}}')
        assert member_text(batch.text, "payload").startswith(value + ","), value
        await client.post("/v1/leases", json={"worker_id": "w", "queues": ["default"]})


async def test_result_and_checkpoint_come_back_with_the_same_tokens(client: httpx.AsyncClient) -> None:
    for value in KEPT:
        leased = await run_job(client)
        path = f"/v1/jobs/{leased['id']}"
        beat = await post_text(client, f"{path}/heartbeat", f'{{"lease_version":1,"checkpoint":{value}}}')
        assert beat.status_code == 200, value
        assert member_text((await client.get(path)).text, "checkpoint").startswith(value + ",")
        done = await post_text(client, f"{path}/complete", f'{{"lease_version":1,"result":{value}}}')
        for answer in (done, await client.get(path), await client.get("/v1/jobs?include=result&limit=1")):
            assert member_text(answer.text, "result").startswith(value + ","), value


async def test_checkpoint_and_details_reach_the_next_worker_with_the_same_tokens(
    client: httpx.AsyncClient,
) -> None:
    for value in KEPT:
        job = await submit(client, backoff={"base_seconds": 0})
        body = {"worker_id": "w", "queues": ["default"]}
        await client.post("/v1/leases", json=body)
        path = f"/v1/jobs/{job['id']}"
        await post_text(client, f"{path}/heartbeat", f'{{"lease_version":1,"checkpoint":{value}}}')
        fail = f'{{"lease_version":1,"error":{{"message":"m","details":{value}}}}}'
        failed = await post_text(client, f"{path}/fail", fail)
        assert failed.status_code == 200, value
        assert f'"details":{value}}}' in failed.text
        again = await client.post("/v1/leases", json=body)
        assert member_text(again.text, "checkpoint").startswith(value + ","), value
        assert f'"details":{value}}}' in member_text(again.text, "previous")
        assert f'"details":{value}}}' in (await client.get(f"{path}/attempts")).text


async def test_values_that_could_not_come_back_are_refused_and_nothing_is_changed(
    client: httpx.AsyncClient,
) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    before = await read(client, leased["id"])
    for value in REFUSED:
        for address, body, pointer in [
            ("/v1/jobs", f'{{"kind":"w","payload":{value}}}', "/payload"),
            (
                "/v1/jobs/batch",
                f'{{"jobs":[{{"kind":"w"}},{{"kind":"w","payload":{value}}}]}}',
                "/jobs/1/payload",
            ),
            (f"{path}/complete", f'{{"lease_version":1,"result":{value}}}', "/result"),
            (
                f"{path}/complete",
                f'{{"lease_version":1,"enqueue":[{{"kind":"w","payload":{value}}}]}}',
                "/enqueue/0/payload",
            ),
            (f"{path}/heartbeat", f'{{"lease_version":1,"checkpoint":{value}}}', "/checkpoint"),
            (
                "/v1/leases/complete",
                f'{{"items":[{{"job_id":"{leased["id"]}","lease_version":1,"result":{value}}}]}}',
                "/items/0/result",
            ),
        ]:
            invalid(await post_text(client, address, body), pointer)
    assert await read(client, leased["id"]) == before
    assert len((await client.get("/v1/jobs")).json()["jobs"]) == 1
    await tell_ok(client, "complete", leased, result="clean")


@pytest.mark.parametrize("name", ["kind", "queue"])
async def test_lone_surrogate_in_a_name_is_422_in_valid_utf_8(client: httpx.AsyncClient, name: str) -> None:
    other = '"kind":"w",' if name == "queue" else ""
    for text in ("\\ud83d", "a\\udc00", "\\u0000"):
        invalid(await post_text(client, "/v1/jobs", f'{{{other}"{name}":"{text}"}}'))
        invalid(await post_text(client, "/v1/jobs", f'{{"{name}":"{text}","priority":"x"}}'))
    invalid(await post_text(client, "/v1/jobs", '{"kind":"w","\\ud83d":1}'))
    invalid(await post_text(client, "/v1/jobs", '{"kind":"w","metadata":{"\\ud83d":"a"}}'))
    invalid(await post_text(client, "/v1/jobs", '{"kind":"w","metadata":{"a":"\\ud83d"}}'))


async def test_nul_in_a_payload_comes_back_unchanged(client: httpx.AsyncClient) -> None:
    for value in ('"a\\u0000b"', '{"\\u0000":"\\u0000"}'):
        created = await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":{value}}}')
        assert created.status_code == 201
        (leased,) = await lease(client)
        answer = await post_text(
            client, f"/v1/jobs/{leased['id']}/complete", f'{{"lease_version":1,"result":{value}}}'
        )
        assert member_text(answer.text, "payload").startswith(value)
        assert member_text(answer.text, "result").startswith(value)


async def test_nul_in_metadata_comes_back_unchanged(client: httpx.AsyncClient) -> None:
    job = await submit(client, metadata={"a\u0000": "\u0000"})
    assert (await read(client, job["id"]))["metadata"] == {"a\u0000": "\u0000"}
    (leased,) = await lease(client)
    assert leased["metadata"] == {"a\u0000": "\u0000"}
    await tell_ok(client, "complete", leased)
    assert len(await read_attempts(client, job["id"])) == 1
