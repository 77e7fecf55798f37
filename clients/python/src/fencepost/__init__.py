"""Fencepost's client: ``Client`` makes jobs, ``Worker`` runs them under leases that carry a fencing token.

from fencepost import Job, Worker

worker = Worker("http://127.0.0.1:8000", queues=["mail"])

@worker.handler("email.send")
def send(job: Job) -> object:
    return deliver(job.payload, idempotency_key=job.idempotency_key("send"))

worker.run()
"""

from fencepost.client import AsyncClient, Client
from fencepost.errors import (
    FencepostError,
    IdempotencyKeyReused,
    JobNotFound,
    LeaseLost,
    Problem,
    Unavailable,
)
from fencepost.job import AsyncJob, Job
from fencepost.jobs import Backoff, JobOptions, JobRecord, JobState, LeaseRecord, NewJob, Parent, Submitted
from fencepost.outcomes import SETTLED, Complete, Fail, Release, Settled
from fencepost.stops import Stop, Stopped, StopReason
from fencepost.worker import Worker

__all__ = [
    "SETTLED",
    "AsyncClient",
    "AsyncJob",
    "Backoff",
    "Client",
    "Complete",
    "Fail",
    "FencepostError",
    "IdempotencyKeyReused",
    "Job",
    "JobNotFound",
    "JobOptions",
    "JobRecord",
    "JobState",
    "LeaseLost",
    "LeaseRecord",
    "NewJob",
    "Parent",
    "Problem",
    "Release",
    "Settled",
    "Stop",
    "StopReason",
    "Stopped",
    "Submitted",
    "Unavailable",
    "Worker",
]
