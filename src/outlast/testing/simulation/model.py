"""What the invariants remember of a simulated store, event by event."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

import msgspec

from outlast.journal.entry import (
    EffectIntended,
    KnownChild,
    KnownEffect,
    KnownMessage,
    RunName,
    StampedRow,
)
from outlast.store.change import ApprovalPut, OperationPut, RunKey, Status, WorkerId

EDGE = 1e-6
Call: TypeAlias = tuple[str, str, int]
"""Name, action and number of an effect's call."""


class Check(Protocol):
    """Reports a violation unless something holds."""

    def __call__(
        self, holds: object, invariant: int, what: str, *, run: RunKey | None = None, at: str = ""
    ) -> None:
        """See `Invariants.check`."""
        ...


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
    votes: int = 0

    def vote(self, votes: int = 1) -> None:
        """Note that so many more have said yes."""
        self.votes += votes
        quorum = 1 if self.put.terms is None else self.put.terms.quorum
        if self.votes >= quorum:
            self.state = "approved"


@dataclass(slots=True)
class Life:
    """One life of a worker."""

    lease_seconds: float
    seen: float
    process: str
    build: str = ""

    def over(self, now: float) -> bool:
        """Whether its lease has run out."""
        return now - self.seen >= self.lease_seconds - EDGE

    @property
    def end(self) -> float:
        """When its lease runs out."""
        return self.seen + self.lease_seconds

    def runs(self, now: float) -> bool:
        """Whether its lease runs on. At the edge both are true: floats may not judge stores that count whole numbers."""
        return now - self.seen <= self.lease_seconds + EDGE


@dataclass(slots=True)
class ForkedRun:
    """What a fork brought along.

    Args:
        policy: What becomes of effects that its origin did not settle.
        may_act: Whether it may attempt effects at all.
        keys: The namespace of its keys, where that is not its own.
        known: What its origin settled and it has not used, by call, in order.
        unknown: What its origin intended and left unsettled, by call.
        since: When it was forked: its origin could have begun an attempt until then.
        elsewhere: Ids of the updates that it kept, which its origin answers.
        ends: How children of its origin ended, and which messages of that were answered.
        origin: Of which run, and of which generation of it, it is a fork; None for a child of a fork, and for a later generation.
        is_last: Whether that had ended for good.
    """

    policy: str
    may_act: bool
    keys: str
    known: dict[Call, list[KnownEffect]]
    unknown: set[Call]
    since: float
    elsewhere: set[str] = field(default_factory=set[str])
    ends: list[KnownChild | KnownMessage] = field(default_factory=list[KnownChild | KnownMessage])
    origin: RunName | None = None
    is_last: bool = False


