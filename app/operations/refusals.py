"""Why a presented lease_version is not held, and whether a settling call was accepted before."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import FencepostError, JobNotFound, LeaseLost
from app.domain.job import Job, JobState, Token
from app.domain.machine import Record, refusal_reason
from app.domain.retention import Retention
from app.store import reads
from app.store.engine import Connection


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a token that is not held. ``job`` None: there is no such job (any more)."""

    token: Token
    job: Job | None
    record: Record | None

    @property
    def refusal(self) -> FencepostError:
        """The answer to a holder call."""
        return JobNotFound(self.token.job_id) if self.job is None else self.lease_lost

    @property
    def lease_lost(self) -> LeaseLost:
        """The answer to a child whose parent this was; an unknown parent is a lost lease too."""
        # In the window between the write that found nothing and this read the version may have been
        # granted after all (a guessed token): then there is no record, and nothing was changed either.
        is_current = self.job is not None and self.job.state is JobState.RUNNING
        return LeaseLost(
            job_id=self.token.job_id,
            presented_version=self.token.lease_version,
            current_version=None if self.job is None else self.job.lease_version,
            job_state=None if self.job is None else self.job.state.value,
            reason="unknown"
            if is_current and self.job is not None and self.job.lease_version == self.token.lease_version
            else refusal_reason(self.record),
        )


async def explain(
    conn: Connection, tokens: Sequence[Token], *, retention: Retention, with_payload: bool = False
) -> dict[Token, Explanation]:
    """Read what is known of tokens that a write did not find held.

    Runs after that write in the same transaction, so it sees what ended them.
    """
    if not tokens:
        return {}
    ids = sorted({token.job_id for token in tokens})
    jobs = await reads.read_jobs(
        conn, ids, retention=retention, with_payload=with_payload, with_result=with_payload
    )
    records = await reads.read_records(conn, tokens)
    return {token: Explanation(token, jobs.get(token.job_id), records.get(token)) for token in tokens}
