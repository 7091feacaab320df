"""Patches: places where changed code goes one way in runs that had not come there yet, and the former way in all others.

Guards one rule: the answer at a patch is the same in every replay. It is True only where no entry of former code can follow, and
before anything else is written then, the marker is; from there on the marker says so. An answer sticks for the generation.
"""

from __future__ import annotations

from outlast.journal.entry import Patched
from outlast.replay.command import MarkPatch


class Patches:
    """The patches of one generation of a run."""

    def __init__(self) -> None:
        self.answers: dict[str, bool] = {}
        """What the code was told at each patch that it came to."""
        self._known: set[str] = set()
        self._marks: dict[str, MarkPatch] = {}

    def foresee(self, marker: Patched) -> None:
        """Note a marker that the journal holds, delivered or not."""
        self._known.add(marker.name)

    def ask(self, name: str, *, deprecated: bool, more: bool) -> bool:
        """Return whether the code goes on as changed.

        Args:
            deprecated: A marker that is written now is one that code may forget.
            more: Other turns of a journal that was written before are still to be delivered.
        """
        if name not in self.answers:
            is_known = name in self._known
            self.answers[name] = is_known or not more
            if not is_known and not more:
                self._marks[name] = MarkPatch(name, deprecated)
        return self.answers[name]

    def settle(self, marker: Patched) -> bool:
        """Take in a marker; False when the code should have asked before, and did not."""
        self._marks.pop(marker.name, None)
        return marker.deprecated or marker.name in self.answers

    def take(self) -> list[MarkPatch]:
        """Return the markers to be written that were not returned before."""
        marks = list(self._marks.values())
        self._marks.clear()
        return marks

    def clear(self) -> None:
        """Forget what was to be written: the run leaves memory."""
        self._marks.clear()

    def describe(self) -> str:
        """Return the patches that the code came to, in words; an empty string for none."""
        told = [f"{name!r} answered {answer}" for name, answer in self.answers.items()]
        return f"patches so far: {', '.join(told)}" if told else ""
