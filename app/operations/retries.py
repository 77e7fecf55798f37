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
    wait_random_exponential,
)

from app.domain.errors import RolledBack

_logger = logging.getLogger(__name__)

# All pauses together stay far below the time in which a request has to be answered.
MAX_RUNS = 4

retried = retry(
    retry=retry_if_exception_type(RolledBack),
    stop=stop_after_attempt(MAX_RUNS),
    wait=wait_random_exponential(multiplier=0.005, max=0.1),
    before_sleep=before_sleep_log(_logger, logging.INFO),
    reraise=True,
)
