"""The service with other deadlines: ``python -m tests.support.serve_within HEAD BODY GRACE UNREAD``."""

import os
import sys

from app.deadlines import Deadlines
from app.logs import configure_logging
from app.main import create_app
from app.serving import open_listener, serve_app
from app.settings import Settings


def main() -> None:
    settings = Settings.from_environment(os.environ)
    assert settings.database_url is not None
    configure_logging(log_format=settings.log_format, log_level=settings.log_level)
    deadlines = Deadlines(*map(float, sys.argv[1:]))
    app = create_app(settings, database_url=settings.database_url, deadlines=deadlines)
    with open_listener(settings.host, settings.port) as listener:
        serve_app(app, listener)


if __name__ == "__main__":
    main()
