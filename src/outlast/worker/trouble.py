"""What keeps a run from going on in this worker, and what is written about it."""

from __future__ import annotations

from outlast.errors import OutlastError
from outlast.journal.entry import NO_OPERATION
from outlast.store.change import Refused, RunHead, RunKey
from outlast.worker.alarm import alarm
from outlast.worker.proposal import Proposal, Rank


class RefusedByStoreError(OutlastError):
    """The store will never take what the run has to write."""

    code = "refused_by_store"


def refused_by_store(run: RunKey, refused: Refused) -> RefusedByStoreError:
    """Return why a run cannot go on: what it has to write has no part that could be left out."""
    return RefusedByStoreError(
        f"the store refuses what the run has to write: {refused.reason} {refused.part}".rstrip(),
        run=run.run_id,
        hint="see the journal with `outlast runs journal`; a value may be too large for the store",
    )


def poisoned(head: RunHead) -> OutlastError:
    """Return why a run is left to an operator whose owners die one after another."""
    return OutlastError(
        f"{head.lapses} workers in a row died while they had this run, and none got any further",
        run=head.run.run_id,
        hint="find out what kills the process; then send the run a message, or terminate it",
    )


def too_late(outcome: Proposal) -> Proposal:
    """Return what is written about an outcome from outside that comes after another one."""
    entry = alarm("late_outcome", NO_OPERATION, {"outcome": outcome.entry})
    return Proposal(Rank.ARRIVAL, entry, consumed=outcome.consumed, whole=outcome)
