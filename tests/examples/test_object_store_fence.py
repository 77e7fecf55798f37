"""The pointer in an object store: stale and current versions in turn, and in races, on moto's S3 server."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from examples.fences.object_store import LeaseLost, publish

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

BUCKET = "reports"
POINTER = "reports/latest.json"

Open = Callable[[], "S3Client"]


@pytest.fixture(name="address", scope="module")
def _address() -> Iterator[str]:
    """An S3 server of its own, which answers one request after the other.

    moto compares and writes in two steps, S3 does it in one. With a thread for each request, two writers can
    both be the first; without, what happens between the requests of two clients is as with S3.
    """
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(name="opened")
def _opened(address: str) -> Open:
    """What opens a client."""

    def client() -> "S3Client":
        return boto3.client(
            "s3",
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id="a key",
            aws_secret_access_key="its secret",
            config=Config(retries={"total_max_attempts": 1}),
        )

    return client


@pytest.fixture(name="s3")
def _s3(opened: Open) -> Iterator["S3Client"]:
    """A client, and an empty bucket."""
    client = opened()
    client.create_bucket(Bucket=BUCKET)
    yield client
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    client.delete_bucket(Bucket=BUCKET)


def publish_as(s3: "S3Client", version: int) -> None:
    data_key = f"reports/{version}.pdf"
    publish(s3, bucket=BUCKET, pointer_key=POINTER, data_key=data_key, lease_version=version)


def pointer(s3: "S3Client") -> Any:
    return json.load(s3.get_object(Bucket=BUCKET, Key=POINTER)["Body"])


def status_of(error: pytest.ExceptionInfo[ClientError]) -> int:
    return error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_stand_in_keeps_both_conditions(s3: "S3Client") -> None:
    with pytest.raises(ClientError) as missing:
        s3.put_object(Bucket=BUCKET, Key="a", Body=b"1", IfMatch='"0"')
    assert status_of(missing) == 404
    first = s3.put_object(Bucket=BUCKET, Key="a", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as taken:
        s3.put_object(Bucket=BUCKET, Key="a", Body=b"2", IfNoneMatch="*")
    s3.put_object(Bucket=BUCKET, Key="a", Body=b"3", IfMatch=first["ETag"])
    with pytest.raises(ClientError) as changed:
        s3.put_object(Bucket=BUCKET, Key="a", Body=b"4", IfMatch=first["ETag"])
    assert (status_of(taken), status_of(changed)) == (412, 412)
    assert s3.get_object(Bucket=BUCKET, Key="a")["Body"].read() == b"3"


def test_first_version_publishes(s3: "S3Client") -> None:
    publish_as(s3, 1)
    assert pointer(s3) == {"lease_version": 1, "key": "reports/1.pdf"}


def test_stale_version_does_not_publish_after_a_newer_one(s3: "S3Client") -> None:
    publish_as(s3, 1)
    publish_as(s3, 3)
    for stale in (1, 2):
        with pytest.raises(LeaseLost):
            publish_as(s3, stale)
    assert pointer(s3) == {"lease_version": 3, "key": "reports/3.pdf"}


def test_same_version_may_publish_again(s3: "S3Client") -> None:
    publish_as(s3, 2)
    publish_as(s3, 2)
    assert pointer(s3) == {"lease_version": 2, "key": "reports/2.pdf"}


def frozen_before_write(s3: "S3Client", meanwhile: Callable[[], object]) -> None:
    """Have something happen between the next look at the pointer and the write that follows on it."""

    def wake(**_: object) -> None:
        s3.meta.events.unregister("before-call.s3.PutObject", wake)
        meanwhile()

    s3.meta.events.register("before-call.s3.PutObject", wake)


@pytest.mark.parametrize("before", [None, 1], ids=["no pointer", "a pointer"])
def test_stale_version_that_looked_before_the_newer_one_wrote_is_refused(
    s3: "S3Client", opened: Open, before: int | None
) -> None:
    if before is not None:
        publish_as(s3, before)
    frozen_before_write(s3, lambda: publish_as(opened(), 3))
    with pytest.raises(LeaseLost):
        publish_as(s3, 2)
    assert pointer(s3)["lease_version"] == 3


@pytest.mark.parametrize("before", [None, 1], ids=["no pointer", "a pointer"])
def test_newer_version_that_looked_before_the_stale_one_wrote_looks_again(
    s3: "S3Client", opened: Open, before: int | None
) -> None:
    if before is not None:
        publish_as(s3, before)
    frozen_before_write(s3, lambda: publish_as(opened(), 2))
    publish_as(s3, 3)
    assert pointer(s3)["lease_version"] == 3


def test_pointer_that_was_deleted_under_the_write_is_made_anew(s3: "S3Client", opened: Open) -> None:
    publish_as(s3, 1)
    frozen_before_write(s3, lambda: opened().delete_object(Bucket=BUCKET, Key=POINTER))
    publish_as(s3, 2)
    assert pointer(s3)["lease_version"] == 2


def test_refusal_that_is_no_condition_is_raised(s3: "S3Client") -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        publish(s3, bucket="nowhere", pointer_key=POINTER, data_key="a", lease_version=1)


def test_of_many_at_once_the_highest_version_stays(s3: "S3Client", opened: Open) -> None:
    def is_published(client: "S3Client", version: int) -> bool:
        try:
            publish_as(client, version)
        except LeaseLost:
            return False
        return True

    versions = random.sample(range(1, 9), 8)
    clients = [opened() for _ in versions]
    with ThreadPoolExecutor(len(versions)) as threads:
        published = dict(zip(versions, threads.map(is_published, clients, versions), strict=True))
    assert published[8]
    assert pointer(s3) == {"lease_version": 8, "key": "reports/8.pdf"}
