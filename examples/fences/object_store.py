"""A fence for an object under a fixed key, in any store with S3's conditional writes.

Write each attempt to a key of its own, ``reports/<job id>/<lease_version>.pdf``, and name that key in the
result of the job: complete is fenced, so no more is needed. This is for readers who need one key that never
changes: it holds a pointer to the data, and publish moves the pointer.
"""

import json
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client
    from types_boto3_s3.type_defs import PutObjectOutputTypeDef


class LeaseLost(Exception):
    """A newer holder of the job has published: stop."""


def publish(
    s3: "S3Client", *, bucket: str, pointer_key: str, data_key: str, lease_version: int
) -> "PutObjectOutputTypeDef":
    """Point pointer_key at data_key, unless a newer holder was here. The version is part of the content, so
    that every version has an ETag of its own.

    Guaranteed: once a version has published, no lower one does; the store compares and writes in one step.
    The same version may publish again, which also makes a call whose answer was lost safe to repeat.
    Not guaranteed: that the data is there. Write it first. Nor that the store keeps conditions: one that does
    not know them may write without a word, so try yours. A pointer belongs to one job, whose versions can be
    compared.
    Needs s3:ListBucket: without it S3 answers 403 instead of 404 for a key that is not there yet.
    Raises LeaseLost when a newer holder has published.
    """
    body = json.dumps({"lease_version": lease_version, "key": data_key})
    while True:
        condition: dict[str, Any]
        try:
            found = s3.get_object(Bucket=bucket, Key=pointer_key)
        except s3.exceptions.NoSuchKey:
            condition = {"IfNoneMatch": "*"}
        else:
            if json.load(found["Body"])["lease_version"] > lease_version:
                raise LeaseLost
            condition = {"IfMatch": found["ETag"]}
        try:
            return s3.put_object(Bucket=bucket, Key=pointer_key, Body=body, **condition)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (404, 409, 412):
                raise  # else somebody was faster: look again
