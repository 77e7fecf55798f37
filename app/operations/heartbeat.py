"""Extend leases. A heartbeat says that the process lives; only progress says that the work gets on."""

from collections.abc import Sequence

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError
from app.domain.job import Token
from app.operations.context import Context
from app.operations.patience import LeaseBusy
from app.operations.refusals import Explanation, explain
from app.operations.retries import retried
from app.operations.rounds import rounds
from app.store import leases, reads


@retried
async def heartbeat_leases(
    context: Context, beats: Sequence[Heartbeat]
) -> list[RenewedLease | FencepostError]:
    """Extend what is held; the rest is refused item by item. A job that stands twice is beaten twice.

    A lease that is locked is alive for as long as it is: a beat that stores nothing may be answered with the
    expiry as it is.
    """
    answers: dict[int, RenewedLease | FencepostError] = {}
    turns = list(rounds([beat.token.job_id for beat in beats]))
    database = context.database
    async with database.one_write() if len(turns) == 1 else database.begin() as conn:
        for indexes in turns:
            renewed = await leases.heartbeat_leases(conn, [beats[index] for index in indexes])
            missing = [beats[index].token for index in indexes if beats[index].token.job_id not in renewed]
            refusals = await explain(conn, missing, retention=context.retention)
            for index in indexes:
                token = beats[index].token
                answers[index] = renewed.get(token.job_id) or _refusal(refusals[token], beats[index])
    return [answers[index] for index in range(len(beats))]


def _refusal(known: Explanation, beat: Heartbeat) -> FencepostError:
    held = known.held_job
    if held is None or held.lease is None or beat.seq is not None or beat.with_checkpoint:
        return known.refusal
    return LeaseBusy(RenewedLease(held.lease.expires_at, held.lease.deadline_at, held.lease.cancel_requested))


@retried
async def verify_leases(context: Context, tokens: Sequence[Token]) -> list[None | FencepostError]:
    """Tell which tokens are held at this moment: None for held, else the refusal."""
    async with context.database.begin() as conn:
        held = await reads.read_held(conn, tokens)
        refusals = await explain(
            conn, [token for token in tokens if token not in held], retention=context.retention
        )
    return [
        None if token in held or refusals[token].held_job is not None else refusals[token].refusal
        for token in tokens
    ]
