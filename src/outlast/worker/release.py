"""What a worker that is paused may move: only what was released.

A worker is paused because it was started so, or because its store was put back to an earlier state (`store.restoration`). It
registers and keeps its lease, and goes on with everything when everything was released.
"""

from __future__ import annotations

import logging

from outlast.errors import DecodeError
from outlast.store.protocol import Store
from outlast.store.restoration import EVERYBODY, RESTORATION, Releases

logger = logging.getLogger("outlast.worker")

HOW = "`outlast release RUN --reason WHY` lets a run go on, `outlast release --workflow NAME --reason WHY` those of a workflow, `outlast release --all --reason WHY` everything"


class Paused:
    """Whether a worker moves only what was released.

    Args:
        asked: It was started paused.
    """

    def __init__(self, store: Store, *, asked: bool) -> None:
        self._store = store
        self._asked = asked
        self._times: int | None = None
        """How often everything had been released when the worker was started."""
        self._is_unreadable = False
        self.holds = asked
        self.why = ""

    async def look(self) -> bool:
        """Read what is released now; return whether that has changed."""
        before = self.holds
        try:
            row = Releases.of(await self._store.control(EVERYBODY, RESTORATION))
        except DecodeError as error:
            self.holds = True
            if not self._is_unreadable:
                self._is_unreadable = True
                self.why = f"what was released cannot be read: {error}"
                logger.exception("what was released cannot be read: nothing is moved")
            return before != self.holds
        if self._times is None:
            self._times = row.times
        if row.times > self._times:
            self._asked = False
        restored = row.restored
        if row.held and restored is not None:
            self.why = (
                f"the store was put back to an earlier state ({restored.why}): effects that were made since may be forgotten; see "
                "`outlast doctor`"
            )
        elif self._asked:
            self.why = "it was started so"
        self.holds = row.held or self._asked
        return before != self.holds
