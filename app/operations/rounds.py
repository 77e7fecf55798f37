"""A statement can write a row once; a call that names a job twice means it one after the other.

Rounds are bounded as well: a heartbeat compares its items with each other's rows (see store.leases), which
is nothing for some hundred and much for a thousand.
"""

from collections.abc import Iterator, Sequence

MAX_JOBS_A_ROUND = 250


def rounds(job_ids: Sequence[str], *, max_jobs: int = MAX_JOBS_A_ROUND) -> Iterator[list[int]]:
    """Yield lists of indexes, ``max_jobs`` at most; in each a job stands once, in order."""
    pending = list(range(len(job_ids)))
    while pending:
        seen: set[str] = set()
        later = []
        this_round = []
        for index in pending:
            if job_ids[index] in seen or len(seen) == max_jobs:
                later.append(index)
            else:
                seen.add(job_ids[index])
                this_round.append(index)
        yield this_round
        pending = later
