"""How a body must come: its type, its encoding, its JSON, its members."""

import gzip

import httpx
import pytest

from tests.support.api import UNKNOWN_ID, invalid, post_text, read, refused, run_job, submit, tell

BODY = b'{"kind": "work"}'


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON; charset=utf-8",
        "application/json;charset=UTF-8",
        "application/json ; profile=x",
    ],
)
async def test_json_is_accepted_in_any_case_with_any_parameter(
    client: httpx.AsyncClient, content_type: str
) -> None:
    response = await client.post("/v1/jobs", content=BODY, headers={"Content-Type": content_type})
    assert response.status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "text/json"},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": "application/problem+json"},
        {"Content-Type": ""},
        {},
    ],
    ids=str,
)
async def test_other_or_no_content_type_is_415_that_names_it(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for path in ("/v1/jobs", "/v1/jobs/batch", "/v1/leases", f"/v1/jobs/{UNKNOWN_ID}/cancel"):
        response = await client.post(path, content=BODY, headers=headers)
        assert "Content-Type" in refused(response, 415, "unsupported_media_type")["detail"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity"])
async def test_content_encoding_is_415(client: httpx.AsyncClient, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    response = await client.post("/v1/jobs", content=gzip.compress(BODY), headers=headers)
    refused(response, 415, "unsupported_media_type")


async def test_identity_encoding_is_accepted(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "Identity"}
    assert (await client.post("/v1/jobs", content=BODY, headers=headers)).status_code == 201


async def test_no_body_at_all_counts_as_an_empty_object(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    response = await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (response.status_code, response.json()["state"]) == (200, "cancelled")
    assert (await client.post(f"/v1/jobs/{job['id']}/redrive")).json()["state"] == "ready"
    assert (await client.patch(f"/v1/jobs/{job['id']}")).status_code == 200
    invalid(await client.post(f"/v1/jobs/{job['id']}/verify"), "lease_version")


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"{'kind': 'work'}",
        b'{"kind": "work",}',
        b'{"kind": "work"} x',
        b'{"kind": "work"}{"kind": "work"}',
        b'{"kind": "work", "payload": 01}',
        b'{"kind": "work", "payload": .5}',
        b'{"kind": "work", "payload": 1.}',
        b'{"kind": "work", "payload": +1}',
        b'{"kind": "work", "payload": "\\x41"}',
        b'{"kind": "work", "payload": "a\nb"}',
        b'{"kind": "work", "payload": "a\x00b"}',
        b'{"kind": "work", "payload": nul}',
        b'{"kind": "work", "payload": {"a" 1}}',
        b'{"kind": "work", "payload": [1 2]}',
        b'{"kind": "work", "payload": // c\n1}',
        b'{"kind": 5, "payload": }',
        b'\xef\xbb\xbf{"kind": "work"}',
        b'{"kind": "work", "payload": "\xff"}',
        b'{"kind": "work", "payload": "\xc0\x80"}',
        b'{"kind": "work", "payload": "\xed\xa0\x80"}',
        b'{"kind": "caf\xe9"}',
        b" ",
        b"[" * 50_000,
        b'{"kind":' * 50_000,
    ],
    ids=lambda text: repr(text[:40]),
)
async def test_what_is_not_json_in_utf_8_is_400(client: httpx.AsyncClient, text: bytes) -> None:
    for path in ("/v1/jobs", "/v1/jobs/batch", f"/v1/jobs/{UNKNOWN_ID}/fail", "/v1/leases/fail"):
        refused(await post_text(client, path, text), 400, "malformed_json")
    assert (await client.get("/v1/jobs")).json()["jobs"] == []


@pytest.mark.parametrize("text", ["[]", "null", "1", '"text"', "true"])
async def test_a_body_that_is_no_object_is_422(client: httpx.AsyncClient, text: str) -> None:
    for path in (
        "/v1/jobs",
        "/v1/jobs/batch",
        "/v1/leases",
        f"/v1/jobs/{UNKNOWN_ID}/fail",
        "/v1/leases/fail",
    ):
        invalid(await post_text(client, path, text))


async def test_unknown_members_are_refused_by_name_on_every_level(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    version = leased["lease_version"]
    calls: list[tuple[str, dict[str, object], str]] = [
        ("/v1/jobs", {"kind": "w", "colour": 1}, "/colour"),
        ("/v1/jobs", {"kind": "w", "a/b~c": 1}, "/a~1b~0c"),
        ("/v1/jobs", {"kind": "w", "Kind": "w"}, "/Kind"),
        ("/v1/jobs", {"kind": "w", "idempotency_key": "k"}, "/idempotency_key"),
        ("/v1/jobs", {"kind": "w", "backoff": {"colour": 1}}, "/backoff/colour"),
        (
            "/v1/jobs",
            {"kind": "w", "parent": {"job_id": leased["id"], "lease_version": version, "colour": 1}},
            "/parent/colour",
        ),
        ("/v1/jobs/batch", {"jobs": [{"kind": "w"}, {"kind": "w", "colour": 1}]}, "/jobs/1/colour"),
        ("/v1/jobs/batch", {"jobs": [], "colour": 1}, "/colour"),
        ("/v1/leases", {"worker_id": "w", "queues": ["q"], "colour": 1}, "/colour"),
        (f"{path}/heartbeat", {"lease_version": version, "colour": 1}, "/colour"),
        (f"{path}/heartbeat", {"lease_version": version, "progress": {"seq": 1, "x": 1}}, "/progress/x"),
        (f"{path}/complete", {"lease_version": version, "colour": 1}, "/colour"),
        (
            f"{path}/complete",
            {"lease_version": version, "enqueue": [{"kind": "w", "colour": 1}]},
            "/enqueue/0/colour",
        ),
        (f"{path}/fail", {"lease_version": version, "error": {"message": "m"}, "colour": 1}, "/colour"),
        (f"{path}/fail", {"lease_version": version, "error": {"message": "m", "code": 1}}, "/error/code"),
        (f"{path}/release", {"lease_version": version, "colour": 1}, "/colour"),
        (f"{path}/verify", {"lease_version": version, "colour": 1}, "/colour"),
        (f"{path}/cancel", {"colour": 1}, "/colour"),
        (f"{path}/redrive", {"colour": 1}, "/colour"),
        (
            "/v1/leases/release",
            {"items": [{"job_id": leased["id"], "lease_version": version, "colour": 1}]},
            "/items/0/colour",
        ),
    ]
    before = await read(client, leased["id"])
    for address, body, pointer in calls:
        problem = invalid(await client.post(address, json=body))
        assert [error["pointer"] for error in problem["errors"]] == [pointer], address
    invalid(await client.patch(path, json={"queue": "other"}), "queue")
    assert await read(client, leased["id"]) == before


async def test_member_name_that_stands_twice_is_refused_outside_opaque_values(
    client: httpx.AsyncClient,
) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    texts = [
        ("/v1/jobs", '{"kind":"a","kind":"b"}', "kind"),
        ("/v1/jobs", '{"kind":"a","k\\u0069nd":"b"}', "kind"),
        ("/v1/jobs", '{"kind":"a","payload":1,"payload":2}', "payload"),
        ("/v1/jobs", '{"kind":"a","metadata":{"x":"1","x":"2"}}', "x"),
        ("/v1/jobs", '{"kind":"a","metadata":{"payload":"1","payload":"2"}}', "payload"),
        ("/v1/jobs", '{"kind":"a","backoff":{"factor":2,"factor":3}}', "factor"),
        ("/v1/jobs/batch", '{"jobs":[],"jobs":[{"kind":"a"}]}', "jobs"),
        ("/v1/jobs/batch", '{"jobs":[{"kind":"a"},{"kind":"a","kind":"b"}]}', "kind"),
        ("/v1/leases", '{"worker_id":"a","worker_id":"b","queues":["q"]}', "worker_id"),
        (f"{path}/complete", '{"lease_version":1,"lease_version":1}', "lease_version"),
        (f"{path}/complete", '{"lease_version":1,"enqueue":[{"kind":"a","kind":"b"}]}', "kind"),
        (f"{path}/heartbeat", '{"lease_version":1,"progress":{"seq":1,"seq":2}}', "seq"),
        (f"{path}/fail", '{"lease_version":1,"error":{"message":"a","message":"b"}}', "message"),
        ("/v1/leases/complete", '{"items":[],"items":[]}', "items"),
    ]
    for address, text, name in texts:
        invalid(await post_text(client, address, text), name)
    assert (await read(client, leased["id"]))["state"] == "running"


async def test_unknown_and_doubled_query_parameters_are_refused_by_name(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    for method, path, name in [
        ("GET", "/v1/jobs?colour=red", "colour"),
        ("GET", "/v1/jobs?limit=1&limit=2", "limit"),
        ("GET", "/v1/jobs?Limit=1", "Limit"),
        ("GET", f"/v1/jobs/{job['id']}?include=payload", "include"),
        ("GET", f"/v1/jobs/{job['id']}/attempts?state=running", "state"),
        ("GET", "/v1/leases?worker_id=a&queue=b", "queue"),
        ("POST", "/v1/jobs?dry_run=1", "dry_run"),
        ("POST", "/v1/leases?wait_seconds=1", "wait_seconds"),
        ("POST", f"/v1/jobs/{job['id']}/cancel?force=true", "force"),
        ("PATCH", f"/v1/jobs/{job['id']}?priority=1", "priority"),
    ]:
        content = b'{"kind":"w"}' if path.startswith("/v1/jobs?dry") else b""
        response = await client.request(
            method, path, content=content, headers={"Content-Type": "application/json"}
        )
        invalid(response, name)
    assert (await read(client, job["id"])) == job


async def test_query_that_is_not_utf_8_is_422(client: httpx.AsyncClient) -> None:
    invalid(await client.get("/v1/jobs?queue=%ff"))
    invalid(await client.get("/v1/jobs?%ff=1"))


async def test_routes_and_methods_that_do_not_exist_are_404_and_405(client: httpx.AsyncClient) -> None:
    for path in (
        "/",
        "/v1",
        "/v2/jobs",
        "/v1/jobs/",
        "/v1/job",
        f"/v1/jobs/{UNKNOWN_ID}/explode",
        "/v1//jobs",
    ):
        refused(await client.get(path), 404, "not_found")
    for method, path, allowed in [
        ("PUT", "/v1/jobs", {"GET", "POST"}),
        ("DELETE", f"/v1/jobs/{UNKNOWN_ID}", {"GET", "PATCH"}),
        ("GET", f"/v1/jobs/{UNKNOWN_ID}/cancel", {"POST"}),
        ("DELETE", "/v1/leases", {"GET", "POST"}),
        ("POST", "/livez", {"GET"}),
    ]:
        response = await client.request(method, path)
        refused(response, 405, "method_not_allowed")
        named = {name.strip() for name in response.headers["allow"].split(",")}
        assert named - {"HEAD"} == allowed


@pytest.mark.parametrize(
    "job_id",
    [
        UNKNOWN_ID,
        UNKNOWN_ID.upper(),
        UNKNOWN_ID.replace("-", ""),
        "{" + UNKNOWN_ID + "}",
        "urn:uuid:" + UNKNOWN_ID,
        "1",
        "batch",
        "..%2Flivez",
        "%00",
        "%F0%9F%98%80",
        UNKNOWN_ID + "%0A",
        "a" * 5000,
    ],
    ids=lambda job_id: job_id[:40],
)
async def test_any_other_spelling_of_an_id_is_404_on_every_route(
    client: httpx.AsyncClient, job_id: str
) -> None:
    token = {"lease_version": 1}
    calls = [
        ("GET", "", None),
        ("GET", "/attempts", None),
        ("PATCH", "", {}),
        ("POST", "/cancel", {}),
        ("POST", "/redrive", {}),
        ("POST", "/heartbeat", token),
        ("POST", "/complete", token),
        ("POST", "/fail", token | {"error": {"message": "m"}}),
        ("POST", "/release", token),
        ("POST", "/verify", token),
    ]
    for method, suffix, body in calls:
        if job_id == "batch" and suffix == "":
            continue
        response = await client.request(method, f"/v1/jobs/{job_id}{suffix}", json=body)
        code = "not_found" if "%2F" in job_id else "job_not_found"
        refused(response, 404, code)


async def test_upper_case_spelling_of_a_known_id_is_404(client: httpx.AsyncClient) -> None:
    leased = await run_job(client)
    shouted = leased | {"id": leased["id"].upper()}
    assert shouted["id"] != leased["id"]
    refused(await client.get(f"/v1/jobs/{shouted['id']}"), 404, "job_not_found")
    refused(await tell(client, "complete", shouted), 404, "job_not_found")


async def test_request_id_of_the_caller_is_echoed_when_it_is_well_formed(client: httpx.AsyncClient) -> None:
    for given in ("a", "A-z.0_9:x", "x" * 128):
        response = await client.get("/livez", headers={"X-Request-Id": given})
        assert response.headers["x-request-id"] == given
    problem = refused(await client.get("/nowhere", headers={"x-request-id": "mine"}), 404, "not_found")
    assert problem["request_id"] == "mine"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a,b", "é", "a/b", "<script>"])
async def test_request_id_that_is_malformed_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    headers = [(b"x-request-id", given.encode())]
    response = await client.get("/v1/jobs", headers=headers)
    assert response.headers["x-request-id"] != given
    assert len(response.headers["x-request-id"]) >= 16


async def test_every_answer_carries_a_request_id_of_its_own(client: httpx.AsyncClient) -> None:
    job = await submit(client)
    paths = ["/livez", "/readyz", "/openapi.json", "/docs", "/v1/jobs", f"/v1/jobs/{job['id']}", "/nowhere"]
    given = [(await client.get(path)).headers["x-request-id"] for path in paths]
    assert len(set(given)) == len(paths)
