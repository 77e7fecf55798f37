"""Names, reasons and times: what is text, and which text."""

import httpx
import pytest

from tests.support.api import invalid, lease, read, run_job, submit, tell, tell_ok

BAD_NAMES = [
    "",
    "a/b",
    "a%2Fb",
    "a b",
    " a",
    "a ",
    "é",
    "..",
    ".a",
    "-a",
    "_a",
    ":a",
    "x?y=1#z",
    "a\n",
    "a\u0000",
    "a" * 129,
    "\uff41",
    "😀",
]
GOOD_NAMES = ["a", "9", "A-z_0.9:x", "a..b", "a" * 128]


async def test_names_outside_the_alphabet_are_refused_everywhere(client: httpx.AsyncClient) -> None:
    lease_body = {"worker_id": "w", "queues": ["q"]}
    for name in BAD_NAMES:
        invalid(await client.post("/v1/jobs", json={"kind": name}), "/kind")
        invalid(await client.post("/v1/jobs", json={"kind": "w", "queue": name}), "/queue")
        invalid(await client.post("/v1/jobs/batch", json={"jobs": [{"kind": name}]}), "/jobs/0/kind")
        invalid(await client.post("/v1/leases", json=lease_body | {"worker_id": name}), "/worker_id")
        invalid(await client.post("/v1/leases", json=lease_body | {"queues": ["q", name]}), "/queues")
        invalid(await client.get("/v1/jobs", params={"queue": name}), "queue")
        invalid(await client.get("/v1/jobs", params={"kind": name}), "kind")
        invalid(await client.get("/v1/leases", params={"worker_id": name}), "worker_id")
    assert (await client.get("/v1/jobs")).json()["jobs"] == []


async def test_names_are_texts(client: httpx.AsyncClient) -> None:
    for value in (1, True, None, ["a"], {"a": "b"}):
        invalid(await client.post("/v1/jobs", json={"kind": value}), "/kind")
        invalid(await client.post("/v1/jobs", json={"kind": "w", "queue": value}), "/queue")
        invalid(await client.post("/v1/leases", json={"worker_id": value, "queues": ["q"]}), "/worker_id")


async def test_names_of_the_alphabet_work_on_every_route(client: httpx.AsyncClient) -> None:
    for name in GOOD_NAMES:
        job = await submit(client, kind=name, queue=name)
        (leased,) = await lease(client, queue=name, worker_id=name)
        assert (leased["id"], leased["kind"], leased["queue"]) == (job["id"], name, name)
        held = (await client.get("/v1/leases", params={"worker_id": name})).json()["leases"]
        assert [each["job_id"] for each in held] == [job["id"]]
        listed = (await client.get("/v1/jobs", params={"queue": name, "kind": name})).json()["jobs"]
        assert [each["id"] for each in listed] == [job["id"]]


async def test_names_differ_by_case(client: httpx.AsyncClient) -> None:
    await submit(client, queue="abc")
    assert await lease(client, queue="ABC") == []


async def test_reason_and_message_take_up_to_1024_characters(client: httpx.AsyncClient) -> None:
    longest, too_long = "é" * 1024, "é" * 1025
    leased = await run_job(client)
    invalid(await tell(client, "release", leased, reason=too_long), "/reason")
    progress = {"seq": 1, "message": too_long}
    invalid(await tell(client, "heartbeat", leased, progress=progress), "/progress/message")
    invalid(await client.post(f"/v1/jobs/{leased['id']}/cancel", json={"reason": too_long}), "/reason")
    await tell_ok(client, "heartbeat", leased, progress={"seq": 1, "message": longest})
    assert (await read(client, leased["id"]))["lease"]["progress"]["message"] == longest
    await tell_ok(client, "release", leased, reason=longest)
    cancelled = await client.post(f"/v1/jobs/{leased['id']}/cancel", json={"reason": longest})
    assert cancelled.json()["error"]["message"] == longest


async def test_reason_may_end_in_a_line_break(client: httpx.AsyncClient) -> None:
    await tell_ok(client, "release", await run_job(client), reason="first\nsecond\n")


async def test_reason_with_nul_or_a_lone_surrogate_is_422(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    for escape in ("\\u0000", "\\ud83d", "\\udc00x"):
        for path, text in [
            ("release", f'{{"lease_version":1,"reason":"{escape}"}}'),
            ("cancel", f'{{"reason":"{escape}"}}'),
            ("heartbeat", f'{{"lease_version":1,"progress":{{"seq":1,"message":"{escape}"}}}}'),
        ]:
            response = await client.post(
                f"/v1/jobs/{leased['id']}/{path}",
                content=text.encode(),
                headers={"Content-Type": "application/json"},
            )
            invalid(response)
    await tell_ok(client, "complete", leased)


REFUSED_TIMES = [
    "2027-01-01T12:00:00",
    "2027-01-01",
    "2027-01-01T12:00Z",
    "2027-02-29T12:00:00Z",
    "2027-01-01T24:00:00Z",
    "2027-01-01T12:00:00+24:00",
    "1969-12-31T23:59:59Z",
    "1970-01-01T00:00:00+00:01",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-12:00",
    "10000-01-01T00:00:00Z",
    "tomorrow",
    "",
    "1798804800",
]


async def test_times_that_are_no_instant_of_the_calendar_are_refused_everywhere(
    client: httpx.AsyncClient,
) -> None:
    job = await submit(client)
    dead = await submit(client, queue="dead")
    await client.post(f"/v1/jobs/{dead['id']}/cancel")
    for text in [*REFUSED_TIMES, 1798804800, True]:
        invalid(await client.post("/v1/jobs", json={"kind": "w", "run_at": text}), "/run_at")
        batch = {"jobs": [{"kind": "w"}, {"kind": "w", "run_at": text}]}
        invalid(await client.post("/v1/jobs/batch", json=batch), "/jobs/1/run_at")
        invalid(await client.patch(f"/v1/jobs/{job['id']}", json={"run_at": text}), "/run_at")
        invalid(await client.post(f"/v1/jobs/{dead['id']}/redrive", json={"run_at": text}), "/run_at")
        for name in ("created_after", "created_before"):
            invalid(await client.get("/v1/jobs", params={name: str(text)}), name)
    assert await read(client, job["id"]) == job


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ("2027-01-01T12:00:00Z", "2027-01-01T12:00:00Z"),
        ("2027-01-01T12:00:00+05:30", "2027-01-01T06:30:00Z"),
        ("2027-01-01t12:00:00z", "2027-01-01T12:00:00Z"),
        ("2027-01-01T00:00:00.123456-00:30", "2027-01-01T00:30:00.123456Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("1969-12-31T23:59:59-01:00", "1970-01-01T00:59:59Z"),
    ],
)
async def test_times_are_answered_in_utc_with_z(client: httpx.AsyncClient, sent: str, answered: str) -> None:
    job = await submit(client, run_at=sent)
    assert job["run_at"] == answered
    assert (await read(client, job["id"]))["run_at"] == answered
    assert (await client.get("/v1/jobs")).json()["jobs"][0]["run_at"] == answered


async def test_list_takes_an_offset_with_its_plus_sign_as_it_is(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for plus in ("+", "%2B"):
        answer = await client.get(f"/v1/jobs?created_after=2020-01-01T00:00:00{plus}05:30")
        assert [each["id"] for each in answer.json()["jobs"]] == [job["id"]]
