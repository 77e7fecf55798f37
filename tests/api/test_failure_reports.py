"""A failure report lands, whatever is in it, as long as it fits the body limit."""

import json

import httpx
import pytest

from tests.support.api import invalid, post_text, read, refused, run_job, tell, tell_ok

DETAILS = {
    "nan": "NaN",
    "infinity": '{"x":[-Infinity]}',
    "lone surrogate": '"\\ud83d"',
    "surrogate name": '{"\\udc00":1}',
    "101 deep": "[" * 101 + "]" * 101,
    "1,000 deep": "[" * 1_000 + "]" * 1_000,
    "20,000 deep objects": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "over the result limit": '"' + "x" * 262_143 + '"',
}
MESSAGES = {
    "nul": ("a\\u0000b", "a\ufffdb"),
    "lone high surrogate": ("a\\ud83d", "a\ufffd"),
    "lone low surrogate": ("\\udc00x", "\ufffdx"),
    "swapped pair": ("\\ude00\\ud83d", "\ufffd\ufffd"),
    "pair": ("\\ud83d\\ude00", "\U0001f600"),
    "empty": ("", ""),
    "six plain characters": ("\\\\u0000", "\\u0000"),
}


@pytest.mark.parametrize("details", DETAILS.values(), ids=DETAILS)
async def test_details_that_cannot_be_kept_are_replaced_by_a_marker(
    client: httpx.AsyncClient, details: str
) -> None:
    leased = await run_job(client, max_attempts=1)
    item = f'"lease_version":1,"error":{{"type":"T","message":"m","details":{details}}}'
    answer = await post_text(client, f"/v1/jobs/{leased['id']}/fail", f"{{{item}}}")
    assert answer.status_code == 200, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["message"]) == ("T", "m")
    assert error["details"]["dropped"] is True
    assert isinstance(error["details"]["reason"], str)
    assert (await read(client, leased["id"]))["error"] == error
    repeat = await post_text(client, f"/v1/jobs/{leased['id']}/fail", f"{{{item}}}")
    assert repeat.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("sent", "stored"), MESSAGES.values(), ids=MESSAGES)
async def test_texts_are_made_storable(client: httpx.AsyncClient, sent: str, stored: str) -> None:
    leased = await run_job(client)
    body = f'{{"lease_version":1,"error":{{"type":"{sent}","message":"{sent}"}}}}'
    answer = await post_text(client, f"/v1/jobs/{leased['id']}/fail", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["error"] == {"type": stored, "message": stored, "details": None}


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
async def test_message_over_16_kib_is_cut_mark_included(client: httpx.AsyncClient, letter: str) -> None:
    size = len(letter.encode())
    fits = letter * (16 * 1024 // size)
    leased = await run_job(client, backoff={"base_seconds": 60})
    failed = await tell_ok(client, "fail", leased, error={"message": fits})
    assert failed["error"]["message"] == fits
    other = await run_job(client, queue="other")
    failed = await tell_ok(client, "fail", other, error={"message": fits + letter})
    message = failed["error"]["message"]
    assert message != fits
    assert 16 * 1024 - 32 <= len(message.encode()) <= 16 * 1024
    start = message.rstrip()[: 16 * 1024 // size - 16]
    assert fits.startswith(start)
    big = await run_job(client, queue="big")
    assert (
        len((await tell_ok(client, "fail", big, error={"message": "x" * 500_000}))["error"]["message"])
        <= 16384
    )


async def test_type_over_255_characters_is_cut(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    failed = await tell_ok(client, "fail", leased, error={"type": "é" * 300, "message": "m"})
    assert failed["error"]["type"] == "é" * 255


async def test_report_over_the_body_limit_is_413_and_the_lease_is_kept(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    before = await read(client, leased["id"])
    response = await tell(client, "fail", leased, error={"message": "x" * 1_048_576})
    assert "1048576" in refused(response, 413, "too_large")["detail"]
    assert await read(client, leased["id"]) == before
    await tell_ok(client, "fail", leased, error={"message": "x"})


async def test_what_is_wrong_beside_the_error_is_refused_and_the_lease_is_kept(
    client: httpx.AsyncClient,
) -> None:
    leased = await run_job(client)
    before = await read(client, leased["id"])
    path = f"/v1/jobs/{leased['id']}/fail"
    error = '"error":{"message":"\\ud83d","details":NaN}'
    for rest in ('"retry_after_seconds":-1', '"retry_after_seconds":1e18', '"retryable":"no"', '"x":1'):
        invalid(await post_text(client, path, f'{{"lease_version":1,{error},{rest}}}'))
    invalid(await post_text(client, path, f"{{{error}}}"), "lease_version")
    assert await read(client, leased["id"]) == before


async def test_many_reports_land_each_by_itself(client: httpx.AsyncClient) -> None:
    reports = [*DETAILS.values(), "[1.50]", '{"a":1,"a":2}']
    leases = [await run_job(client, queue=f"q{n}", backoff={"base_seconds": 60}) for n in range(len(reports))]
    items = [
        f'{{"job_id":"{leased["id"]}","lease_version":1,'
        f'"error":{{"message":"a\\u0000\\ud83d","details":{details}}}}}'
        for leased, details in zip(leases, reports, strict=True)
    ]
    answer = await post_text(client, "/v1/leases/fail", f'{{"items":[{",".join(items)}]}}')
    assert answer.status_code == 200, answer.text
    assert [result["status"] for result in answer.json()["results"]] == ["ok"] * len(reports)
    for number, leased in enumerate(leases):
        job = await read(client, leased["id"])
        assert job["state"] == "scheduled"
        assert job["error"]["message"] == "a\ufffd\ufffd"
        if number < len(DETAILS):
            assert job["error"]["details"]["dropped"] is True
    assert '"details":[1.50]' in (await client.get(f"/v1/jobs/{leases[-2]['id']}")).text
    assert '"details":{"a":1,"a":2}' in (await client.get(f"/v1/jobs/{leases[-1]['id']}")).text


async def test_report_that_is_not_json_is_400_and_the_lease_is_kept(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    for text in (
        '{"lease_version":1,"error":{"message":"m"}',
        '{"lease_version":1,"error":{"message":"\\x"}}',
    ):
        answer = await post_text(client, f"/v1/jobs/{leased['id']}/fail", text)
        refused(answer, 400, "malformed_json")
    assert (await tell(client, "verify", leased)).status_code == 204
    assert (
        json.loads((await tell(client, "fail", leased, error={"message": "m"})).text)["state"] == "scheduled"
    )
