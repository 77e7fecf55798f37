"""Bodies, names and numbers that broke other services."""

import asyncio
import json
from collections.abc import Callable

import httpx
import psutil

from tests.support.api import (
    Json,
    invalid,
    lease,
    list_all,
    lost,
    post_text,
    read,
    refused,
    run_job,
    submit,
    submit_with_key,
    tell,
    tell_ok,
)
from tests.support.server import WITHOUT_NETS, ServerProcess
from tests.support.sockets import RawConnection
from tests.support.standing_rules import Start

VERBS: dict[str, Json] = {
    "complete": {},
    "heartbeat": {},
    "fail": {"error": {"message": "m"}},
    "release": {},
}


async def post_version(client: httpx.AsyncClient, verb: str, job_id: str, token: str) -> httpx.Response:
    rest = "".join(f',"{name}":{json.dumps(value)}' for name, value in VERBS[verb].items())
    return await post_text(client, f"/v1/jobs/{job_id}/{verb}", f'{{"lease_version":{token}{rest}}}')


async def test_lease_version_that_is_missing_guessed_or_mistyped_settles_nothing(
    client: httpx.AsyncClient,
) -> None:
    """BO-11."""
    other = await run_job(client, queue="other")
    for _ in range(2):
        await tell_ok(client, "release", other)
        (other,) = await lease(client, queue="other")
    leased = await run_job(client)
    before = await read(client, leased["id"])
    for verb, members in VERBS.items():
        invalid(await client.post(f"/v1/jobs/{leased['id']}/{verb}", json=members), "lease_version")
        for token in ("null", '""', '"1"', "-1", "true", "1.5", "1.0", str(2**63), "1" + "0" * 30):
            invalid(await post_version(client, verb, leased["id"], token), "lease_version")
        for version in (leased["lease_version"] + 1, other["lease_version"], 0):
            lost(await post_version(client, verb, leased["id"], str(version)), "unknown")
    assert await read(client, leased["id"]) == before
    await tell_ok(client, "complete", leased)


async def test_nul_in_json_text_is_refused_or_comes_back_and_a_job_can_always_be_closed(
    client: httpx.AsyncClient,
) -> None:
    """BO-23."""
    for name in ("queue", "kind"):
        body = f'{{"kind":"w","queue":"q","{name}":"a\\u0000"}}'.replace(f'"{name}":"q",', "").replace(
            f'"{name}":"w",', ""
        )
        invalid(await post_text(client, "/v1/jobs", body), name)
    invalid(await post_text(client, "/v1/leases", '{"worker_id":"w\\u0000","queues":["q"]}'), "worker_id")
    invalid(await post_text(client, "/v1/leases", '{"worker_id":"w","queues":["q\\u0000"]}'), "queues")
    for payload in ('"a\\u0000b"', '{"a\\u0000b":[1]}', '"\\\\u0000"'):
        created = await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":{payload}}}')
        assert created.status_code == 201
        granted = await client.post("/v1/leases", json={"worker_id": "w", "queues": ["default"]})
        assert f'"payload":{payload}' in granted.text
        path = f"/v1/jobs/{created.json()['id']}"
        done = await post_text(client, f"{path}/complete", f'{{"lease_version":1,"result":{payload}}}')
        assert done.status_code == 200
        assert f'"result":{payload}' in (await client.get(path)).text
    leased = await run_job(client)
    report = '{"lease_version":1,"error":{"type":"\\u0000","message":"a\\u0000b","details":"\\u0000"}}'
    failed = await post_text(client, f"/v1/jobs/{leased['id']}/fail", report)
    assert (failed.status_code, failed.json()["error"]["message"]) == (200, "a\ufffdb")


async def test_half_a_surrogate_pair_is_refused_in_valid_utf_8_and_a_whole_one_arrives(
    client: httpx.AsyncClient,
) -> None:
    """BO-24."""
    for text in ("\\ud83d", "\\udc00x"):
        invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":["{text}"]}}'), "payload")
        invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","queue":"{text}"}}'))
        invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","priority":"x","queue":"{text}"}}'))
        invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","{text}":1}}'))
        leased = await run_job(client)
        report = f'{{"lease_version":1,"error":{{"message":"{text}"}}}}'
        failed = await post_text(client, f"/v1/jobs/{leased['id']}/fail", report)
        assert "\ufffd" in failed.json()["error"]["message"]
    await post_text(client, "/v1/jobs", '{"kind":"w","queue":"pair","payload":"\\ud83d\\ude00"}')
    (leased,) = await lease(client, queue="pair")
    assert leased["payload"] == "\U0001f600"


