"""Logging of the whole process: lines of text on a terminal, JSON lines elsewhere, always on stderr."""

import json
import logging
import sys
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON: time, level, logger, message and, if there is one, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(*, log_format: str | None, log_level: str) -> None:
    """Send every record of log_level and above to stderr; log_format None means text only on a terminal.

    Replaces the handlers of the root logger, so calling it again changes format and level.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json" or (log_format is None and not sys.stderr.isatty()):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=log_level.upper(), force=True)
    # They tell each of their steps; what they have to warn about is all that concerns an operator.
    for name in ("uvicorn", "alembic", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
