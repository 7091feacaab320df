"""Which use of its id a run is: what a start finds there, and how a use that is over has ended.

Law: an id that is started anew is another run. What was meant for the former one never reaches the new one.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from outlast.errors import DecodeError, DefinitionError, RunConflictError
from outlast.journal.entry import ContinuedAsNew, Started, from_row
from outlast.store.change import RunHead, fingerprint_of
from outlast.store.protocol import StoreReader
from outlast.workflows.definition import Workflow

IfClosed: TypeAlias = Literal["attach", "refuse", "restart"]
"""What starting the id of a closed run means: look at that run, an error, or a new run under the same id."""

_STARTED = str(Started.__struct_config__.tag)
_CONTINUED = str(ContinuedAsNew.__struct_config__.tag)


def check_if_closed(given: Any, *, what: str) -> None:
    """Refuse what says nothing of a closed run.

    Args:
        what: Says where it was given, for the error: `the start of fix`.

    Raises:
        DefinitionError: There is no such word.
    """
    words = get_args(IfClosed)
    if given not in words:
        raise DefinitionError(
            f"{what} has if_closed={given!r}, which says nothing of a closed run",
            hint=f"write {', '.join(repr(one) for one in words[:-1])} or {words[-1]!r}",
        )


async def began_as(store: StoreReader, head: RunHead, workflow: Workflow[..., Any]) -> bool:
    """Whether the run began as this workflow; it may have continued as another."""
    return await _start_of(store, head, workflow.name) is not None


async def check_same(
    store: StoreReader, head: RunHead, workflow: Workflow[..., Any], arguments: bytes
) -> None:
    """Return when the run that has the id was started by this call.

    What was stored is compared as today's types write it: a parameter that came later, with a default, makes no other input.

    Args:
        arguments: As they would be stored now.

    Raises:
        RunConflictError: It was started by another call.
    """
    if head.fingerprint == fingerprint_of(workflow.name, arguments):
        return
    started = await _start_of(store, head, workflow.name)
    if started is None:
        raise taken(head, f"the workflow {head.workflow}")
    stored = bytes(started.arguments)
    # A fork has the first entry of its origin, and is not what was started.
    is_whole = head.fingerprint == fingerprint_of(workflow.name, stored)
    if not is_whole or workflow.arguments.recode(stored) != arguments:
        raise taken(head, "other input")


def taken(head: RunHead, what: str) -> RunConflictError:
    """Return the error that an id belongs to something else."""
    return RunConflictError(
        f"the id is taken by a run with {what}",
        run=head.run.run_id,
        hint="an id stands for one event: derive it from what makes this work different",
    )


async def last_generation(store: StoreReader, head: RunHead, incarnation: int) -> int:
    """Return the generation with which a former use of the id has ended.

    Args:
        head: Of the present use.
        incarnation: The generation that began the former one.
    """
    rows = await store.generations(head.run, limit=head.generation - incarnation + 1)
    ends = {one.generation: one.kind for one in rows}
    last = incarnation
    while ends.get(last) == _CONTINUED and last + 1 in ends:
        last += 1
    return last


async def _start_of(store: StoreReader, head: RunHead, workflow: str) -> Started | None:
    """Return the first entry with which the id was started; None when that was another workflow."""
    row = await store.latest(head.run, _STARTED, workflow, generation=head.incarnation)
    try:
        entry = None if row is None else from_row(row.row)
    except DecodeError:
        return None
    return entry if isinstance(entry, Started) else None
