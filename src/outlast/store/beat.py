"""Beats from outside, of steps that were handed out: the conditions of both stores.

Law: nobody decides that such a step was silent without knowing of every beat that was accepted. So an owner's act on a row that awaits
names the number of beats that it knows of, and a beat is accepted only while the row awaits.
"""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import OperationDrop, OperationPut, Refused

BEAT = "beat"
"""The refusal of an owner's act on a row that awaits, and was beaten since the owner has looked."""

AWAITS = "awaits"
"""The refusal of a beat for what is not handed out, now or any more."""


def missed_beat(beats: int | None, act: OperationPut | OperationDrop) -> Refused | None:
    """Return the refusal of an act that was decided on without a beat.

    Args:
        beats: How many the operation's row has; None where it does not await, or there is none.
    """
    is_free = beats is None or act.beats is None or beats == act.beats
    return None if is_free else Refused(BEAT, act.operation)


def silent_at(row: OperationPut) -> datetime | None:
    """Return when an operation that was handed out counts as failed if nothing more is heard of it; None for never."""
    if not row.awaits or row.silence is None or row.heard_at is None:
        return None
    try:
        return row.heard_at + row.silence
    except OverflowError:
        return None
