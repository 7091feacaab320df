"""The rows of a memory store, and the verbs by which a commit is judged over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

from outlast.journal.entry import StampedRow
from outlast.store.change import (
    OTHER_RUN,
    SAGA,
    ApprovalRow,
    MessageKind,
    OperationPut,
    OutboxItem,
    RunHead,
    RunKey,
    Watch,
    WorkerId,
)
from outlast.store.condition import KNOWN_MESSAGES, PENDING
from outlast.store.notice import NoticeRow
from outlast.store.protocol import RELAY_AFTER
from outlast.store.request import RequestRow
from outlast.store.rows import InboxRow, RunState, TaskState
from outlast.store.sticky import StickyRow


class MemoryRun:
    """The rows of one run id; see `RunRows`."""

    def __init__(self, key: RunKey) -> None:
        self.key = key
        self.state: RunState | None = None
        self.journals: dict[int, list[StampedRow]] = {}
        self.inbox: dict[tuple[int, str], InboxRow] = {}
        self.operations: dict[str, OperationPut] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.former_approvals: list[ApprovalRow] = []
        self.tasks_by_operation: dict[str, TaskState] = {}
        self.outbox: dict[int, tuple[datetime, OutboxItem]] = {}
        self.watches: set[Watch] = set()
        self.notices: dict[tuple[int, str, str], NoticeRow] = {}
        self._last_message = 0
        self._last_item = 0
        self._unread: dict[int, int] = {}

    @property
    def head(self) -> RunHead:
        """The run's row, of a run that exists."""
        assert self.state is not None
        return self.state.head

    # the inbox

    def message(self, incarnation: int, message_id: str) -> InboxRow | None:
        """Return an item of the inbox."""
        return self.inbox.get((incarnation, message_id))

    def unread(self, incarnation: int) -> list[InboxRow]:
        """Return what is not consumed, in order of arrival."""
        return [
            one
            for one in self.inbox.values()
            if not one.consumed and one.incarnation == incarnation
        ]

    def unread_count(self, incarnation: int) -> int:
        """Return how many items that are."""
        return self._unread.get(incarnation, 0)

    def add_message(self, row: InboxRow) -> None:
        """Add an item with the next number."""
        self._last_message += 1
        stamped = replace(row.stamped, number=self._last_message)
        self.put_message(replace(row, stamped=stamped))

    def put_message(self, row: InboxRow) -> None:
        """Write an item."""
        place = row.incarnation, row.stamped.message.message_id
        known = self.inbox.get(place)
        change = int(not row.consumed) - int(known is not None and not known.consumed)
        self._unread[row.incarnation] = self._unread.get(row.incarnation, 0) + change
        self.inbox[place] = row

    def empty_unread(self) -> None:
        """Drop the bodies of what nobody will consume."""
        for item in list(self.inbox.values()):
            if not item.consumed:
                message = replace(item.stamped.message, body=b"")
                self.put_message(replace(item, stamped=replace(item.stamped, message=message)))

    def forget_messages(self, incarnation: int) -> None:
        """Drop all but the last, and those that wait."""
        if len(self.inbox) <= KNOWN_MESSAGES:
            return
        for place, item in list(self.inbox.items()):
            is_old = item.stamped.number <= self._last_message - KNOWN_MESSAGES
            if is_old and not _waits(item, incarnation):
                del self.inbox[place]

    # the journal

    def append(self, generation: int, rows: Sequence[StampedRow]) -> None:
        """Append to a journal."""
        self.journals.setdefault(generation, []).extend(rows)

    def rows(self, generation: int | None) -> list[StampedRow]:
        """Return the journal of a generation, by default the present one."""
        if self.state is None:
            return []
        return self.journals.get(
            self.state.head.generation if generation is None else generation, []
        )

    # open operations

    def operation(self, operation: str) -> OperationPut | None:
        """Return an open operation."""
        return self.operations.get(operation)

    def other_runs(self) -> list[OperationPut]:
        """Return those that stand for other runs."""
        rows = (self.operations[operation] for operation in sorted(self.operations))
        return [row for row in rows if row.kind in OTHER_RUN]

    def has_saga(self) -> bool:
        """Whether a saga is open."""
        return any(row.kind == SAGA for row in self.operations.values())

    def put_operation(self, row: OperationPut) -> None:
        """Write an open operation."""
        self.operations[row.operation] = row

    def drop_operation(self, operation: str) -> None:
        """Drop an operation."""
        self.operations.pop(operation, None)

    def drop_operations(self) -> None:
        """Drop all operations."""
        self.operations.clear()

    # requests to people

    def approval(self, approval_id: str) -> ApprovalRow | None:
        """Return an approval of the present generation."""
        return self.approvals.get(approval_id)

    def pending_approvals(self) -> list[ApprovalRow]:
        """Return those that wait."""
        return [row for row in self.approvals.values() if row.state == PENDING]

    def put_approval(self, row: ApprovalRow) -> None:
        """Write an approval."""
        self.approvals[row.put.approval_id] = row

    def leave_approvals(self) -> None:
        """Make those that there are former ones."""
        self.former_approvals.extend(self.approvals.values())
        self.approvals.clear()

    def notice(self, generation: int, approval_id: str, notice: str) -> NoticeRow | None:
        """Return a notice."""
        return self.notices.get((generation, approval_id, notice))

    def put_notice(self, row: NoticeRow) -> None:
        """Write a notice."""
        self.notices[row.generation, row.approval_id, row.notice] = row

    def drop_notice(self, row: NoticeRow) -> None:
        """Drop a notice."""
        self.notices.pop((row.generation, row.approval_id, row.notice), None)

    def close_notices(self, generation: int, approval_id: str) -> None:
        """Drop the notices of a request."""
        for place in [one for one in self.notices if one[:2] == (generation, approval_id)]:
            del self.notices[place]

    def end_notices(self) -> None:
        """Drop all notices."""
        self.notices.clear()

    # tasks

    def task(self, operation: str) -> TaskState | None:
        """Return a task."""
        return self.tasks_by_operation.get(operation)

    def tasks(self) -> list[TaskState]:
        """Return all tasks, by operation."""
        found = self.tasks_by_operation
        return [found[operation] for operation in sorted(found)]

    def put_task(self, task: TaskState) -> None:
        """Write a task."""
        self.tasks_by_operation[task.row.key.operation] = task

    def drop_task(self, operation: str) -> None:
        """Drop a task."""
        self.tasks_by_operation.pop(operation, None)

    def drop_tasks(self) -> None:
        """Drop all tasks."""
        self.tasks_by_operation.clear()

    # other runs

    def add_outbox(self, items: Iterable[OutboxItem], at: datetime) -> bool:
        """Add items with the next numbers."""
        before = self._last_item
        for item in items:
            self._last_item += 1
            self.outbox[self._last_item] = (at, replace(item, number=self._last_item))
        return self._last_item > before

    def clear_outbox(self, numbers: Iterable[int]) -> None:
        """Remove items."""
        for number in numbers:
            self.outbox.pop(number, None)

    def watch(self, watch: Watch) -> None:
        """Let a watcher be told of the end."""
        self.watches.add(watch)

    def unwatch(self, watch: Watch) -> None:
        """Tell a watcher nothing more."""
        self.watches.discard(watch)

    def take_watches(self) -> list[Watch]:
        """Return who watches, and forget them."""
        found = sorted(self.watches, key=lambda one: (one.watcher, one.generation, one.operation))
        self.watches.clear()
        return found


