"""Which equal call of an effect is which: its number, and whether it may be made at all.

Guards one promise: a receiver never sees the key of what happened, or was undone, for another purpose; and it sees the key of what may
have happened again, whoever calls.
"""

from __future__ import annotations

from datetime import datetime
from heapq import heappop, heappush

from msgspec import Struct, field

from outlast.journal.entry import OperationId


class EqualCalls(Struct):
    """The calls of one effect with one payload, in one run.

    A number is used by what happened, and by what may have happened and was undone. The number of a call that failed is free again.
    """

    standing: dict[OperationId, int] = field(default_factory=dict[OperationId, int])
    """What succeeded and was not undone, in the order in which it did, with its number."""
    undoings: list[tuple[EqualCalls, OperationId]] = field(
        default_factory=list["tuple[EqualCalls, OperationId]"]
    )
    """What has undone such calls: as long as none is made anew, it has undone them."""
    used_at: dict[int, datetime | None] = field(default_factory=dict[int, "datetime | None"])
    """Numbers of what failed and may have happened, each with the time at which its key may have been used first."""
    _next: int = 1
    # Below `_next` every number is used, open, or here; so the least that is free costs the same after ten thousand equal calls.
    _free: list[int] = field(default_factory=list[int])
    _burnt: set[int] = field(default_factory=set[int])

    @property
    def last(self) -> OperationId | None:
        """The latest one that succeeded and was not undone."""
        return next(reversed(self.standing), None)

    def least(self) -> int:
        """Return the least number that is neither used nor open."""
        while self._free and self._free[0] in self._burnt:
            heappop(self._free)
        return self._free[0] if self._free else self._next

    def take(self, number: int) -> None:
        """Let a call that begins have the number, which is the least."""
        assert number == self.least(), f"{number} is not the next number"
        if self._free:
            heappop(self._free)
        else:
            self._next += 1

    def give_back(self, number: int) -> None:
        """Let the number of a call that did not happen, or may have, be the next equal one's."""
        heappush(self._free, number)

    def forget_undoings(self) -> None:
        """Let what has undone former calls refuse no equal call of its own: there is something to undo again."""
        for calls, operation in self.undoings:
            number = calls.standing.pop(operation, None)
            if number is not None:
                calls.burn(number)
        self.undoings.clear()

    def burn(self, number: int) -> None:
        """Let no later call have the number, whatever becomes of one that has it now."""
        self._burnt.add(number)
