"""The client of the suite: written down before it is sent, repeated elsewhere until it is answered."""

import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.chaos.caller import Answer, Caller
from tests.chaos.history import Answered, Asked, Event, Log, Unanswered, read

Serve = Callable[[httpx.Request], httpx.Response]


async def call(path: Path, serve: Serve, *, is_repeated: bool = True) -> Answer | None:
    """Make one call with a key against two replicas; the history is in path."""
    log = Log(path)
    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http:
        caller = Caller(
            "p0",
            http=http,
            replicas={"r0": "http://r0", "r1": "http://r1"},
            log=log,
            chance=random.Random(1),
            timeout_seconds=1,
        )
        make = caller.call if is_repeated else caller.once
        answer = await make("/v1/jobs", {"kind": "k"}, key="a-key")
    log.close()
    return answer


def asked(events: list[Event]) -> list[Asked]:
    return [event for event in events if isinstance(event, Asked)]


async def test_a_request_is_in_the_history_before_it_is_sent(tmp_path: Path) -> None:
    seen: list[list[Event]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append(read(tmp_path / "part"))
        return httpx.Response(201, json={"id": "j"}, headers={"Idempotent-Replayed": "true"})

    answer = await call(tmp_path / "part", serve)
    assert answer == Answer(201, {"id": "j"}, is_replay=True)
    (events,) = seen
    (request,) = asked(events)
    assert (request.path, request.body, request.key) == ("/v1/jobs", {"kind": "k"}, "a-key")
    told = read(tmp_path / "part")[-1]
    assert isinstance(told, Answered)
    assert (told.call, told.status, told.body, told.is_replay) == (request.call, 201, {"id": "j"}, True)


@pytest.mark.parametrize("trouble", ["no answer", "503", "bare 500"])
async def test_what_was_not_answered_is_repeated_at_the_other_replica_with_the_same_key(
    tmp_path: Path, trouble: str
) -> None:
    requests: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if len(requests) > 1:
            return httpx.Response(201, json={"id": "j"})
        if trouble == "no answer":
            raise httpx.ReadTimeout("nothing came")
        if trouble == "503":
            return httpx.Response(503, json={"code": "unavailable"}, headers={"Retry-After": "1"})
        return httpx.Response(500, text="Internal Server Error")

    answer = await call(tmp_path / "part", serve)
    assert answer is not None
    assert answer.status == 201
    first, second = requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == "a-key"
    assert first.content == second.content
    assert {first.url.host, second.url.host} == {"r0", "r1"}
    events = read(tmp_path / "part")
    assert [call.replica for call in asked(events)] == [first.url.host, second.url.host]
    assert len({call.call for call in asked(events)}) == 2
    doubtful = events[1]
    if trouble == "no answer":
        assert isinstance(doubtful, Unanswered)
        assert doubtful.reason == "ReadTimeout"
    else:
        assert isinstance(doubtful, Answered)
        assert doubtful.retry_after == ("1" if trouble == "503" else None)


async def test_a_refusal_is_an_answer_and_is_not_repeated(tmp_path: Path) -> None:
    answer = await call(tmp_path / "part", lambda _: httpx.Response(409, json={"code": "lease_lost"}))
    assert answer == Answer(409, {"code": "lease_lost"}, is_replay=False)
    assert len(asked(read(tmp_path / "part"))) == 1


async def test_a_call_without_a_key_of_its_own_can_be_left_in_doubt(tmp_path: Path) -> None:
    answer = await call(
        tmp_path / "part", lambda _: httpx.Response(503, json={"code": "unavailable"}), is_repeated=False
    )
    assert answer is None
    assert len(asked(read(tmp_path / "part"))) == 1
