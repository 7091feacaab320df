"""What a judge of changes sees of a store: the rows of each run, and those that belong to none.

A store that judges in memory what it keeps elsewhere gives the judge these verbs over what it has read, and writes afterwards what
was put, dropped and appended by them. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from msgspec import Struct

from outlast.journal.entry import StampedRow
from outlast.store.change import (
    ApprovalRow,
    OperationPut,
    OutboxItem,
    RunHead,
    StampedMessage,
    Watch,
    WorkerId,
)
from outlast.store.moment import EPOCH, Instant
from outlast.store.notice import NoticeRow
from outlast.store.request import RequestRow
from outlast.store.sticky import StickyRow
from outlast.store.task import TaskRow


class Moment(NamedTuple):
    """The store's time, and the same moment on the clock of its leases."""

    now: datetime
    instant: Instant


class RunState(Struct, frozen=True):
    """A run's row, with what only the store knows of it.

    Args:
        due: Since or from when it can be claimed; None while it is owned, paused, closed or waits for mail.
        due_set_at: When that was set, by the wall clock.
        stopped: When its last owner could last have begun an attempt.
        calls: Whether there is mail that offers it.
        unfit_builds: That are known not to fit it.
        ending: Whether it takes no more signals and updates.
    """

    head: RunHead
    due: datetime | None = None
    due_set_at: datetime = EPOCH
    stopped: Instant | None = None
    calls: bool = False
    unfit_builds: tuple[str, ...] = ()
    ending: bool = False


class InboxRow(Struct, frozen=True):
    """An item of an inbox.

    Args:
        incarnation: The generation that began the incarnation that it is for.
        answer: To an update, once it is answered; what it says may be left out.
    """

    stamped: StampedMessage
    incarnation: int
    consumed: bool = False
    answer: bytes | None = None


class TaskState(Struct, frozen=True):
    """A task's row, with what only the store knows of it.

    Args:
        due: Since or from when it may be taken; gives the order.
        set_at: When that was set, by the wall clock.
        held: Whether its run is paused.
        arguments: None where they were not read; then they stay as they are.
        progress: The same.
    """

    row: TaskRow
    due: datetime
    set_at: datetime
    held: bool = False
    arguments: bytes | None = None
    progress: bytes | None = None


class RunRows(Protocol):
    """The rows of one run id, which may have no run yet."""

    state: RunState | None
    """The run's row; None where there is no run. Set to write it."""

    def message(self, incarnation: int, message_id: str) -> InboxRow | None:
        """Return an item of the inbox of one incarnation."""
        ...

    def unread(self, incarnation: int) -> Iterable[InboxRow]:
        """Return what is not consumed of that incarnation, in order of arrival."""
        ...

    def unread_count(self, incarnation: int) -> int:
        """Return how many items that are."""
        ...

    def add_message(self, row: InboxRow) -> None:
        """Add an item, which gets the next number."""
        ...

    def put_message(self, row: InboxRow) -> None:
        """Write whether an item is consumed, and then without its body, and what it was answered."""
        ...

    def empty_unread(self) -> None:
        """Drop the bodies of what former incarnations have not consumed."""
        ...

    def forget_messages(self, incarnation: int) -> None:
        """Drop items but the last 10,000, and those of that incarnation that are yet to be read or answered."""
        ...

    def append(self, generation: int, rows: Sequence[StampedRow]) -> None:
        """Append to the journal of one generation."""
        ...

    def operation(self, operation: str) -> OperationPut | None:
        """Return the row of an open operation."""
        ...

    def other_runs(self) -> list[OperationPut]:
        """Return the rows that stand for other runs, by operation."""
        ...

    def has_saga(self) -> bool:
        """Whether a saga is open."""
        ...

    def put_operation(self, row: OperationPut) -> None:
        """Write the row of an open operation."""
        ...

    def drop_operation(self, operation: str) -> None:
        """Drop the row of an operation, if there is one."""
        ...

    def drop_operations(self) -> None:
        """Drop the rows of all operations."""
        ...

    def approval(self, approval_id: str) -> ApprovalRow | None:
        """Return an approval of the present generation."""
        ...

    def pending_approvals(self) -> list[ApprovalRow]:
        """Return those of the present generation that wait."""
        ...

    def put_approval(self, row: ApprovalRow) -> None:
        """Write an approval of the present generation."""
        ...

    def leave_approvals(self) -> None:
        """The generation is over: those it has are former ones."""
        ...

    def task(self, operation: str) -> TaskState | None:
        """Return the task of an operation."""
        ...

    def tasks(self) -> list[TaskState]:
        """Return all tasks."""
        ...

    def put_task(self, task: TaskState) -> None:
        """Write a task."""
        ...

    def drop_task(self, operation: str) -> None:
        """Drop the task of an operation, if there is one."""
        ...

    def drop_tasks(self) -> None:
        """Drop all tasks."""
        ...

    def add_outbox(self, items: Iterable[OutboxItem], at: datetime) -> bool:
        """Add items to the outbox, which get the next numbers; whether there were any."""
        ...

    def clear_outbox(self, numbers: Iterable[int]) -> None:
        """Remove items."""
        ...

    def watch(self, watch: Watch) -> None:
        """Let a watcher be told of the end of the run."""
        ...

    def unwatch(self, watch: Watch) -> None:
        """Tell a watcher nothing more."""
        ...

    def take_watches(self) -> list[Watch]:
        """Return who watches the run, in order, and forget them."""
        ...

    def notice(self, generation: int, approval_id: str, notice: str) -> NoticeRow | None:
        """Return a notice."""
        ...

    def put_notice(self, row: NoticeRow) -> None:
        """Write a notice."""
        ...

    def drop_notice(self, row: NoticeRow) -> None:
        """Drop a notice."""
        ...

    def close_notices(self, generation: int, approval_id: str) -> None:
        """Drop the notices of a request."""
        ...

    def end_notices(self) -> None:
        """Drop all notices."""
        ...


class Rows(Protocol):
    """The rows of a store, as far as a change may look at them."""

    def run(self, tenant: str, run_id: str) -> RunRows:
        """Return the rows of a run id."""
        ...

    def live(self, worker: WorkerId) -> bool:
        """Whether a worker's lease still runs."""
        ...

    def control(self, tenant: str, name: str) -> tuple[int, bytes]:
        """Return version and body of a control row; 0 and nothing where there is none."""
        ...

    def put_control(self, tenant: str, name: str, version: int, body: bytes) -> None:
        """Write a control row."""
        ...

    def sticky(self, tenant: str, sticky_id: str) -> StickyRow | None:
        """Return a decision that sticks."""
        ...

    def put_sticky(self, row: StickyRow) -> None:
        """Write a decision that sticks."""
        ...

    def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request, as it is stored."""
        ...

    def put_request(self, row: RequestRow) -> None:
        """Write the record of a request."""
        ...

    def drop_request(self, tenant: str, request_id: str) -> None:
        """Drop the record of a request."""
        ...

    def expired_requests(self, tenant: str, limit: int) -> list[str]:
        """Return the ids of records whose time is over, oldest first."""
        ...

    def due_notices(self, tenant: str, limit: int) -> list[NoticeRow]:
        """Return open notices that are due and that nobody has, the longest due first; of all tenants where none is named."""
        ...
