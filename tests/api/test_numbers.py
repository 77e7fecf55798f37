"""Every number of the contract: strict in its type, refused out of range, never clamped."""

import httpx
import pytest

from tests.support.api import UNKNOWN_ID, invalid, post_text, read, refused, run_job, submit

WRONG_TYPES = ["true", "false", '"5"', "[]", "{}", '"NaN"']
BEYOND_ALL = ["1e400", "-1e400", "1" + "0" * 30, "-" + "1" + "0" * 30, "9223372036854775808", "1e30"]
NOT_WHOLE = ["1.5", "5.0", "1e2", "1e-2"]

JOB = {
    "priority": ('{"kind":"w","priority":@}', True, -32768, 32767),
    "delay_seconds": ('{"kind":"w","delay_seconds":@}', False, 0, 31_536_000),
    "max_attempts": ('{"kind":"w","max_attempts":@}', True, 1, 1000),
    "backoff/base_seconds": ('{"kind":"w","backoff":{"base_seconds":@}}', False, 0, 86_400),
    "backoff/factor": ('{"kind":"w","backoff":{"factor":@}}', False, 1, 10),
    "backoff/max_seconds": ('{"kind":"w","backoff":{"max_seconds":@}}', False, 0, 604_800),
    "backoff/jitter": ('{"kind":"w","backoff":{"jitter":@}}', False, 0, 1),
    "max_runtime_seconds": ('{"kind":"w","max_runtime_seconds":@}', False, 1, 604_800),
    "progress_timeout_seconds": ('{"kind":"w","progress_timeout_seconds":@}', False, 1, 604_800),
}
LEASE = {
    "max_jobs": ('{"worker_id":"w","queues":["q"],"max_jobs":@}', True, 1, 1000),
    "lease_seconds": ('{"worker_id":"w","queues":["q"],"lease_seconds":@}', False, 1, 3600),
}
HOLDER = {
    ("heartbeat", "extend_seconds"): ('{"lease_version":1,"extend_seconds":@}', False, 1, 3600),
    ("heartbeat", "progress/seq"): ('{"lease_version":1,"progress":{"seq":@}}', True, 0, 2**53 - 1),
    ("heartbeat", "progress/percent"): (
        '{"lease_version":1,"progress":{"seq":1,"percent":@}}',
        False,
        0,
        100,
    ),
    ("fail", "retry_after_seconds"): (
        '{"lease_version":1,"error":{"message":"m"},"retry_after_seconds":@}',
        False,
        0,
        31_536_000,
    ),
    ("release", "delay_seconds"): ('{"lease_version":1,"delay_seconds":@}', False, 0, 31_536_000),
}


def bad_tokens(low: int, high: int, *, whole: bool) -> list[str]:
    below = [str(low - 1)] if whole else [str(low - 1), f"{low - 0.001}"]
    above = [str(high + 1)] if whole else [str(high + 1), f"{high}.001"]
    return [*WRONG_TYPES, *BEYOND_ALL, *below, *above, *(NOT_WHOLE if whole else [])]


async def _refuse_all(
    client: httpx.AsyncClient, path: str, body: str, name: str, tokens: list[str], *, prefix: str = ""
) -> None:
    for token in tokens:
        problem = invalid(await post_text(client, path, body.replace("@", token)))
        assert [error["pointer"] for error in problem["errors"]] == [f"{prefix}/{name}"], token
    for word in ("NaN", "Infinity", "-Infinity"):
        response = await post_text(client, path, body.replace("@", word))
        assert response.status_code in (400, 422)
        assert response.json()["code"] in ("malformed_json", "invalid_request")


@pytest.mark.parametrize("name", JOB)
async def test_number_of_a_job_is_strict_alone_and_in_a_batch(client: httpx.AsyncClient, name: str) -> None:
    body, whole, low, high = JOB[name]
    tokens = bad_tokens(low, high, whole=whole)
    await _refuse_all(client, "/v1/jobs", body, name, tokens)
    batch = f'{{"jobs":[{{"kind":"w"}},{body}]}}'
    await _refuse_all(client, "/v1/jobs/batch", batch, name, tokens[:4], prefix="/jobs/1")
    assert (await client.get("/v1/jobs")).json()["jobs"] == []
    for bound in (low, high):
        assert (await post_text(client, "/v1/jobs", body.replace("@", str(bound)))).status_code == 201


@pytest.mark.parametrize("name", LEASE)
async def test_number_of_a_lease_call_is_strict(client: httpx.AsyncClient, name: str) -> None:
    body, whole, low, high = LEASE[name]
    await submit(client, queue="q")
    await _refuse_all(client, "/v1/leases", body, name, bad_tokens(low, high, whole=whole))
    assert len((await client.get("/v1/jobs", params={"state": "ready"})).json()["jobs"]) == 1
    for bound in (low, high):
        assert (await post_text(client, "/v1/leases", body.replace("@", str(bound)))).status_code == 200