async def test_nan_and_infinity_are_refused_in_strict_json(client: httpx.AsyncClient) -> None:
    """BO-25."""
    for body in (
        '{"kind":"w","payload":{"x":NaN}}',
        '{"kind":"w","priority":Infinity}',
        '{"kind":"w","delay_seconds":-Infinity}',
        '{"kind":"w","delay_seconds":NaN}',
        '{"kind":"w","priority":"NaN"}',
        '{"kind":"w","delay_seconds":"NaN"}',
    ):
        invalid(await post_text(client, "/v1/jobs", body))
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}/complete"
    invalid(await post_text(client, path, '{"lease_version":1,"result":NaN}'), "/result")
    assert (await tell(client, "verify", leased)).status_code == 204


async def test_integers_above_2_to_the_53rd_keep_their_digits(client: httpx.AsyncClient) -> None:
    """BO-26."""
    value = '{"id":9007199254740993,"n":[-9223372036854775808,18446744073709551615]}'
    created = await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":{value}}}')
    granted = await client.post("/v1/leases", json={"worker_id": "w", "queues": ["default"]})
    path = f"/v1/jobs/{created.json()['id']}"
    done = await post_text(client, f"{path}/complete", f'{{"lease_version":1,"result":{value}}}')
    whole = (await client.get(path), await client.get("/v1/jobs?include=payload,result"))
    for answer in (created, granted, *whole):
        assert f'"payload":{value}' in answer.text
    for answer in (done, *whole):
        assert f'"result":{value}' in answer.text
    assert isinstance(created.json()["id"], str)


async def test_deep_nesting_has_one_limit_on_every_route(client: httpx.AsyncClient) -> None:
    """BO-27."""
    leased = await run_job(client, queue="deep")
    path = f"/v1/jobs/{leased['id']}/complete"
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = "" if opening == "[" else "1"
        fits = opening * 100 + inner + closing * 100
        created = await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":{fits}}}')
        assert f'"payload":{fits}' in created.text
        batch = await post_text(client, "/v1/jobs/batch", f'{{"jobs":[{{"kind":"w","payload":{fits}}}]}}')
        assert batch.status_code == 201
        for depth in (101, 1_000, 20_000):
            deep = opening * depth + inner + closing * depth
            invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","payload":{deep}}}'), "payload")
            item = f'{{"jobs":[{{"kind":"w","payload":{deep}}}]}}'
            invalid(await post_text(client, "/v1/jobs/batch", item), "/jobs/0/payload")
            invalid(await post_text(client, path, f'{{"lease_version":1,"result":{deep}}}'), "result")
    assert len(await lease(client, max_jobs=9)) == 4
    assert (await tell(client, "verify", leased)).status_code == 204


