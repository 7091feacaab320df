"""Where a process can die, and what one life of it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from outlast.client import JournalEntry

Moment: TypeAlias = Literal["before", "during", "after"]
Kind: TypeAlias = Literal["effect", "step", "probe"]

COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where the process is killed.

    Args:
        moment: `before` or `after`; of a call whose body waits for something also `during`: at its first wait, with a request on its
            way perhaps.
        what: `commit`, or a call: `effect NAME`, `step NAME`, `probe NAME` with the name of the effect that it asks for.
        number: Which of these in the process's life, counted from 1.
    """

    moment: Moment
    what: str
    number: int = 1

    def __str__(self) -> str:
        """Say it in words: `after effect charge 1`."""
        return f"{self.moment} {self.what} {self.number}"


@dataclass(frozen=True, slots=True)
class BodyCall:
    """One call of a body.

    Args:
        kind: `effect`, `step`, or `probe`.
        name: Of the step or effect.
        operation: Its id, as `r:3`.
        attempt: Its number, counted from 1; for a probe, of the attempt that is asked about next.
        key: The idempotency key; empty for steps.
    """

    kind: Kind
    name: str
    operation: str
    attempt: int
    key: str = ""

    @property
    def what(self) -> str:
        """What a `CrashPoint` calls it."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Life:
    """What one process did until it was killed, or until the run was over.

    Args:
        points: The commits and calls that it came through, in order: where it could have been killed.
        calls: The bodies that began.
        left: The run's journal as the process left it.
    """

    points: tuple[CrashPoint, ...]
    calls: tuple[BodyCall, ...]
    left: tuple[JournalEntry, ...]
