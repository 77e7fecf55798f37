"""The service in a process of its own: ``python -m benchmarks.target PORT DATABASE_URL MAX_COALESCED``."""

import sys

import uvicorn

from app.main import create_app, migrate
from app.settings import Settings


def main() -> None:
    port, database_url, max_coalesced_items = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    migrate(database_url)
    app = create_app(Settings(), database_url=database_url, max_coalesced_items=max_coalesced_items)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
