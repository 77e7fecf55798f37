"""The leases that the reference client holds."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class LeaseLost(Exception):
    """A step was refused because the lease is over."""

    code = "lease_lost"


class ValueRefused(Exception):
    """A checkpoint that the service does not take."""

    code = "too_large"


@dataclass
class Checkpoint:
    """A value on its way to the service. error is what it was refused with, once ``answered``."""

    value: Any
    answered: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


@dataclass
class Lease:
    """A granted job. ``is_over`` when it was lost or its end was answered."""

    job: Mapping[str, Any]
    renewed_at: float
    deadline: float = float("inf")
    stop: threading.Event = field(default_factory=threading.Event)
    reason: str | None = None
    is_running: bool = True
    is_over: bool = False
    seq: int = 0
    progress: Mapping[str, Any] | None = None
    checkpoint: Checkpoint | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.job["id"], self.job["lease_version"]

    @property
    def token(self) -> dict[str, Any]:
        return {"job_id": self.job["id"], "lease_version": self.job["lease_version"]}

    def tell(self, reason: str) -> None:
        """Tell the handler to stop; the first reason stands, but a lost lease beats all others."""
        if self.reason is None or reason == "lease_lost":
            self.reason = reason
        self.stop.set()
        if reason == "lease_lost" and self.checkpoint is not None:
            self.checkpoint.error = LeaseLost()
            self.checkpoint.answered.set()


def now() -> float:
    return time.monotonic()
