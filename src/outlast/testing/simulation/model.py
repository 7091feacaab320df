"""What the invariants remember of a simulated store, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from outlast.journal.entry import EffectIntended, StampedRow
from outlast.store.change import ApprovalPut, WorkerId

_EDGE = 1e-6


@dataclass(slots=True)
class Item:
    """An accepted message."""

    number: int
    kind: str
    consumed: bool = False


@dataclass(slots=True)
class Request:
    """An approval, as far as it decides what may happen."""

    put: ApprovalPut
    state: str = "pending"
    spent: dict[int, str] = field(default_factory=dict[int, str])


@dataclass(slots=True)
class Life:
    """One life of a worker."""

    lease_seconds: float
    seen: float
    process: str

    def over(self, now: float) -> bool:
        """Whether its lease has run out."""
        return now - self.seen >= self.lease_seconds - _EDGE

    def runs(self, now: float) -> bool:
        """Whether its lease runs on. At the edge both are true: floats may not judge stores that count whole numbers."""
        return now - self.seen <= self.lease_seconds + _EDGE


@dataclass(slots=True)
class Run:
    """What is known of a run: of its present generation, but for owners and messages."""

    generation: int = 0
    owner: WorkerId | None = None
    epoch: int = 0
    version: int = 0
    digest: bytes = b""
    at: datetime | None = None
    closed: bool = False
    terminated: bool = False
    rows: list[StampedRow] = field(default_factory=list[StampedRow])
    intents: dict[str, EffectIntended] = field(default_factory=dict[str, EffectIntended])
    outcomes: set[str] = field(default_factory=set[str])
    attempted: set[str] = field(default_factory=set[str])
    fresh: set[str] = field(default_factory=set[str])
    """Effects intended since the run was last read: whoever intended them knows that no attempt was made."""
    approvals: dict[str, Request] = field(default_factory=dict[str, Request])
    workers: dict[int, WorkerId] = field(default_factory=dict[int, WorkerId])
    inbox: dict[tuple[int, str], Item] = field(default_factory=dict[tuple[int, str], Item])
    last_signal: int = 0
    left_over: set[str] = field(default_factory=set[str])
    """Keys of what was intended in generations that were terminated: whoever held them may not know yet."""

    def renew(self) -> None:
        """Begin a new generation."""
        if self.terminated:
            self.left_over |= {intent.key for intent in self.intents.values()} | {""}
        self.generation += 1
        self.version, self.digest, self.at = 0, b"", None
        self.closed = self.terminated = False
        self.rows, self.intents, self.outcomes = [], {}, set()
        self.attempted, self.fresh = set(), set()
        self.approvals, self.last_signal = {}, 0

    def unread(self) -> list[str]:
        """Return the accepted messages of this generation that were not consumed."""
        return [
            key[1]
            for key, item in self.inbox.items()
            if key[0] == max(self.generation, 1) and not item.consumed
        ]
