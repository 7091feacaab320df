"""The contract of a store, and nothing else. Every store and every wrapper of one passes `outlast.testing.conformance`.

Each verb is atomic. Time is the store's: leases, timers and deadlines are judged by its clock, never by a caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct

from outlast.journal.entry import StampedRow
from outlast.store.change import (
    ApprovalRow,
    Change,
    MessageState,
    OperationPut,
    OutboxItem,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    Verdict,
    WorkerId,
    WorkerRow,
)
from outlast.store.figures import Figures
from outlast.store.notice import NoticeRow
from outlast.store.request import RequestRow, RequestState
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import StickyFilter
from outlast.store.task import TaskClaim, TaskKey, TaskRow

RELAY_AFTER = timedelta(seconds=2)
"""The worker whose commit put an item into an outbox sees to it at once; what is left after so long is anybody's."""

SUSPECT_LAPSES = 3
"""Owners that died in a row without any new entry, after which a run is taken up alone: it may be what kills them, or it may
only have been beside that."""


class ClaimedRun(Struct, frozen=True):
    """A run that this worker now owns, at a new epoch.

    Args:
        stopped_ago: How long ago its former owner could last have begun an attempt: since it gave the run back, died (an OS
            lock proves it) or lost its lease. None when nobody owned it before.
    """

    head: RunHead
    stopped_ago: timedelta | None


class Claim(Struct, frozen=True):
    """What a look at the store brought.

    Args:
        runs: Newly owned.
        mail: Runs that the worker owned already and that have messages.
        next_due: When the next parked run of these workflows comes due, if any.
        now: The store's time.
        held: How many runs the worker owns now. Fewer than it has in memory: one was terminated, or is another's.
        next_relay: When the oldest item of any outbox is anybody's (`RELAY_AFTER`); None when all are empty. An item from a time that
            has not come yet is anybody's now: the wall clock was set back since.
    """

    runs: tuple[ClaimedRun, ...]
    mail: tuple[RunKey, ...]
    next_due: datetime | None
    now: datetime
    held: int = 0
    next_relay: datetime | None = None


class RunImage(Struct, frozen=True):
    """All that is stored about the current generation of a run, read at one moment.

    Args:
        rows: The journal, by `seq`, without gaps.
        messages: Not yet consumed, in order of arrival.
        tasks: Of its remote steps, by operation.
    """

    head: RunHead
    rows: tuple[StampedRow, ...]
    operations: tuple[OperationPut, ...]
    messages: tuple[StampedMessage, ...]
    approvals: tuple[ApprovalRow, ...]
    tasks: tuple[TaskRow, ...] = ()


class LiveWorker(Struct, frozen=True):
    """A registered worker, and whether its lease still runs.

    Args:
        report: What it has said of itself last (`Store.report`); empty where it has said nothing.
    """

    row: WorkerRow
    live: bool
    seen_ago: timedelta
    report: bytes = b""


class DoubtRow(Struct, frozen=True):
    """An effect of an open run that is in doubt: its row says so (`OperationPut.in_doubt`)."""

    run: RunKey
    operation: str
    name: str


class GenerationRow(Struct, frozen=True):
    """A generation of a run, as the last entry of its journal shows it.

    Args:
        entries: How many it has.
        kind: Of the last entry: how it ended, unless it goes on or was terminated.
        at: When that was committed.
    """

    generation: int
    entries: int
    kind: str
    at: datetime


