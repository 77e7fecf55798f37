"""A statement can write a row once; a call that names a job twice means it one after the other."""

from collections.abc import Iterator, Sequence


def rounds(job_ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield lists of indexes: in each a job stands once, and its mentions keep their order."""
    pending = list(range(len(job_ids)))
    while pending:
        seen: set[str] = set()
        later = []
        this_round = []
        for index in pending:
            if job_ids[index] in seen:
                later.append(index)
            else:
                seen.add(job_ids[index])
                this_round.append(index)
        yield this_round
        pending = later
