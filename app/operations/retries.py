"""Run again what the database undid.

A deadlock, a serialization failure or a connection that was lost before the commit leaves nothing behind,
so the verb may simply be run once more: whoever called does not have to. What may have been committed
is never run again here; its caller repeats it with the same key, version or request_id.
"""

import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tenacity import (
    before_sleep_log,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from app.domain.errors import RolledBack

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

MAX_RUNS = 4
# No further run begins when this has passed since the first: a request has to be answered within five.
MAX_SECONDS = 2.0

_again = retry(
    retry=retry_if_exception_type(RolledBack),
    stop=stop_after_attempt(MAX_RUNS - 1) | stop_after_delay(MAX_SECONDS),
    wait=wait_random_exponential(multiplier=0.005, max=0.1),
    before_sleep=before_sleep_log(_logger, logging.INFO),
    reraise=True,
)


def retried(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a verb run up to MAX_RUNS times when the database undoes it."""
    run_again = _again(verb)

    @functools.wraps(verb)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            # Nearly always the only run; tenacity would cost each one 30 µs.
            return await verb(*args, **kwargs)
        except RolledBack as undone:
            _logger.info("%s is run again: %s", verb.__name__, undone)
        return await run_again(*args, **kwargs)

    return run
