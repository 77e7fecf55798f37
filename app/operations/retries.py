"""Run again what the database undid.

A deadlock, a serialization failure or a connection that was lost before the commit leaves nothing behind,
so the verb may simply be run once more: whoever called does not have to. What may have been committed
is never run again here; its caller repeats it with the same key, version or request_id.
"""

import logging

from tenacity import (
    before_sleep_log,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from app.domain.errors import RolledBack

_logger = logging.getLogger(__name__)

MAX_RUNS = 4
# No further run begins when this has passed since the first: a request has to be answered within five.
MAX_SECONDS = 2.0

retried = retry(
    retry=retry_if_exception_type(RolledBack),
    stop=stop_after_attempt(MAX_RUNS) | stop_after_delay(MAX_SECONDS),
    wait=wait_random_exponential(multiplier=0.005, max=0.1),
    before_sleep=before_sleep_log(_logger, logging.INFO),
    reraise=True,
)
