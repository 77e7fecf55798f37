"""The clock that leases are measured on: it goes on while the process is stopped or the machine asleep."""

import time
from collections.abc import Callable
from functools import partial


def _reader() -> Callable[[], float]:
    # On Linux only CLOCK_BOOTTIME counts while the machine sleeps; on macOS CLOCK_MONOTONIC does, and on
    # Windows time.monotonic does. All of them count while the process is stopped, and are the same for all
    # processes.
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        number: int | None = getattr(time, name, None)
        if number is not None:
            return partial(time.clock_gettime, number)
    return time.monotonic


now: Callable[[], float] = _reader()