def test_body_limit_holds_for_chunks_too_and_others_are_served_meanwhile(
    serve: Callable[..., ServerProcess],
) -> None:
    """BO-28."""
    limit = 1_048_576
    server = serve()
    process = psutil.Process(server.process.pid)
    exact = b'{"kind":"work"' + b" " * (limit - 15) + b"}"
    assert len(exact) == limit
    for body, status in ((exact, 201), (exact[:-1] + b" }", 413)):
        with RawConnection(server.port) as connection:
            connection.send_request("POST", "/v1/jobs", body=body)
            assert connection.read_answer()[0] == status
    before = process.memory_info().rss
    headers = ["Content-Type: application/json", "Transfer-Encoding: chunked"]
    # The batch comes last: what it was given is not handed back to the system at once.
    for path, held in (("/v1/jobs", limit), ("/v1/jobs/x/complete", limit), ("/v1/jobs/batch", 16 * limit)):
        streams = [RawConnection(server.port) for _ in range(5)]
        is_open = dict.fromkeys(streams, True)
        for stream in streams:
            stream.send_request("POST", path, headers)
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        for number in range(50 * held // 0x40000):
            if number % 8 == 0:
                assert httpx.get(f"{server.url}/v1/jobs", timeout=30).status_code == 200
                assert process.memory_info().rss - before < 10 * held * len(streams), path
            for stream in [each for each in streams if is_open[each]]:
                try:
                    stream.send(chunk)
                except ConnectionError:
                    is_open[stream] = False
            if not any(is_open.values()):
                break
        assert not any(is_open.values()), f"{path} was read to its end"
        assert httpx.get(f"{server.url}/v1/jobs", timeout=30).status_code == 200
        assert process.memory_info().rss - before < 2 * held * len(streams) + 8 * limit, path
    assert len(httpx.get(f"{server.url}/v1/jobs").json()["jobs"]) == 1


async def test_wake_up_carries_no_job_so_that_none_is_too_large(start: Start) -> None:
    """BO-29; the poller is parked at another replica than the jobs come to."""
    producer, consumer = start(program=WITHOUT_NETS), start(program=WITHOUT_NETS)
    queue = "q" * 128
    for payload in ("x" * 9_000, "\U0001f600" * 2_500):
        poll = asyncio.create_task(consumer.lease(queues=[queue], wait_seconds=30, lease_seconds=3600))
        await asyncio.sleep(0.2)
        job = await producer.submit(queue=queue, payload=payload)
        (leased,) = await poll
        assert (leased["id"], leased["payload"]) == (job["id"], payload)
    poll = asyncio.create_task(consumer.lease(queues=[queue], wait_seconds=30, lease_seconds=3600))
    await asyncio.sleep(0.2)
    jobs = await producer.submit_many(600, queue=queue)
    leased_ids = [each["id"] for each in await poll]
    while more := await consumer.lease(queues=[queue], max_jobs=100, lease_seconds=3600):
        leased_ids += [each["id"] for each in more]
    assert sorted(leased_ids) == sorted(job["id"] for job in jobs)


async def test_result_over_the_limit_keeps_the_lease_and_a_small_one_is_stored(
    client: httpx.AsyncClient,
) -> None:
    """BO-30."""
    leased = await run_job(client)
    before = await read(client, leased["id"])
    refused(await tell(client, "complete", leased, result="x" * 262_143), 413, "too_large")
    assert await read(client, leased["id"]) == before
    await tell_ok(client, "heartbeat", leased)
    small = '{"a": [1.0,  "\\u00e9"]}'
    done = await post_text(
        client, f"/v1/jobs/{leased['id']}/complete", f'{{"lease_version":1,"result":{small}}}'
    )
    assert done.status_code == 200
    assert f'"result":{small}' in (await client.get(f"/v1/jobs/{leased['id']}")).text


def test_empty_lease_answer_has_a_body_and_leaves_the_connection_clean(
    serve: Callable[..., ServerProcess],
) -> None:
    """BO-31."""
    server = serve()
    with RawConnection(server.port) as connection:
        connection.send_request("POST", "/v1/jobs", body=b'{"kind":"work","queue":"other"}')
        job = json.loads(connection.read_answer()[2])
        for _ in range(20):
            connection.send_request("POST", "/v1/leases", body=b'{"worker_id":"w","queues":["q"]}')
            status, _, body = connection.read_answer()
            assert (status, json.loads(body)["jobs"]) == (200, [])
            connection.send_request("GET", f"/v1/jobs/{job['id']}")
            assert json.loads(connection.read_answer()[2]) == job
    assert "Traceback" not in server.log


async def test_body_without_a_json_content_type_is_415_that_names_content_type(
    client: httpx.AsyncClient,
) -> None:
    """BO-32."""
    for content_type in ("application/x-www-form-urlencoded", "text/plain", None):
        headers = {} if content_type is None else {"Content-Type": content_type}
        answer = await client.post("/v1/jobs", content=b'{"kind":"w"}', headers=headers)
        assert "Content-Type" in refused(answer, 415, "unsupported_media_type")["detail"]
    for content_type in ("application/json", "APPLICATION/JSON; charset=utf-8"):
        answer = await client.post(
            "/v1/jobs", content=b'{"kind":"w"}', headers={"Content-Type": content_type}
        )
        assert answer.status_code == 201


async def test_names_that_cannot_be_addressed_are_refused_at_first_use(client: httpx.AsyncClient) -> None:
    """BO-33."""
    for name in ("a/b", "a%2Fb", "a b", "é", "..", "x?y=1#z", "n" * 300):
        invalid(await client.post("/v1/jobs", json={"kind": "w", "queue": name}), "queue")
        invalid(await client.post("/v1/leases", json={"worker_id": name, "queues": ["q"]}), "worker_id")
        invalid(await client.post("/v1/leases", json={"worker_id": "w", "queues": [name]}), "queues")
        invalid(await client.get("/v1/jobs", params={"queue": name}), "queue")


async def test_control_numbers_out_of_range_or_of_another_type_are_refused_by_name(
    client: httpx.AsyncClient,
) -> None:
    """BO-34."""
    for token in ("2147483648", "-2147483649", "1.5", '"5"', "true", "null", "[]"):
        invalid(await post_text(client, "/v1/jobs", f'{{"kind":"w","priority":{token}}}'), "priority")
    invalid(await post_text(client, "/v1/jobs", '{"kind":"w","max_attempts":2147483648}'), "max_attempts")
    for name, tokens in {
        "lease_seconds": ("0", "-1", "1000000000", "0.0001"),
        "wait_seconds": ("-1", "1000000"),
        "max_jobs": ("0", "-1", "1000000"),
    }.items():
        for token in tokens:
            body = f'{{"worker_id":"w","queues":["q"],"{name}":{token}}}'
            invalid(await asyncio.wait_for(post_text(client, "/v1/leases", body), 20), name)


async def test_refused_requests_of_all_kinds_create_nothing(client: httpx.AsyncClient) -> None:
    """Standing rule 4."""
    kept = await submit(client, payload="kept")
    for body in ('{"kind":"w","payload":NaN}', '{"kind":', '{"kind":"w","kind":"w"}', "[]"):
        assert (await post_text(client, "/v1/jobs", body)).status_code in (400, 422)
    assert (await submit_with_key(client, "k", priority="x")).status_code == 422
    assert [job["id"] for job in await list_all(client)] == [kept["id"]]
