"""The fence in the handler's own transaction, on the service's PostgreSQL."""

from collections.abc import Callable

import psycopg
import pytest
from fencepost import AsyncJob, Client, Job, LeaseLost, Worker

from tests.clients.python.running import running
from tests.support.server import ServerProcess


@pytest.fixture
def ledger(database_url: str) -> str:
    """The service's database, with a table of the application in it."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ledger (job_id uuid, lease_version bigint)")
    return database_url


def entries(database_url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute("SELECT CAST(job_id AS text), lease_version FROM ledger").fetchall()


WRITE = "INSERT INTO ledger VALUES (%s, %s)"


def test_a_thread_completes_its_job_in_its_own_transaction(
    serve: Callable[..., ServerProcess], ledger: str
) -> None:
    worker = Worker(serve().url, queues=["default"])

    @worker.handler("charge")
    def charge(job: Job) -> object:
        with psycopg.connect(ledger) as connection:
            job.hold_lease(connection)
            connection.execute(WRITE, (job.id, job.lease_version))
            return job.complete(connection.cursor(), {"charged": 10})

    with Client(str(worker._service["base_url"])) as producer, running(worker):
        made = producer.submit("charge")
        assert producer.wait(made.id, 60)["result"] == {"charged": 10}
    assert entries(ledger) == [(made.id, 1)]


def test_a_coroutine_completes_its_job_in_its_own_transaction(
    serve: Callable[..., ServerProcess], ledger: str
) -> None:
    worker = Worker(serve().url, queues=["default"])

    @worker.handler("charge")
    async def charge(job: AsyncJob) -> object:
        async with await psycopg.AsyncConnection.connect(ledger) as connection:
            await job.hold_lease(connection)
            await connection.execute(WRITE, (job.id, job.lease_version))
            return await job.complete(connection, None)

    with Client(str(worker._service["base_url"])) as producer, running(worker):
        made = producer.submit("charge")
        assert producer.wait(made.id, 60)["state"] == "succeeded"
    assert entries(ledger) == [(made.id, 1)]


def test_a_lease_that_is_over_writes_nothing(serve: Callable[..., ServerProcess], ledger: str) -> None:
    worker = Worker(serve().url, queues=["default"])
    lost: list[LeaseLost] = []

    @worker.handler("charge")
    def charge(job: Job) -> None:
        producer.cancel(job.id, force=True)
        try:
            with psycopg.connect(ledger) as connection:
                connection.execute(WRITE, (job.id, job.lease_version))
                job.hold_lease(connection)
        except LeaseLost as error:
            lost.append(error)
            raise

    with Client(str(worker._service["base_url"])) as producer, running(worker):
        made = producer.submit("charge")
        assert producer.wait(made.id, 60)["state"] == "cancelled"
    assert entries(ledger) == []
    assert (lost[0].presented_version, lost[0].reason, lost[0].job_state) == (1, "cancelled", "cancelled")


def test_another_error_of_the_database_stays_what_it_is(
    serve: Callable[..., ServerProcess], ledger: str
) -> None:
    worker = Worker(serve().url, queues=["default"])

    @worker.handler("charge")
    def charge(job: Job) -> None:
        with psycopg.connect(ledger) as connection:
            connection.execute("SET transaction_read_only = on")
            job.hold_lease(connection)

    with Client(str(worker._service["base_url"])) as producer, running(worker):
        made = producer.submit("charge", max_attempts=1)
        assert (producer.wait(made.id, 60)["error"] or {})["type"] == "ReadOnlySqlTransaction"
