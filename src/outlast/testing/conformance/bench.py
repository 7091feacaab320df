"""What the suite works with: a clock to steer, and short ways to make runs and changes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.journal.entry import EntryRow
from outlast.store.change import (
    Applied,
    ApprovalPut,
    Change,
    CoverRow,
    HeadUpdate,
    Message,
    MessageKind,
    PutMessage,
    RunChange,
    RunHead,
    RunKey,
    StartRun,
    Status,
    Verdict,
    WorkerId,
    WorkerRow,
    digest_of,
)
from outlast.store.protocol import Claim, Store

LEASE = timedelta(seconds=15)
WORKFLOW = "fix"
WORKFLOWS = frozenset({WORKFLOW})


class SteerableClock(Clock, Protocol):
    """A clock that stands until it is moved."""

    def advance(self, step: timedelta) -> None:
        """Let time pass, on both scales."""
        ...

    def set_wall(self, time: datetime) -> None:
        """Set the wall clock, as an administrator does: the other scale does not move."""
        ...


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self, wall: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)) -> None:
        self._wall = wall
        self._monotonic = 5000.0

    def now(self) -> datetime:
        """Return the wall time."""
        return self._wall

    def monotonic(self) -> float:
        """Return the seconds since the imagined boot."""
        return self._monotonic

    def advance(self, step: timedelta) -> None:
        """Let time pass, on both scales."""
        self._wall += step
        self._monotonic += step.total_seconds()

    def set_wall(self, time: datetime) -> None:
        """Set the wall clock alone."""
        self._wall = time


class Bench:
    """A store under test, and short ways to use it."""

    def __init__(self, store: Store, clock: SteerableClock) -> None:
        self.store = store
        self.clock = clock

    async def worker(
        self, name: str = "w1", *, build: str = "b1", lease: timedelta = LEASE
    ) -> WorkerId:
        """Register a worker."""
        worker = WorkerId(name)
        await self.store.register(WorkerRow(worker, "host", 7, build, (WORKFLOW,), lease))
        return worker

    async def one(self, change: Change) -> Verdict:
        """Commit one change and return its verdict."""
        (verdict,) = await self.store.commit([change])
        return verdict

    async def apply(self, change: Change) -> Applied:
        """Commit one change that must be applied."""
        verdict = await self.one(change)
        assert isinstance(verdict, Applied), verdict
        return verdict

    async def start(self, name: str = "run", **fields: Any) -> RunKey:
        """Start a run that must not exist yet."""
        change = starting(name, **fields)
        await self.apply(change)
        return change.run

    async def head(self, run: RunKey) -> RunHead:
        """Return the head of a run that exists."""
        head = await self.store.head(run)
        assert head is not None
        return head

    async def claim(self, worker: WorkerId, limit: int = 10) -> Claim:
        """Claim runs of the suite's workflow."""
        return await self.store.claim(worker, WORKFLOWS, limit)

    async def claim_one(self, worker: WorkerId) -> RunHead:
        """Claim exactly one run."""
        claim = await self.claim(worker)
        assert len(claim.runs) == 1, claim
        return claim.runs[0].head

    async def owned(self, name: str = "run", worker: str = "w1") -> RunHead:
        """Return the head of a new run that a new worker has claimed."""
        owner = await self.worker(worker)
        run = await self.start(name, worker=owner)
        return await self.head(run)


OpenStore: TypeAlias = Callable[[], AbstractAsyncContextManager[Bench]]


def scenario(test: Callable[[Any, Bench], Awaitable[None]]) -> Callable[[Any, OpenStore], None]:
    """Make a test method of a coroutine function that is given a bench."""

    def run(self: Any, open_store: OpenStore) -> None:
        async def main() -> None:
            async with open_store() as bench:
                await test(self, bench)

        asyncio.run(main())

    run.__name__ = test.__name__
    run.__qualname__ = test.__qualname__
    run.__doc__ = inspect.getdoc(test)
    run.__module__ = test.__module__
    return run


def row(
    seq: int, body: bytes = b"{}", *, operation: str = "", kind: str = "step_completed"
) -> EntryRow:
    """Return an entry's row."""
    return EntryRow(seq, seq, kind, operation, "name", body)


def starting(name: str = "run", *, tenant: str = "default", **fields: Any) -> StartRun:
    """Return the start of a run with one entry."""
    given: dict[str, Any] = {
        "workflow": WORKFLOW,
        "fingerprint": "f",
        "entries": (row(0, kind="started"),),
    }
    return StartRun(run=RunKey(tenant, name), **{**given, **fields})


def following(head: RunHead, /, *, entries: int = 1, **fields: Any) -> RunChange:
    """Return an owned change that follows `head`, with `entries` new entries and its digest."""
    assert head.owner is not None
    given: dict[str, Any] = {
        "worker": head.owner,
        "epoch": head.epoch,
        "version": head.version,
        "entries": tuple(row(head.next_seq + place) for place in range(entries)),
    }
    change = RunChange(run=head.run, **{**given, **fields})
    return replace(change, digest=digest_of(change))


def parking(
    head: RunHead, *, status: Status = Status.WAITING, entries: int = 0, **update: Any
) -> RunChange:
    """Return an owned change that gives the run back."""
    return following(head, entries=entries, head=HeadUpdate(status=status, release=True, **update))


def ending(head: RunHead, status: Status = Status.COMPLETED, **fields: Any) -> RunChange:
    """Return an owned change that ends the run."""
    return following(head, head=HeadUpdate(status=status, release=True), **fields)


def letter(message_id: str = "m1", *, name: str = "go", body: bytes = b'"hi"') -> Message:
    """Return a signal."""
    return Message(message_id, MessageKind.SIGNAL, name, "alice", body)


def sending(run: RunKey, message_id: str = "m1", **fields: Any) -> PutMessage:
    """Return the putting of a signal."""
    return PutMessage(run, letter(message_id), **fields)


def asking(clock: Clock, approval_id: str = "a1", **fields: Any) -> ApprovalPut:
    """Return a request with an hour to decide, two to use, and two covers."""
    given: dict[str, Any] = {
        "operation": "r:1",
        "role": "maintainer",
        "subject_sha256": "s",
        "expires_at": clock.now() + timedelta(hours=1),
        "use_by": clock.now() + timedelta(hours=2),
        "covers": (CoverRow("push", "h1"), CoverRow("open", "h2")),
        "body": b'{"shown": 1}',
    }
    return ApprovalPut(approval_id=approval_id, **{**given, **fields})
