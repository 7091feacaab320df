"""Ends a run from outside, and sees to it that nothing stays by mistake that its sagas would undo."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.client.port import Port
from outlast.effects.undone import at_stake
from outlast.errors import DecodeError, OpenCompensationsError, RunConflictError
from outlast.journal.entry import OperationId, from_row
from outlast.store.change import Refused, RunKey, Terminate, Verdict

_TRIES = 20


async def end_at_once(
    client: Port, run: RunKey, reason: str, *, incarnation: int, abandon_compensation: bool
) -> Verdict:
    """Write the end, and return what the store says to it.

    Raises:
        OpenCompensationsError: Effects of a saga would stay, and nobody has said that they may.
        RunConflictError: The run moves so fast that nobody can say what it would leave.
    """
    change = Terminate(run, by=client.principal, reason=reason, incarnation=incarnation)
    for _ in range(_TRIES):
        head = await client.store.head(run)
        if head is None or head.status.closed:
            return await client.commit(change)
        left, length = await _left_by(client, run, head.generation)
        if left and not abandon_compensation:
            raise _open(run, left)
        told = f"{reason} (not undone: {', '.join(left)})".lstrip() if left else reason
        seen = replace(change, reason=told, generation=head.generation, next_seq=length)
        verdict = await client.commit(seen)
        if verdict != Refused("moved"):
            return verdict
    raise RunConflictError(
        "the run was not terminated: it moves faster than its journal can be read",
        run=run.run_id,
        hint="pause it first, or cancel it: `outlast runs pause`, `outlast runs cancel`",
    )


async def _left_by(
    client: Port, run: RunKey, generation: int
) -> tuple[tuple[OperationId, ...], int | None]:
    """Return what would stay, and how long the journal is; of one that cannot be read, nobody knows either."""
    rows = await client.store.journal(run, generation=generation)
    try:
        return at_stake([from_row(one.row) for one in rows]), len(rows)
    except DecodeError:
        return (), None


def _open(run: RunKey, left: tuple[OperationId, ...]) -> OpenCompensationsError:
    effects = "an effect" if len(left) == 1 else f"{len(left)} effects"
    return OpenCompensationsError(
        f"the run was not terminated: it is inside a saga, and {effects} of it would not be undone: {', '.join(left)}",
        operations=tuple(left),
        run=run.run_id,
        hint=f"`outlast runs cancel {run.run_id}` has them undone; to leave them, terminate with --abandon-compensation "
        "(abandon_compensation=True)",
    )
