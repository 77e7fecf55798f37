"""The service in a process of its own: ``python -m benchmarks.target PORT DATABASE_URL [--uncoalesced]``."""

import sys

from app.logs import configure_logging
from app.main import create_app, migrate
from app.serving import open_listener, serve_app
from app.settings import Settings


def main() -> None:
    """Serve until SIGTERM, as ``fencepost serve`` does."""
    port, database_url = int(sys.argv[1]), sys.argv[2]
    max_coalesced_items = 1 if "--uncoalesced" in sys.argv else 500
    configure_logging(log_format="text", log_level="warning")
    migrate(database_url)
    app = create_app(Settings(), database_url=database_url, max_coalesced_items=max_coalesced_items)
    with open_listener("127.0.0.1", port) as listener:
        serve_app(app, listener)


if __name__ == "__main__":
    main()
