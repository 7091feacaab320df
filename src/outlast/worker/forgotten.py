"""What a store that was put back to an earlier state has forgotten of a run, and what follows for its effects.

Of a run that is older than the restore nobody knows how far it went before. So each of its effects that has no outcome in the journal is
held to have been attempted, also where its intent is not in the journal: until the run has ended, until somebody vouches that nothing was
forgotten, or, of one effect, until somebody says that it did not happen.

Invariant: nothing here is the machine's business. What is decided stands in the journal as any other intent, outcome or doubt, and the
process may die on each line: whoever takes the run up finds the mark on its row, and holds the same.
"""

from __future__ import annotations

from datetime import datetime

from outlast.errors import DecodeError
from outlast.journal.entry import EffectCleared, Entry, OperationId
from outlast.store.change import Restored, RunHead
from outlast.store.protocol import Store
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases


class Forgotten:
    """What may be forgotten of one run.

    Args:
        restored: Its mark; None where nothing is.
    """

    def __init__(self, restored: Restored | None = None) -> None:
        self._restored = restored
        self._cleared: set[OperationId] = set()

    def note(self, entry: Entry, at: datetime) -> None:
        """Take in the next entry of the run's journal."""
        if self._restored is None or not isinstance(entry, EffectCleared):
            return
        if at > self._restored.at:
            # Somebody has looked it up since the restore.
            self._cleared.add(entry.operation)

    def of(self, operation: OperationId) -> Restored | None:
        """Return since when something may be forgotten of an effect; None where nothing is."""
        return None if operation in self._cleared else self._restored


async def forgotten_of(store: Store, head: RunHead) -> Forgotten:
    """Return what may be forgotten of a run. What was vouched for since its row was read is seen when it is taken up again."""
    if head.restored is None:
        return Forgotten()
    try:
        row = Releases.of(await store.control(EVERYBODY, RESTORATION))
    except DecodeError:
        return Forgotten(head.restored)
    return Forgotten(None if row.trusted else head.restored)


def why(restored: Restored) -> str:
    """Return in words why nobody knows whether an effect was attempted."""
    return (
        f"the store was restored at {restored.at:%Y-%m-%d %H:%M:%S} UTC, and what the run did after {restored.until:%Y-%m-%d %H:%M:%S} UTC "
        "may be forgotten: an attempt may have been made"
    )
