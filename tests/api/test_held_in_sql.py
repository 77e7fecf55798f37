"""Calls that meet a lease which an application holds in SQL: answered in time, and done afterwards."""

import httpx
import pytest

from app.domain.job import Token
from app.operations import patience
from tests.support.api import Json, lease, lost, read, refused, run_job, submit
from tests.support.application import Application, complete_in_sql, enqueue, hold

# What each would do to the job; held only means that heartbeats pass.
HOLDER_CALLS: dict[str, Json] = {
    "complete": {"result": "by http"},
    "fail": {"error": {"message": "no"}, "retryable": False},
    "release": {},
}


def token_of(leased: Json) -> Token:
    return Token(leased["id"], leased["lease_version"])


@pytest.fixture
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up after a moment instead of seconds."""
    monkeypatch.setattr(patience, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(patience, "SHORT_SECONDS", 0.02)


@pytest.mark.usefixtures("_brief")
@pytest.mark.parametrize("verb", HOLDER_CALLS)
async def test_an_ending_of_a_lease_that_is_held_is_503_and_accepted_afterwards(
    client: httpx.AsyncClient, application: Application, verb: str
) -> None:
    leased = await run_job(client)
    version = {"lease_version": leased["lease_version"]}
    item: Json = {"job_id": leased["id"]} | version | HOLDER_CALLS[verb]
    async with application.connect() as app, app.transaction():
        await hold(app, token_of(leased))
        for path, body in (
            (f"/v1/jobs/{leased['id']}/{verb}", version | HOLDER_CALLS[verb]),
            (f"/v1/leases/{verb}", {"items": [item]}),
        ):
            response = await client.post(path, json=body)
            refused(response, 503, "unavailable")
            assert int(response.headers["Retry-After"]) >= 1
        assert (await read(client, leased["id"]))["state"] == "running"
    answer = (await client.post(f"/v1/leases/{verb}", json={"items": [item]})).json()
    assert answer["results"][0]["status"] == "ok"


@pytest.mark.usefixtures("_brief")
async def test_a_forced_cancel_is_503_and_a_request_to_cancel_passes(
    client: httpx.AsyncClient, application: Application
) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}/cancel"
    async with application.connect() as app, app.transaction():
        await hold(app, token_of(leased))
        refused(await client.post(path, json={"force": True}), 503, "unavailable")
        assert (await client.post(path)).status_code == 202
        assert (await hold(app, token_of(leased))).cancel_requested
    assert (await client.post(path, json={"force": True})).json()["state"] == "cancelled"


@pytest.mark.usefixtures("_brief")
async def test_an_edit_and_a_redrive_are_refused_as_for_any_job_that_runs(
    client: httpx.AsyncClient, application: Application
) -> None:
    leased = await run_job(client)
    path = f"/v1/jobs/{leased['id']}"
    async with application.connect() as app, app.transaction():
        await hold(app, token_of(leased))
        refused(await client.patch(path, json={"priority": 1}), 409, "not_editable")
        refused(await client.post(f"{path}/redrive"), 409, "not_redrivable")
        await complete_in_sql(app, token_of(leased))
        refused(await client.patch(path, json={"priority": 1}), 503, "unavailable")
        refused(await client.post(f"{path}/redrive"), 503, "unavailable")
    refused(await client.patch(path, json={"priority": 1}), 409, "not_editable")


@pytest.mark.usefixtures("_brief")
async def test_a_heartbeat_is_answered_while_the_job_is_being_completed(
    client: httpx.AsyncClient, application: Application
) -> None:
    leased = await run_job(client)
    path, version = f"/v1/jobs/{leased['id']}/heartbeat", {"lease_version": leased["lease_version"]}
    many = {"items": [{"job_id": leased["id"]} | version]}
    async with application.connect() as app, app.transaction():
        await complete_in_sql(app, token_of(leased))
        answer = await client.post(path, json=version)
        assert (answer.status_code, answer.json()["lease_expires_at"]) == (200, leased["lease_expires_at"])
        [result] = (await client.post("/v1/leases/heartbeat", json=many)).json()["results"]
        assert (result["status"], result["lease_expires_at"]) == ("ok", leased["lease_expires_at"])
        # What it has to store cannot be stored.
        refused(await client.post(path, json=version | {"checkpoint": 7}), 503, "unavailable")
    lost(await client.post(path, json=version), "finished")


async def test_a_call_that_meets_the_holder_is_done_when_that_commits(
    client: httpx.AsyncClient, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    leased = await run_job(client)
    async with application.connect() as app:
        await app.execute("BEGIN")
        await hold(app, token_of(leased))
        pause = patience._Patience.pause

        async def commit_first(waiting: patience._Patience) -> None:
            await app.execute("COMMIT")
            await pause(waiting)

        monkeypatch.setattr(patience._Patience, "pause", commit_first)
        answer = await client.post(
            f"/v1/jobs/{leased['id']}/complete", json={"lease_version": leased["lease_version"], "result": 1}
        )
    assert answer.status_code == 200
    assert "Idempotent-Replayed" not in answer.headers
    assert answer.json()["result"] == 1


async def test_a_job_from_sql_is_like_any_other_over_http(
    client: httpx.AsyncClient, application: Application
) -> None:
    async with application.connect() as app:
        made = await enqueue(
            app, "email.send", payload='{"to": 1.0}', metadata={"a": "b"}, backoff={"factor": 3}
        )
        known = await read(client, made.job_id)
        over_http = await submit(
            client, kind="email.send", payload={"to": 1.0}, metadata={"a": "b"}, backoff={"factor": 3}
        )
        varying = ("id", "created_at", "run_at")
        assert {name: known[name] for name in known if name not in varying} == {
            name: over_http[name] for name in over_http if name not in varying
        }
        [first, _] = await lease(client, max_jobs=2)
        assert (first["id"], first["metadata"]) == (made.job_id, {"a": "b"})
        await complete_in_sql(app, token_of(first), '{"sent": 1.0}')
    repeat = await client.post(
        f"/v1/jobs/{first['id']}/complete", json={"lease_version": 1, "result": {"sent": 1.0}}
    )
    assert (repeat.status_code, repeat.headers["Idempotent-Replayed"]) == (200, "true")
    other = await client.post(f"/v1/jobs/{first['id']}/complete", json={"lease_version": 1})
    lost(other, "finished")
