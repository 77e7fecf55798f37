"""Who a caller is: API keys, the idempotency keys that belong to a name, and the change of a secret."""

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
from asgi_lifespan import LifespanManager

from app.api.callers import Keyring
from app.domain.caller import Caller, Scope
from app.main import create_app
from app.settings import ApiKey, Settings
from tests.support.api import invalid, refused
from tests.support.keys import API_KEYS, SECRET_OF_ALL, SECRETS, bearer, without_request_id

PRODUCE = frozenset({Scope.PRODUCE})
Open = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]

with_keys = pytest.mark.parametrize("settings", [Settings(api_keys=API_KEYS)], ids=["with_keys"])


@pytest.fixture(name="with_own_keys")
def _with_own_keys(database_url: str) -> Open:
    """Open the service with other keys, on the same database: ``async with with_own_keys(key, …)``."""

    @asynccontextmanager
    async def start(*keys: ApiKey) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(api_keys=keys), database_url=database_url)
        async with LifespanManager(app) as manager:
            transport = httpx.ASGITransport(app=manager.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                yield client

    return start


async def submit(client: httpx.AsyncClient, secret: str | None, **members: object) -> httpx.Response:
    headers = {"Idempotency-Key": "welcome-17"} | (bearer(secret) if secret else {})
    return await client.post("/v1/jobs", json={"kind": "work"} | members, headers=headers)


def replayed(answer: httpx.Response, job_id: str) -> None:
    assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (200, "true"), answer.text
    assert answer.json()["id"] == job_id


CREDENTIALS = [
    None,
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer wrong",
    b"Bearer " + SECRET_OF_ALL[:-1].encode(),
    b"Bearer " + SECRET_OF_ALL.encode() + b"x",
    b"Bearer " + SECRET_OF_ALL.upper().encode(),
    b"Bearer" + SECRET_OF_ALL.encode(),
    b"Bearer\t" + SECRET_OF_ALL.encode(),
    b"Bearer caf\xe9",
    "Bearer café".encode(),
    b"Bearer " + b"k" * 60_000,
    b"Bearer " + SECRET_OF_ALL.encode() + b", Bearer " + SECRET_OF_ALL.encode(),
    b"Basic " + SECRET_OF_ALL.encode(),
    SECRET_OF_ALL.encode(),
    b"\xff\xfe",
]


@with_keys
async def test_whatever_is_wrong_with_the_credentials_the_answer_is_the_same(
    client: httpx.AsyncClient,
) -> None:
    shown = [[] if each is None else [(b"Authorization", each)] for each in CREDENTIALS]
    right = (b"authorization", b"Bearer " + SECRET_OF_ALL.encode())
    shown += [[right, right], [right, (b"authorization", b"")], [(b"authorization", b"Bearer wrong"), right]]
    answers = [await client.get("/v1/jobs", headers=headers) for headers in shown]
    for answer in answers:
        refused(answer, 401, "unauthorized")
        assert without_request_id(answer) == without_request_id(answers[0])
    headers = [{**answer.headers, "x-request-id": "", "content-length": ""} for answer in answers]
    assert all(each == headers[0] for each in headers)


@with_keys
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR "])
async def test_scheme_is_read_in_any_case(client: httpx.AsyncClient, scheme: str) -> None:
    answer = await client.get("/v1/jobs", headers={"Authorization": f"{scheme} {SECRET_OF_ALL}"})
    assert answer.status_code == 200


async def test_without_configured_keys_nothing_is_looked_at(client: httpx.AsyncClient) -> None:
    for value in CREDENTIALS:
        headers = [] if value is None else [(b"authorization", value)]
        assert (await client.get("/v1/jobs", headers=headers)).status_code == 200


def test_every_key_is_compared_whichever_of_them_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    callers = [Caller(name, PRODUCE) for name in ("first", "second", "third")]
    keyring = Keyring((f"secret-of-{caller.name}", caller) for caller in callers)

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = [
        keyring.caller_of(f"Bearer secret-of-{name}".encode())
        for name in ("first", "second", "third", "nobody")
    ]
    assert found == [*callers, None]
    assert len(compared) == 4 * 3
    assert {len(one) for pair in compared for one in pair} == {32}


def test_keyring_keeps_no_secret() -> None:
    keyring = Keyring([("secret-of-all", Caller("all", PRODUCE))])
    assert "secret-of-all" not in f"{keyring!r} {vars(keyring)!r}"


@with_keys
async def test_idempotency_key_belongs_to_the_name_that_used_it(client: httpx.AsyncClient) -> None:
    first = await submit(client, SECRET_OF_ALL)
    other = await submit(client, SECRETS[Scope.PRODUCE], kind="other")
    assert (first.status_code, other.status_code) == (201, 201)
    replayed(await submit(client, SECRET_OF_ALL), first.json()["id"])
    replayed(await submit(client, SECRETS[Scope.PRODUCE], kind="other"), other.json()["id"])
    problem = refused(await submit(client, SECRET_OF_ALL, kind="other"), 422, "idempotency_key_reused")
    assert problem["job_id"] == first.json()["id"]


@with_keys
async def test_keys_of_a_batch_belong_to_the_same_name(client: httpx.AsyncClient) -> None:
    job = (await submit(client, SECRET_OF_ALL)).json()
    body = {"jobs": [{"kind": "work", "idempotency_key": "welcome-17"}]}
    for secret, created in ((SECRET_OF_ALL, False), (SECRETS[Scope.PRODUCE], True)):
        answer = await client.post("/v1/jobs/batch", json=body, headers=bearer(secret))
        (entry,) = answer.json()["jobs"]
        assert entry["created"] is created
        assert (entry["job"]["id"] == job["id"]) is not created


@with_keys
async def test_refused_call_never_uses_an_idempotency_key_up(client: httpx.AsyncClient) -> None:
    """BO-15."""
    invalid(await submit(client, SECRET_OF_ALL, priority=99_999), "priority")
    refused(await submit(client, SECRET_OF_ALL, payload="x" * 300_000), 413, "too_large")
    refused(await submit(client, "wrong"), 401, "unauthorized")
    refused(await submit(client, None), 401, "unauthorized")
    refused(await submit(client, SECRETS[Scope.WORK]), 403, "forbidden")
    created = await submit(client, SECRET_OF_ALL)
    assert created.status_code == 201
    replayed(await submit(client, SECRET_OF_ALL), created.json()["id"])
    assert len((await client.get("/v1/jobs", headers=bearer(SECRET_OF_ALL))).json()["jobs"]) == 1


async def test_secret_is_changed_without_losing_what_its_name_owns(with_own_keys: Open) -> None:
    old, new = (ApiKey(name="mailer", scopes=PRODUCE, secret=secret) for secret in ("old", "new"))
    async with with_own_keys(old) as client:
        job_id = (await submit(client, "old")).json()["id"]
        refused(await submit(client, "new"), 401, "unauthorized")
    async with with_own_keys(old, new) as client:
        replayed(await submit(client, "new"), job_id)
        replayed(await submit(client, "old"), job_id)
    async with with_own_keys(new) as client:
        replayed(await submit(client, "new"), job_id)
        refused(await submit(client, "old"), 401, "unauthorized")


async def test_keys_of_one_name_have_each_their_own_scopes(with_own_keys: Open) -> None:
    both = ApiKey(name="one", scopes=frozenset({Scope.WORK}), secret="works")
    async with with_own_keys(both, ApiKey(name="one", scopes=PRODUCE, secret="produces")) as client:
        assert (await submit(client, "produces")).status_code == 201
        refused(await submit(client, "works"), 403, "forbidden")


async def test_key_named_anonymous_takes_over_what_was_used_before_there_were_keys(
    client: httpx.AsyncClient, with_own_keys: Open
) -> None:
    job_id = (await submit(client, None)).json()["id"]
    async with with_own_keys(ApiKey(name="anonymous", scopes=PRODUCE, secret="s")) as closed:
        replayed(await submit(closed, "s"), job_id)


@with_keys
async def test_worker_needs_no_other_scope_to_enqueue_what_follows(client: httpx.AsyncClient) -> None:
    await submit(client, SECRETS[Scope.PRODUCE])
    worker = bearer(SECRETS[Scope.WORK])
    body = {"worker_id": "w1", "queues": ["default"]}
    (leased,) = (await client.post("/v1/leases", json=body, headers=worker)).json()["jobs"]
    answer = await client.post(
        f"/v1/jobs/{leased['id']}/complete",
        json={"lease_version": leased["lease_version"], "enqueue": [{"kind": "next"}]},
        headers=worker,
    )
    assert answer.json()["state"] == "succeeded"
    listed = (await client.get("/v1/jobs?kind=next", headers=bearer(SECRETS[Scope.OPERATE]))).json()["jobs"]
    assert [job["parent"]["job_id"] for job in listed] == [leased["id"]]
