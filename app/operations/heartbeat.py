"""Extend leases. A heartbeat says that the process lives; only progress says that the work gets on."""

from collections.abc import Sequence

from app.domain.calls import Heartbeat, RenewedLease
from app.domain.errors import FencepostError
from app.domain.job import Token
from app.operations.context import Context
from app.operations.refusals import explain
from app.operations.retries import retried
from app.operations.rounds import rounds
from app.store import leases, reads


@retried
async def heartbeat_leases(
    context: Context, beats: Sequence[Heartbeat]
) -> list[RenewedLease | FencepostError]:
    """Extend what is held; the rest is refused item by item. A job that stands twice is beaten twice."""
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
                answers[index] = renewed.get(token.job_id) or refusals[token].refusal
    return [answers[index] for index in range(len(beats))]


@retried
async def verify_leases(context: Context, tokens: Sequence[Token]) -> list[None | FencepostError]:
    """Tell which tokens are held at this moment: None for held, else the refusal."""
    async with context.database.begin() as conn:
        held = await reads.read_held(conn, tokens)
        refusals = await explain(
            conn, [token for token in tokens if token not in held], retention=context.retention
        )
    return [None if token in held else refusals[token].refusal for token in tokens]
