"""Why a write did not find a presented lease_version, and whether a settling call was accepted before."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.errors import FencepostError, JobNotFound, LeaseLost
from app.domain.job import Job, JobState, Token
from app.domain.machine import Record, refusal_reason
from app.domain.retention import Retention
from app.operations.patience import LeaseBusy
from app.store import reads
from app.store.engine import Connection


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a token that a write passed over. ``job`` None: there is no such job (any more)."""

    token: Token
    job: Job | None
    record: Record | None

    @property
    def held_job(self) -> Job | None:
        """The job, where it runs under this very version: the write passed it over because it was locked."""
        job = self.job
        is_held = job is not None and (job.state, job.lease_version) == (
            JobState.RUNNING,
            self.token.lease_version,
        )
        return job if is_held else None

    @property
    def refusal(self) -> FencepostError:
        """The answer to a holder call."""
        return JobNotFound(self.token.job_id) if self.job is None else self.refusal_of_child

    @property
    def refusal_of_child(self) -> FencepostError:
        """The answer to a child whose parent this is; an unknown parent is a lost lease too."""
        if self.held_job is not None:
            return LeaseBusy()
        return LeaseLost(
            job_id=self.token.job_id,
            presented_version=self.token.lease_version,
            current_version=None if self.job is None else self.job.lease_version,
            job_state=None if self.job is None else self.job.state.value,
            reason=refusal_reason(self.record),
        )


async def explain(
    conn: Connection, tokens: Sequence[Token], *, retention: Retention, with_payload: bool = False
) -> dict[Token, Explanation]:
    """Read what is known of tokens that a write did not find, or found locked.

    Runs after that write, so it sees what ended them.
    """
    if not tokens:
        return {}
    ids = sorted({token.job_id for token in tokens})
    jobs = await reads.read_jobs(
        conn, ids, retention=retention, with_payload=with_payload, with_result=with_payload
    )
    records = await reads.read_records(conn, tokens)
    return {token: Explanation(token, jobs.get(token.job_id), records.get(token)) for token in tokens}
