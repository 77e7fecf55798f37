"""Which queues have work: the look of those who wait for it and were not told."""

from collections.abc import Sequence

from app.store.arrays import texts
from app.store.engine import Connection, sql

# One look into the index a queue, whatever the planner knows of the table.
READ_READY_QUEUES = sql("""
SELECT w.queue
FROM unnest(CAST(:queues AS text[])) AS w (queue)
CROSS JOIN LATERAL (SELECT 1 FROM fencepost.ready r WHERE r.queue = w.queue LIMIT 1) r
""")


async def read_ready_queues(conn: Connection, queues: Sequence[str]) -> list[str]:
    """Return those of the queues that have a ready job; a claim under way may be about to take it."""
    return [row.queue for row in await conn.execute(READ_READY_QUEUES, {"queues": texts(queues)})]