class StoreReader(Protocol):
    """What lists and pages read. Nothing here changes anything."""

    async def head(self, run: RunKey) -> RunHead | None:
        """Return the run's row."""
        ...

    async def heads(
        self,
        tenant: str,
        *,
        statuses: frozenset[Status] = frozenset(),
        workflow: str = "",
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RunHead]:
        """Return a page of the tenant's runs, newest first.

        Args:
            statuses: Only these; all when empty.
            before: `(created_at, run_id)` of the last one of the page before.
        """
        ...

    async def journal(
        self, run: RunKey, *, generation: int | None = None, after: int = -1
    ) -> tuple[StampedRow, ...]:
        """Return the rows of one generation, by default the current one, by `seq`.

        Args:
            after: Only rows whose `seq` is greater. What is returned begins and ends between two commits.
        """
        ...

    async def latest(
        self, run: RunKey, kind: str, name: str, *, generation: int | None = None
    ) -> StampedRow | None:
        """Return the last row of this kind and name in one generation, by default the current one; None when there is none.

        For the kind `published` the cost does not grow with the journal.
        """
        ...

    async def answer(self, run: RunKey, message_id: str) -> MessageState | None:
        """Return what has become of an update; None when no generation of the run knows one of that id."""
        ...

    async def generations(self, run: RunKey, *, limit: int = 100) -> tuple[GenerationRow, ...]:
        """Return the run's generations, newest first, without reading their journals."""
        ...

    async def last_entry(self, run: RunKey, generation: int) -> StampedRow | None:
        """Return the last row of one generation's journal: how it ended, once it has."""
        ...

    async def approvals(
        self,
        tenant: str,
        *,
        pending: bool = True,
        run: RunKey | None = None,
        limit: int | None = None,
        after: tuple[datetime, str, str] | None = None,
    ) -> list[ApprovalRow]:
        """Return a page of approvals, oldest first; a pending one past its time is listed as `expired`.

        The cost of those that are pending does not grow with those that are over.

        Args:
            pending: Only those that wait now; all, also of former generations, when false.
            run: Only this run's.
            limit: So many at most; None for all.
            after: `(requested_at, run_id, approval_id)` of the last one of the page before.
        """
        ...

    async def sticky(self, tenant: str, wanted: StickyFilter) -> list[StickyRow]:
        """Return a page of the decisions that stick, in the order in which they were made.

        The cost of those that reach a run does not grow with those of other runs.
        """
        ...

    async def notices(self, run: RunKey) -> list[NoticeRow]:
        """Return the notices of the run's requests that wait, by request and time: what was sent, what is to be, what could not be."""
        ...

    async def next_notice(self, tenant: str = "") -> datetime | None:
        """Return when the next notice is due; None when none is to be sent.

        Args:
            tenant: Whose; empty for those of all tenants.
        """
        ...

    async def doubts(
        self,
        tenant: str,
        *,
        effect: str = "",
        workflow: str = "",
        limit: int = 100,
        after: tuple[str, str] | None = None,
    ) -> list[DoubtRow]:
        """Return a page of the tenant's effects in doubt, by run and operation. The cost grows with their number, and with that of no runs.

        Args:
            effect: Only those of this name; all when empty.
            workflow: Only those of runs of this workflow; all when empty.
            after: Run id and operation of the last one of the page before.
        """
        ...

    async def operation(self, run: RunKey, operation: str) -> OperationPut | None:
        """Return the row of one open operation of the run's current generation; None where it has none."""
        ...

    async def tasks(self, run: RunKey) -> tuple[TaskRow, ...]:
        """Return the tasks of the run's remote steps, by operation."""
        ...

    async def figures(self, tenant: str = "") -> Figures:
        """Return how much waits, and for how long, at one moment. The cost grows with what is open, and with no run that has ended.

        Args:
            tenant: Whose; empty for all tenants. Workers are counted whatever their tenants.
        """
        ...

    async def workers(self) -> list[LiveWorker]:
        """Return the registered workers."""
        ...

    async def control(self, tenant: str, name: str) -> tuple[int, bytes] | None:
        """Return version and body of a control row."""
        ...

    async def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request, with the state that it has by the store's clock; None where there is none."""
        ...

    async def requests(
        self,
        tenant: str,
        *,
        states: frozenset[RequestState],
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> list[RequestRow]:
        """Return a page of the tenant's requests that are in one of these states now, newest first, without their answers.

        Args:
            before: `(started_at, request_id)` of the last one of the page before.
        """
        ...


class Store(StoreReader, Protocol):
    """Where runs are kept."""

    async def commit(self, changes: Sequence[Change]) -> list[Verdict]:
        """Write many changes in one transaction, and say of each what became of it.

        Returns:
            One verdict a change, in order. They are written run by run, control rows before all that belongs to their tenant
            (`place_of`): a guard is judged by the rows as this commit leaves them. An owned change of a worker whose lease has lapsed is `Fenced`, whoever holds the run;
            every applied owned change renews its worker's lease. `RunChange` is applied when epoch, owner and version fit and all its
            conditions hold; recognised as applied when the head's version is `version + 1` and its digest equal; otherwise `Fenced`
            (epoch, owner), `Conflict` (version) or `Refused`. A row that cannot be read refuses the changes that concern it.

        Raises:
            StoreUnavailableError: Nothing was written, and nothing will be unless sent again.
        """
        ...

    async def register(self, row: WorkerRow) -> None:
        """Announce a worker; its lease begins."""
        ...

    def renew(self, worker: WorkerId) -> bool:
        """Renew a worker's lease. Blocks; callable from any thread, also while the event loop stands still.

        Returns:
            False when the lease has lapsed or the worker is unknown. It never comes back then.
        """
        ...

    async def report(self, worker: WorkerId, body: bytes) -> None:
        """Keep what a worker says of itself, as JSON, in the place of what it said before; nothing where it is not registered.

        It is plain, and no lease is renewed by it.
        """
        ...

    async def retire(self, worker: WorkerId) -> None:
        """Forget a worker that ends; runs that it still owns become `ready`, as given back now, and its tasks are offered again."""
        ...

    async def claim(
        self, worker: WorkerId, workflows: frozenset[str], limit: int, *, released: bool = False
    ) -> Claim:
        """Take up to `limit` open runs of these workflows that have something to do and no living owner.

        That is: `ready`; past `wake_at`; with mail; or owned by a worker whose lease lapsed or whose death is proved. A run that was
        given back at a time which has not come yet is taken too: the wall clock was set back since, and its `wake_at` means nothing
        any more. A paused run is taken for mail that resumes or cancels it, and for nothing else. A run whose unfit builds (`HeadUpdate.unfit_build`) include the worker's is taken for
        mail only. Claiming leaves them as they are. A run whose row cannot be read, or whose status nobody knows, is skipped.
        Oldest first by the time since which it could have gone on; those whose times mean nothing last. Takes nothing for a worker whose lease has lapsed.

        A worker owns one suspect at a time: of runs with `lapses` of `SUSPECT_LAPSES` or more at most one is taken, and none
        while the worker owns one. So the deaths that a run causes are no longer counted against its neighbours.

        Args:
            released: Only runs that were released (`Release`), as a paused worker does. The cost does not grow with the others. Without
                it whatever is taken is released no longer.
        """
        ...

    async def claim_tasks(
        self,
        worker: WorkerId,
        queues: frozenset[str],
        steps: frozenset[str],
        *,
        limit: int,
        known: frozenset[TaskKey] = frozenset(),
    ) -> TaskClaim:
        """Take up to `limit` tasks of these queues and steps that may be taken and are with no living worker.

        Oldest first by the time since which it could have been taken first; a task whose worker lapsed or is proved dead keeps its
        place. A due time that was set by a wall clock which was ahead means nothing, and its task comes last. Nothing that is held (`RunChange.hold`) is taken, nothing
        by a worker whose lease has lapsed, and of tasks with `lapses` of `SUSPECT_LAPSES` or more a worker has one at a time.

        Args:
            known: What the worker works on: what is its own beside these is told again, and what of these is not is `lost`.
        """
        ...

    async def owned(self, worker: WorkerId) -> list[RunHead]:
        """Return the runs that a worker owns, by run.

        After an answer was lost (of a claim, or of a birth) a worker finds by this what it owns without knowing.
        """
        ...

    async def load(self, run: RunKey) -> RunImage | None:
        """Return everything about a run's current generation."""
        ...

    async def mail(self, run: RunKey) -> tuple[StampedMessage, ...]:
        """Return the run's messages that are not yet consumed, in order of arrival."""
        ...

    async def outbox(
        self, limit: int, *, run: RunKey | None = None, age: timedelta = timedelta(0)
    ) -> list[tuple[RunKey, OutboxItem]]:
        """Return items that wait for the relay, oldest first; those of one sender in the order of their numbers.

        Args:
            run: Only this sender's.
            age: Only those that have waited so long, or come from a time that has not come yet.
        """
        ...

    def now(self) -> datetime:
        """Return the store's time, or the best local estimate of it; never blocks."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the subscriber's loop when something may have changed, by anyone; return how to stop.

        A hint: calls may be lost or needless.
        """
        ...

    async def timeline(self) -> str:
        """Return the id of this store's line of history; it changes with a restore."""
        ...

    async def begin_timeline(self, why: str) -> str:
        """Say that the store was put back to an earlier state: what was committed since is forgotten. Return the new id.

        In one transaction every open run is marked as older than this (`RunHead.restored`) and not released, and the control row
        `restoration` for all tenants says that workers move only what is released from now on. Every worker is forgotten, and its runs
        are given back: one that lives begins a new life. What an earlier restore said of a run
        stays: nothing is forgotten of before the earlier of the two.

        Args:
            why: How that is known.
        """
        ...

    def describe(self) -> str:
        """Return where this store is, fit to be printed, without secrets."""
        ...

    async def close(self) -> None:
        """Stop using the store. Idempotent.

        It is no sign of death: what a worker that was not retired has begun may still act in this process.
        """
        ...
