"""Ends a run from outside, and sees to it that nothing stays by mistake that its sagas would undo."""

from __future__ import annotations

from outlast.client.port import Port
from outlast.effects.undone import at_stake
from outlast.errors import DecodeError, OpenCompensationsError
from outlast.journal.entry import OperationId, from_row
from outlast.store.change import SAGA, Refused, RunKey, Terminate, Verdict


async def end_at_once(
    client: Port, run: RunKey, reason: str, *, incarnation: int, abandon_compensation: bool
) -> Verdict:
    """Write the end, and return what the store says to it. Its journal is read only where its sagas are spoken of.

    Raises:
        OpenCompensationsError: Effects of a saga would stay, and nobody has said that they may.
    """
    if abandon_compensation and (left := await _left_by(client, run)):
        reason = f"{reason} (not undone: {', '.join(left)})".lstrip()
    change = Terminate(
        run, client.principal, reason, incarnation=incarnation, abandon=abandon_compensation
    )
    verdict = await client.commit(change)
    if verdict == Refused(SAGA):
        raise _open(run, await _left_by(client, run))
    return verdict


async def _left_by(client: Port, run: RunKey) -> tuple[OperationId, ...]:
    """Return what would stay; of a journal that cannot be read, nobody knows."""
    head = await client.store.head(run)
    if head is None or head.status.closed:
        return ()
    rows = await client.store.journal(run, generation=head.generation)
    try:
        return at_stake([from_row(one.row) for one in rows])
    except DecodeError:
        return ()


def _open(run: RunKey, left: tuple[OperationId, ...]) -> OpenCompensationsError:
    effects = "an effect" if len(left) == 1 else f"{len(left) or 'some'} effects"
    named = f": {', '.join(left)}" if left else ""
    return OpenCompensationsError(
        f"the run was not terminated: {effects} would not be undone{named}",
        operations=tuple(left),
        run=run.run_id,
        hint=f"`outlast runs cancel {run.run_id}` has undone what a saga did, and `outlast runs resolve` settles what is in doubt or gave up; to leave "
        "all as it is, terminate with --abandon-compensation (abandon_compensation=True)",
    )
