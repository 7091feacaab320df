"""How long the journal of a run may become: a hint to the workflow, then a limit, then room to clean up.

Guards one promise: a run that grows without end stops before it can no longer be loaded, and it can still be cancelled, resolved
and cleaned up then. What an attempt that is under way has to say is recorded all the same; nothing new begins.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from outlast.errors import DefinitionError, OutlastError
from outlast.journal.entry import (
    Accepted,
    CancelRequested,
    ContinueSuggested,
    EffectCleared,
    EffectCompleted,
    EffectFailed,
    Entry,
    StepCompleted,
    StepFailed,
)

MIB = 1024 * 1024
_LIMIT, _FOR_MESSAGES, _HEADROOM = 100, 105, 110
"""Per cent of the limits. Clean-up may wait for messages too; so many of them that they fill all of its room do not come in."""


class HistoryLimits(Struct, frozen=True):
    """How long the journal of one generation of a run may become.

    Args:
        warn_entries: From here on `info().continue_suggested` is true, and the log says so once.
        warn_bytes: The same, in bytes of the entries.
        most_entries: Here the run is blocked with the reason `history`. A cancel, an operator's resolution and the clean-up
            after it may go a tenth beyond that; `outlast runs accept RUN --history N` raises the limit of one run.
        most_bytes: The same, in bytes of the entries.

    Raises:
        DefinitionError: A limit is no number above nothing, or the warning comes after the end.

    Example:
        ```python
        import outlast

        limits = outlast.HistoryLimits(warn_entries=1_000, most_entries=5_000)
        app = outlast.open("memory://", history=limits)
        assert limits.most_bytes == 50 * 1024 * 1024
        ```
    """

    warn_entries: int = 10_240
    warn_bytes: int = 10 * MIB
    most_entries: int = 51_200
    most_bytes: int = 50 * MIB

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        for name in ("warn_entries", "warn_bytes", "most_entries", "most_bytes"):
            value: Any = getattr(self, name)
            if not isinstance(value, int) or value <= 0:
                raise DefinitionError(
                    f"HistoryLimits: {name}={value!r} is no number above 0",
                    hint="see the arguments of HistoryLimits",
                )
        if self.warn_entries > self.most_entries or self.warn_bytes > self.most_bytes:
            raise DefinitionError(
                "HistoryLimits: the warning would come after the limit",
                hint="give warn_entries and warn_bytes below most_entries and most_bytes",
            )


DEFAULT_LIMITS = HistoryLimits()


class Growth:
    """The journal of one generation, as far as its length is concerned.

    Args:
        limits: The worker's.
    """

    def __init__(self, limits: HistoryLimits) -> None:
        self._limits = limits
        self._most = limits.most_entries
        self._short = min(limits.warn_entries, limits.most_entries)
        self._short_bytes = min(limits.warn_bytes, limits.most_bytes)
        self._cleans_up = False
        self.entries = 0
        self.size_bytes = 0
        self.suggested = False
        """Whether the workflow was told."""

    def add(self, entry: Entry, size_bytes: int) -> None:
        """Take in an entry that stands in the journal.

        Args:
            size_bytes: Of its body.
        """
        self.entries += 1
        self.size_bytes += size_bytes
        match entry:
            case ContinueSuggested():
                self.suggested = True
            case Accepted(history=int(history)):
                self._most = max(self._most, history)
            case CancelRequested():
                self._cleans_up = True
            case (
                EffectCompleted()
                | EffectFailed()
                | EffectCleared()
                | StepCompleted()
                | StepFailed()
            ):
                self._cleans_up = self._cleans_up or (bool(entry.by) and self._is_past(_LIMIT))
            case _:
                pass

    @property
    def is_short(self) -> bool:
        """Whether it is far from every limit."""
        return self.entries < self._short and self.size_bytes < self._short_bytes

    @property
    def is_long(self) -> bool:
        """Whether the workflow should be told, and was not."""
        limits = self._limits
        is_past = self.entries >= limits.warn_entries or self.size_bytes >= limits.warn_bytes
        return is_past and not self.suggested

    @property
    def is_full(self) -> bool:
        """Whether nothing new may begin."""
        return self._is_past(_HEADROOM if self._cleans_up else _LIMIT)

    def has_room(self, entries: int, size_bytes: int) -> bool:
        """Return whether one more message may be taken in.

        Args:
            entries: How many are taken in with it, before it.
            size_bytes: Of those and of itself.
        """
        part = _FOR_MESSAGES if self._cleans_up else _LIMIT
        if entries == 0:
            return not self._is_past(part)
        return not self._is_past(part, entries, size_bytes)

    def suggest(self) -> ContinueSuggested:
        """Return the entry that tells the workflow."""
        self.suggested = True
        return ContinueSuggested(self.entries, self.size_bytes)

    def room(self) -> dict[str, int]:
        """Return how many entries an operator would have to allow: at `least`, so that something is raised, and for `more` than a little."""
        limits = self._limits
        in_bytes = -(-(self.size_bytes + 1) * limits.most_entries // limits.most_bytes)
        least = max(self._most + 1, self.entries + 1, in_bytes)
        return {"least": least, "more": max(self._most + limits.most_entries, least)}

    def error(self, run_id: str) -> OutlastError:
        """Return what is said of a run that is stopped here."""
        more = self.room()["more"]
        return OutlastError(
            f"the journal has {self.entries:,} entries of {self.size_bytes / MIB:,.1f} MiB, and a generation may have "
            f"{self._most:,} of {self._most_bytes / MIB:,.1f} MiB",
            run=run_id,
            hint="let the workflow call outlast.continue_as_new(...) once outlast.info().continue_suggested is true; this run goes "
            f"on by `outlast runs accept {run_id} --history {more} --reason TEXT`, or cleans up by `outlast runs cancel {run_id}`",
        )

    def _is_past(self, percent: int, entries: int = 0, size_bytes: int = 0) -> bool:
        """Return whether the journal has come to that part of its limits, with so much more in it."""
        return (
            100 * (self.entries + entries) >= percent * self._most
            or 100 * (self.size_bytes + size_bytes) >= percent * self._most_bytes
        )

    @property
    def _most_bytes(self) -> int:
        """What an operator allows in entries is allowed in bytes in proportion."""
        return self._limits.most_bytes * self._most // self._limits.most_entries
