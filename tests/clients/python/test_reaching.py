"""How the client gets to the service: addresses, keys, proxies, connections, forks."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, cast

import pytest
from fencepost import AsyncClient, Client, Job, NewJob, Unavailable, Worker

from tests.clients.python.running import running
from tests.docs.documents import ROOT
from tests.support.server import free_port

SOURCE = str(ROOT / "clients" / "python" / "src")


@pytest.mark.parametrize("make", [Client, AsyncClient, lambda url, **key: Worker(url, queues=["a"], **key)])
@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000", "ftp://localhost", "http://", ""])
def test_what_is_no_address_is_refused_and_not_asked_for_ever(make: Any, url: str) -> None:
    with pytest.raises(ValueError, match="the service's address is"):
        make(url)


@pytest.mark.parametrize("make", [Client, AsyncClient, lambda url, **key: Worker(url, queues=["a"], **key)])
@pytest.mark.parametrize("key", ["from-a-file\n", "two words", "schlüssel", ""])
def test_what_is_no_key_is_refused_and_not_shown(make: Any, key: str) -> None:
    with pytest.raises(ValueError, match="the API key") as refusal:
        make("http://127.0.0.1:8000", api_key=key)
    assert not key or key not in str(refusal.value)


def test_an_address_with_a_user_is_refused_with_a_key() -> None:
    with pytest.raises(ValueError, match="instead of the API key"):
        Client("http://ada:secret@127.0.0.1:8000", api_key="key")


def test_a_service_on_this_machine_is_reached_beside_a_proxy(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    # httpx has no SOCKS by itself, and says so when a client is made.
    monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{free_port()}")
    with Client(url, retry_seconds=0) as client:
        made = client.submit("echo", 1, queue=queue)
        worker = Worker(url, queues=[queue])
        worker.handler("echo")(echo)
        with running(worker):
            assert client.wait(made.id, 60)["result"] == 1


async def test_more_than_a_hundred_calls_wait_beside_each_other(url: str, queue: str) -> None:
    async with AsyncClient(url) as client:
        made = await client.submit_many([NewJob("never", queue=queue) for _ in range(110)])
        waiting = [asyncio.create_task(client.get(each.id, wait_seconds=30)) for each in made]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(25):
                await client.submit("another", queue=queue)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel", "x" * 256])
def test_an_idempotency_key_that_cannot_be_sent_is_an_error(producer: Client, queue: str, key: str) -> None:
    with pytest.raises(ValueError, match="is not 1 to 255 printable ASCII characters"):
        producer.submit("mail", queue=queue, idempotency_key=key)


def test_a_child_whose_name_cannot_be_sent_is_an_error_for_its_parent(
    url: str, producer: Client, queue: str
) -> None:
    worker = Worker(url, queues=[queue])

    @worker.handler("parent")
    def parent(job: Job) -> None:
        job.submit("two\nlines", "child")

    made = producer.submit("parent", queue=queue, max_attempts=1)
    with running(worker):
        error = producer.wait(made.id, 60)["error"] or {}
    assert error["type"] == "ValueError"


def test_a_batch_has_a_key_for_a_job_whose_key_is_none(producer: Client, queue: str) -> None:
    job = NewJob("mail", queue=queue, idempotency_key=cast("str", None))
    [made] = producer.submit_many([job])
    assert made.job["idempotency_key"] is not None


def test_waiting_for_a_job_takes_no_longer_without_a_service() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retry_seconds=3600) as client, pytest.raises(Unavailable):
        client.wait("018f0000-0000-7000-8000-000000000000", 0.5)


def test_a_handler_that_is_registered_without_brackets_is_an_error() -> None:
    with pytest.raises(TypeError, match="brackets"):
        Worker(queues=["mail"]).handler(cast("str", echo))


def test_a_worker_has_another_name_after_a_fork() -> None:
    program = """
import os
from fencepost import Worker
worker, named = Worker(queues=["a"]), Worker(queues=["a"], worker_id="a-1")
print(worker.worker_id, worker.worker_id, named.worker_id, flush=True)
if os.fork() == 0:
    print(worker.worker_id, worker.worker_id, named.worker_id, flush=True)
else:
    os.wait()
"""
    told = subprocess.check_output([sys.executable, "-c", program], env={"PYTHONPATH": SOURCE}, timeout=60)
    (own, again, named), (forked, forked_again, forked_named) = (
        line.split() for line in told.decode().splitlines()
    )
    assert (own, forked, forked_named) == (again, forked_again, named)
    assert own != forked


class Ports(BaseHTTPRequestHandler):
    """A service that notes which connection each call came over."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.client_address[1])
        self.send_response(201)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b'{"id":"a"}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def ports() -> Iterator[ThreadingHTTPServer]:
    Ports.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Ports) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_processes_of_a_fork_share_no_connection(ports: ThreadingHTTPServer) -> None:
    program = f"""
import os
from fencepost import Client
with Client("http://127.0.0.1:{ports.server_port}") as client:
    client.submit("mail")
    client.submit("mail")
    if os.fork() == 0:
        client.submit("mail")
        os._exit(0)
    os.wait()
    client.submit("mail")
"""
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": SOURCE}, timeout=60, check=True)
    first, second, forked, last = Ports.seen
    assert (first, last) == (second, first)
    assert forked != first


def echo(job: Job) -> object:
    return job.payload