async def test_wait_seconds_of_a_lease_call_is_strict(client: httpx.AsyncClient) -> None:
    body = '{"worker_id":"w","queues":["q"],"wait_seconds":@}'
    await _refuse_all(client, "/v1/leases", body, "wait_seconds", bad_tokens(0, 30, whole=False))


@pytest.mark.parametrize(("verb", "name"), HOLDER)
async def test_number_of_a_holder_call_is_strict_and_a_refusal_keeps_the_lease(
    client: httpx.AsyncClient, verb: str, name: str
) -> None:
    body, whole, low, high = HOLDER[verb, name]
    leased = await run_job(client, max_attempts=100)
    before = await read(client, leased["id"])
    path = f"/v1/jobs/{leased['id']}/{verb}"
    tokens = bad_tokens(low, high, whole=whole)
    await _refuse_all(client, path, body, name, tokens)
    item = body.replace("{", f'{{"job_id":"{leased["id"]}",', 1)
    many = f'{{"items":[{item}]}}'
    await _refuse_all(client, f"/v1/leases/{verb}", many, name, tokens[:4], prefix="/items/0")
    assert await read(client, leased["id"]) == before
    assert (await post_text(client, path, body.replace("@", str(high)))).status_code == 200


VERSIONS = ["null", *WRONG_TYPES, *BEYOND_ALL, *NOT_WHOLE, "-1", "9007199254740992"]


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release", "verify"])
async def test_lease_version_is_required_and_strict(client: httpx.AsyncClient, verb: str) -> None:
    leased = await run_job(client)
    before = await read(client, leased["id"])
    rest = ',"error":{"message":"m"}' if verb == "fail" else ""
    path = f"/v1/jobs/{leased['id']}/{verb}"
    await _refuse_all(client, path, f'{{"lease_version":@{rest}}}', "lease_version", VERSIONS)
    invalid(await post_text(client, path, f"{{{rest[1:]}}}"), "lease_version")
    if verb != "verify":
        many = f'{{"items":[{{"job_id":"{leased["id"]}","lease_version":@{rest}}}]}}'
        await _refuse_all(
            client, f"/v1/leases/{verb}", many, "lease_version", VERSIONS[:4], prefix="/items/0"
        )
    assert await read(client, leased["id"]) == before


async def test_lease_version_of_a_parent_is_strict(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    body = f'{{"kind":"w","parent":{{"job_id":"{leased["id"]}","lease_version":@}}}}'
    await _refuse_all(client, "/v1/jobs", body, "parent/lease_version", VERSIONS)


async def test_numbers_of_an_edit_are_strict(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for name, low, high in (("priority", -32768, 32767), ("max_attempts", 1, 1000)):
        for token in [*bad_tokens(low, high, whole=True), "null"]:
            response = await client.patch(
                f"/v1/jobs/{job['id']}",
                content=f'{{"{name}":{token}}}',
                headers={"Content-Type": "application/json"},
            )
            invalid(response, name)
    assert await read(client, job["id"]) == job


@pytest.mark.parametrize("text", ["0", "-1", "201", "1.0", "abc", "", "1" + "0" * 30, "1e1", "+1", "٣", " 5"])
async def test_limit_of_a_list_is_strict(client: httpx.AsyncClient, text: str) -> None:
    job = await submit(client)
    invalid(await client.get("/v1/jobs", params={"limit": text}), "limit")
    invalid(await client.get(f"/v1/jobs/{job['id']}/attempts", params={"limit": text}), "limit")


@pytest.mark.parametrize("text", ["-1", "30.1", "31", "abc", "", "1e999", "NaN", "inf", "1" + "0" * 30])
async def test_wait_seconds_of_a_read_is_strict(client: httpx.AsyncClient, text: str) -> None:
    job = await submit(client)
    invalid(await client.get(f"/v1/jobs/{job['id']}", params={"wait_seconds": text}), "wait_seconds")


@pytest.mark.parametrize("text", ["0", "2.5", "20.497867729311370", "1e1", "5E-1", "1.5e-200"])
async def test_wait_seconds_of_a_read_takes_every_spelling_of_a_number(
    client: httpx.AsyncClient, text: str
) -> None:
    # Of an unknown job: nothing is waited for.
    answer = await client.get(f"/v1/jobs/{UNKNOWN_ID}", params={"wait_seconds": text})
    refused(answer, 404, "job_not_found")


async def test_booleans_are_strict(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    for token in ("1", "0", '"true"', "null", "[]"):
        path = f"/v1/jobs/{leased['id']}"
        invalid(await post_text(client, f"{path}/cancel", f'{{"force":{token}}}'), "force")
        fail = f'{{"lease_version":1,"error":{{"message":"m"}},"retryable":{token}}}'
        invalid(await post_text(client, f"{path}/fail", fail), "retryable")
    assert (await read(client, leased["id"]))["lease"]["cancel_requested"] is False