class MemoryRows:
    """All rows of a memory store; see `Rows`.

    Args:
        live: Returns whether the lease of a worker still runs.
        now: Returns the store's time.
    """

    def __init__(self, live: Callable[[WorkerId], bool], now: Callable[[], datetime]) -> None:
        self._live = live
        self._now = now
        self._runs: dict[RunKey, MemoryRun] = {}
        self.controls: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.requests: dict[tuple[str, str], RequestRow] = {}
        self.stickies: dict[str, dict[str, StickyRow]] = {}

    def live(self, worker: WorkerId) -> bool:
        """Whether a worker's lease still runs."""
        return self._live(worker)

    def run(self, tenant: str, run_id: str) -> MemoryRun:
        """Return the rows of a run id, which may have none."""
        key = RunKey(tenant, run_id)
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = MemoryRun(key)
        return found

    def find(self, key: RunKey) -> MemoryRun | None:
        """Return the rows of a run id that has any."""
        return self._runs.get(key)

    def all_rows(self) -> list[MemoryRun]:
        """Return the rows of all run ids."""
        return list(self._runs.values())

    def states(self) -> list[tuple[MemoryRun, RunState]]:
        """Return the rows of all runs, each with the run's own."""
        return [(run, run.state) for run in self._runs.values() if run.state is not None]

    def control(self, tenant: str, name: str) -> tuple[int, bytes]:
        """Return version and body of a control row."""
        return self.controls.get((tenant, name), (0, b""))

    def put_control(self, tenant: str, name: str, version: int, body: bytes) -> None:
        """Write a control row."""
        self.controls[tenant, name] = (version, body)

    def sticky(self, tenant: str, sticky_id: str) -> StickyRow | None:
        """Return a decision that sticks."""
        return self.stickies.get(tenant, {}).get(sticky_id)

    def put_sticky(self, row: StickyRow) -> None:
        """Write a decision that sticks."""
        self.stickies.setdefault(row.tenant, {})[row.sticky_id] = row

    def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        return self.requests.get((tenant, request_id))

    def put_request(self, row: RequestRow) -> None:
        """Write the record of a request."""
        self.requests[row.tenant, row.request_id] = row

    def drop_request(self, tenant: str, request_id: str) -> None:
        """Drop the record of a request."""
        self.requests.pop((tenant, request_id), None)

    def expired_requests(self, tenant: str, limit: int) -> list[str]:
        """Return the ids of records whose time is over, oldest first."""
        now = self._now()
        expired = sorted(
            (row.expires_at, row.request_id)
            for row in self.requests.values()
            if row.tenant == tenant and row.expires_at is not None and row.expires_at <= now
        )
        return [request_id for _, request_id in expired[:limit]]

    def due_notices(self, tenant: str, limit: int) -> list[NoticeRow]:
        """Return open notices that are due."""
        now = self._now()
        return [row for row in self.open_notices(tenant) if row.due_at <= now][:limit]

    def open_notices(self, tenant: str) -> list[NoticeRow]:
        """Return open notices, in the order in which they are due; of all tenants where none is named."""
        rows = [
            row
            for run in self._runs.values()
            for row in run.notices.values()
            if row.state == "open" and tenant in {"", row.tenant}
        ]
        return sorted(rows, key=_due_order)

    def items(self) -> list[tuple[datetime, RunKey, OutboxItem]]:
        """Return what is in the outboxes, oldest first."""
        found = [
            (at, run.key, number, item)
            for run in self._runs.values()
            for number, (at, item) in run.outbox.items()
        ]
        return [(at, key, item) for at, key, _, item in sorted(found, key=lambda one: one[:3])]

    def next_relay(self, now: datetime) -> datetime | None:
        """Return when the oldest item is anybody's; see `Claim`."""
        times = [at for at, _, _ in self.items()]
        if not times:
            return None
        return now if max(times) > now else min(times) + RELAY_AFTER


def _due_order(row: NoticeRow) -> tuple[datetime, str, str, int, str, str]:
    return (row.due_at, row.tenant, row.run_id, row.generation, row.approval_id, row.notice)


def _waits(item: InboxRow, incarnation: int) -> bool:
    """Whether the run has yet to read or to answer a message."""
    if item.incarnation != incarnation:
        return False
    is_update = item.stamped.message.kind is MessageKind.UPDATE
    return not item.consumed or (is_update and item.answer is None)
