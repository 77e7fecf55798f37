import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest
from fencepost import AsyncClient, Client, IdempotencyKeyReused, JobNotFound, NewJob, Problem, Unavailable

from tests.support.server import ServerProcess, free_port

_NOBODY = "018f0000-0000-7000-8000-000000000000"


def test_a_job_is_made_with_all_that_is_said_of_it(producer: Client, queue: str) -> None:
    run_at = datetime(2999, 1, 2, tzinfo=UTC)
    made = producer.submit(
        "mail",
        {"to": "a"},
        queue=queue,
        priority=-3,
        run_at=run_at,
        max_attempts=2,
        backoff={"type": "fixed"},
        max_runtime_seconds=60,
        progress_timeout_seconds=30,
        metadata={"team": "a"},
    )
    job = producer.get(made.id)
    assert made.created
    assert (job["payload"], job["queue"], job["priority"], job["state"]) == (
        {"to": "a"},
        queue,
        -3,
        "scheduled",
    )
    assert (job["max_attempts"], job["max_runtime_seconds"], job["progress_timeout_seconds"]) == (2, 60, 30)
    assert (job["backoff"]["type"], job["metadata"], job["run_at"][:10]) == (
        "fixed",
        {"team": "a"},
        "2999-01-02",
    )


def test_the_same_key_gives_the_same_job(producer: Client, queue: str) -> None:
    first = producer.submit("mail", 1, queue=queue, idempotency_key='an "odd" \\ key')
    again = producer.submit("mail", 1, queue=queue, idempotency_key='an "odd" \\ key')
    assert (first.created, again.created, again.id) == (True, False, first.id)


def test_a_key_of_another_request_is_refused_with_its_job(producer: Client, queue: str) -> None:
    first = producer.submit("mail", 1, queue=queue, idempotency_key=queue)
    with pytest.raises(IdempotencyKeyReused) as refusal:
        producer.submit("mail", 2, queue=queue, idempotency_key=queue)
    assert (refusal.value.status, refusal.value.job_id) == (422, first.id)


def test_jobs_without_a_key_are_different_jobs(producer: Client, queue: str) -> None:
    assert producer.submit("mail", 1, queue=queue).id != producer.submit("mail", 1, queue=queue).id


def test_a_batch_is_answered_in_order(producer: Client, queue: str) -> None:
    known = producer.submit("mail", 0, queue=queue, idempotency_key=queue)
    made = producer.submit_many([NewJob("mail", number, queue=queue) for number in range(3)])
    again = producer.submit_many([NewJob("mail", 0, queue=queue, idempotency_key=queue)])
    assert [each.job["payload"] for each in made] == [0, 1, 2]
    assert all(each.created for each in made)
    assert (again[0].created, again[0].id) == (False, known.id)


def test_a_malformed_job_is_refused_with_a_pointer(producer: Client, queue: str) -> None:
    with pytest.raises(Problem) as refusal:
        producer.submit("mail", queue=queue, max_attempts=0)
    assert (refusal.value.code, refusal.value.errors[0]["pointer"]) == ("invalid_request", "/max_attempts")
    assert refusal.value.request_id


def test_a_number_keeps_its_digits(producer: Client, queue: str) -> None:
    made = producer.submit("mail", 9007199254740993, queue=queue)
    assert producer.get(made.id)["payload"] == 9007199254740993


@pytest.mark.parametrize("verb", ["get", "cancel", "redrive"])
def test_a_job_that_does_not_exist_is_not_found(producer: Client, verb: str) -> None:
    with pytest.raises(JobNotFound):
        getattr(producer, verb)(_NOBODY)


def test_a_cancelled_job_can_be_redriven(producer: Client, queue: str) -> None:
    made = producer.submit("mail", queue=queue)
    assert producer.cancel(made.id, reason="a test")["state"] == "cancelled"
    assert producer.wait(made.id, 5)["state"] == "cancelled"
    assert producer.redrive(made.id, run_at=datetime(2999, 1, 1, tzinfo=UTC))["state"] == "scheduled"


def test_waiting_ends_with_its_time(producer: Client, queue: str) -> None:
    made = producer.submit("mail", queue=queue)
    with pytest.raises(TimeoutError):
        producer.wait(made.id, 0.1)


def test_a_time_without_a_zone_is_refused_here() -> None:
    with pytest.raises(ValueError, match="time zone"):
        NewJob("mail", run_at=datetime(2999, 1, 1)).body()  # noqa: DTZ001 - that is the point


async def test_coroutines_have_the_same_verbs(url: str, queue: str) -> None:
    async with AsyncClient(url) as client:
        made = await client.submit("mail", 1, queue=queue)
        [other] = await client.submit_many([NewJob("mail", 2, queue=queue)])
        assert (await client.cancel(made.id))["state"] == "cancelled"
        assert (await client.wait(made.id))["state"] == "cancelled"
        assert (await client.redrive(made.id))["state"] == "ready"
        assert (await client.get(other.id))["payload"] == 2


def test_without_a_service_it_gives_up_after_its_time() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", retry_seconds=0.5)
    with client, pytest.raises(Unavailable) as failure:
        client.submit("mail")
    assert isinstance(failure.value.__cause__, httpx.ConnectError)


async def test_a_service_that_comes_back_is_found(serve: Callable[..., ServerProcess]) -> None:
    port = free_port()
    async with AsyncClient(f"http://127.0.0.1:{port}", retry_seconds=600) as client:
        submitting = asyncio.create_task(client.submit("mail", 7))
        await asyncio.to_thread(serve, port=port)
        made = await submitting
        assert (made.created, made.job["payload"]) == (True, 7)


def test_threads_may_share_a_client(producer: Client, queue: str) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(producer.submit("mail", queue=queue).id)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8
