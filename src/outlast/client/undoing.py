"""What a run is undoing, and what does a run again that has ended without a result. Pure: read from a run's detail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from outlast.client.retry import place_before_undone
from outlast.client.view import RunDetail, retry_makes_effects
from outlast.effects.undone import unwinding
from outlast.journal.entry import Entry, SagaAborted
from outlast.journal.failure import tell
from outlast.store.change import Status

UNDONE = (Status.COMPENSATED, Status.PARTLY_COMPENSATED)


def doing_again(detail: RunDetail, command: Callable[..., str]) -> tuple[str, str] | None:
    """Return what does a run again that has ended without a result, and what that is for; None where nothing does, or need to.

    Args:
        command: Makes a command to type out of its words.
    """
    run, retry = detail.status.run_id, detail.retry
    done = (detail.status if retry is None else retry).status
    if not done.closed or done is Status.COMPLETED:
        return None
    if retry is None and done in UNDONE and detail.entries:
        place = min(place_before_undone(entries_in(detail)), len(detail.entries) - 1)
        how = (
            "--at",
            str(detail.entries[place].seq),
            "--effects",
            "new-key",
            "--id",
            "NEW-ID",
            "--reason",
            "TEXT",
        )
        return command("runs", "fork", run, *how), "do it after all, in a run with new keys"
    if done in UNDONE:
        return None
    what = "do it again from there"
    if retry_makes_effects(detail.status):
        what = "make what was refused"
    elif undoing(detail) is not None:
        what = "go on undoing"
    return command("runs", "retry", run, "--reason", "TEXT"), what


class Undoing(msgspec.Struct, frozen=True):
    """What a run is undoing, or was when it ended.

    Args:
        saga: The operation of the saga.
        why: What it was aborted by, to go after "because of".
        since: When.
    """

    saga: str
    why: str
    since: datetime


def undoing(detail: RunDetail) -> Undoing | None:
    """Return what a run is undoing, or was when it ended; None when it undoes nothing."""
    place = unwinding(entries_in(detail))
    if place is None:
        return None
    aborted = detail.entries[place].entry
    assert isinstance(aborted, SagaAborted)
    is_cancel = aborted.failure.type.endswith("CancelledError")
    why = "a cancel" if is_cancel else " ".join(tell(aborted.failure).split()).rstrip(".")
    return Undoing(aborted.operation, why, detail.entries[place].at)


def entries_in(detail: RunDetail) -> list[Entry]:
    """Return the journal of a run without its times."""
    return [one.entry for one in detail.entries]