@dataclass(slots=True)
class Run:
    """What is known of a run: of its present generation, but for owners and messages."""

    generation: int = 0
    incarnation: int = 0
    """The generation that the last start began; messages are known by it."""
    owner: WorkerId | None = None
    epoch: int = 0
    version: int = 0
    digest: bytes = b""
    at: datetime | None = None
    closed: bool = False
    terminated: bool = False
    restored: bool = False
    """What it did may be forgotten: an effect may be in doubt that was never attempted."""
    rows: list[StampedRow] = field(default_factory=list[StampedRow])
    intents: dict[str, EffectIntended] = field(default_factory=dict[str, EffectIntended])
    outcomes: set[str] = field(default_factory=set[str])
    done: set[str] = field(default_factory=set[str])
    """Operations of effects that were completed."""
    attempted: set[str] = field(default_factory=set[str])
    doubts: set[str] = field(default_factory=set[str])
    asked: set[str] = field(default_factory=set[str])
    """Ids of the updates that were taken in and have no answer."""
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Of each operation that has a row, how many attempts are recorded as failed."""
    resting: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """Of each operation that rests until its next attempt: when that is due. None has begun since."""
    handed_out: set[str] = field(default_factory=set[str])
    """Steps whose outcome comes from outside: no attempt of them may begin."""
    listening: dict[str, OperationPut] = field(default_factory=dict[str, OperationPut])
    """Of each of these, the row that says so, as it was heard of last."""
    progress: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Of each operation that has a row: the details of its last heartbeat that was kept."""
    named: dict[str, str] = field(default_factory=dict[str, str])
    """Of each operation that has a row: which step or effect that is of."""
    others: set[str] = field(default_factory=set[str])
    """Open operations that stand for other runs."""
    risky: dict[str, float] = field(default_factory=dict[str, float])
    """Of each effect with an attempt of which nobody may know the end: when that could last have begun."""
    stopped: float | None = None
    """When its last owner could last have begun an attempt, once it has none."""
    lapses: int = 0
    """Owners lost since the run last moved, as it was told to the last one."""
    fresh: set[str] = field(default_factory=set[str])
    """Effects intended since the run was last read: whoever intended them knows that no attempt was made."""
    approvals: dict[str, Request] = field(default_factory=dict[str, Request])
    workers: dict[int, WorkerId] = field(default_factory=dict[int, WorkerId])
    inbox: dict[tuple[int, str], Item] = field(default_factory=dict[tuple[int, str], Item])
    last_signal: int = 0
    published: set[str] = field(default_factory=set[str])
    """Operations that published."""
    build: str = ""
    """To which it is pinned."""
    paused: bool = False
    """Whether its journal says that nothing may begin."""
    parked: Status | None = None
    """As what it was given back, until it is taken again."""
    forked: ForkedRun | None = None
    left_over: set[str] = field(default_factory=set[str])
    """Keys of what was intended in generations that were terminated: whoever held them may not know yet."""

    def renew(self) -> None:
        """Begin a new run under the id."""
        if self.terminated:
            self.left_over |= {intent.key for intent in self.intents.values()} | {""}
        self.version, self.digest, self.at = 0, b"", None
        self.closed = self.terminated = False
        self.begin([])
        self.incarnation, self.last_signal = self.generation, 0

    def begin(self, rows: list[StampedRow]) -> None:
        """Begin a new generation; inbox, version and owner are not its own."""
        self.generation += 1
        self.rows = rows
        self.intents, self.outcomes, self.done = {}, set(), set()
        self.attempted, self.fresh, self.doubts, self.failures = set(), set(), set(), {}
        self.lapses, self.asked = 0, set()
        self.paused, self.parked, self.build = False, None, ""
        self.resting, self.risky, self.handed_out, self.progress = {}, {}, set(), {}
        self.listening = {}
        self.named = {}
        self.approvals, self.published = {}, set()
        self.forked, self.others = None, set()

    def end(self, now: float) -> None:
        """The run is over."""
        self.closed, self.failures, self.resting, self.risky = True, {}, {}, {}
        self.handed_out, self.progress = set(), {}
        self.others = set()
        self.let_go(now)
        for request in self.approvals.values():
            if request.state == "pending":
                request.state = "withdrawn"

    def begins(self, at: str, name: str) -> None:
        """A body begins; what is recorded there of another one, in whose place changed code has put this, is nothing to it."""
        if self.named.get(at, name) != name:
            self.named[at] = name
            self.failures[at], self.progress[at] = 0, b""
            self.resting.pop(at, None)
            self.handed_out.discard(at)

    def let_go(self, now: float) -> None:
        """Its owner, if it has one, has it no longer."""
        if self.owner is not None:
            self.owner, self.stopped = None, now

    def taken_over(self, stopped: float) -> None:
        """A former owner could have acted until then, and nobody knows what it has begun."""
        for at in self.intents.keys() - self.outcomes - self.doubts - self.resting.keys():
            self.risky[at] = stopped

    def key_of(self, run: RunKey, intent: EffectIntended) -> str:
        """Return the key that an effect must have: from the run, the effect, its arguments, and how often it succeeded."""
        arguments = msgspec.json.decode(intent.effective)
        equal = {
            other.operation
            for other in self.intents.values()
            if other.name == intent.name and msgspec.json.decode(other.effective) == arguments
        }
        number = 1 + len(equal & self.done)
        use = run.run_id if self.generation == 1 else f"{run.run_id}~{self.generation}"
        if self.forked is not None and self.forked.keys:
            use = self.forked.keys
        name = intent.name if number == 1 else f"{intent.name}#{number}"
        payload = hashlib.sha256(msgspec.json.encode(arguments, order="sorted")).hexdigest()
        return hashlib.sha256(f"{use}:{name}:{payload}".encode()).hexdigest()[:32]

    def unread(self) -> list[str]:
        """Return the accepted messages of this run that were not consumed."""
        return [key[1] for key, _ in self._unread()]

    def unread_kinds(self) -> set[str]:
        """Return of which kinds there are such messages."""
        return {item.kind for _, item in self._unread()}

    def _unread(self) -> list[tuple[tuple[int, str], Item]]:
        incarnation = max(self.incarnation, 1)
        items = self.inbox.items()
        return [(key, item) for key, item in items if key[0] == incarnation and not item.consumed]
