"""Rows that were read and locked, as a judge sees them, and what it has written to them: nothing is sent here.

What is not here was not asked for (`look`): a judge that is shown too little would take a row for one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    RunKey,
    Watch,
    WorkerId,
)
from outlast.store.condition import PENDING
from outlast.store.notice import NoticeRow
from outlast.store.postgres.row import Counts
from outlast.store.request import RequestRow
from outlast.store.rows import InboxRow, RunState, TaskState
from outlast.store.sticky import StickyRow

_FIRST = 1


class LoadedRun:
    """The rows of one run id, as far as they were read; see `RunRows`.

    Args:
        exists: Whether the id has a row, be it of a run or of an inbox without one.
    """

    def __init__(
        self,
        key: RunKey,
        state: RunState | None = None,
        counts: Counts | None = None,
        *,
        exists: bool = False,
    ) -> None:
        self.key = key
        self.state = state
        self.before = state
        self.counts = counts or Counts()
        self.exists = exists
        self.touched = False
        self.is_whole = not exists
        """Whether all is known of it: there is no row but those that are here, tasks and notices apart, and what was consumed and answered."""
        self.error: Exception | None = None
        incarnation = _FIRST if state is None else state.head.incarnation
        self._unread = {incarnation: self.counts.unread}
        self.message_number = self.counts.message_number
        self.outbox_number = self.counts.outbox_number
        # What is known, by its key in the run, and what of it was written.
        self._messages: dict[tuple[int, str], InboxRow] = {}
        self.new_messages: dict[tuple[int, str], InboxRow] = {}
        self.set_messages: dict[tuple[int, str], InboxRow] = {}
        self.emptied_below: int | None = None
        self.forgotten_of: int | None = None
        self.entries: list[tuple[int, StampedRow]] = []
        self._operations: dict[str, OperationPut] = {}
        self.set_operations: dict[str, OperationPut | None] = {}
        self.all_operations = False
        self._approvals: dict[str, ApprovalRow] = {}
        self.set_approvals: dict[tuple[int, str], ApprovalRow] = {}
        self._tasks: dict[str, TaskState] = {}
        self.set_tasks: dict[str, TaskState | None] = {}
        self.all_tasks = False
        self.new_items: list[tuple[datetime, OutboxItem]] = []
        self.cleared_items: list[int] = []
        self._watches: set[Watch] = set()
        self.set_watches: dict[Watch, bool] = {}
        self.all_watches = False
        self._notices: dict[tuple[int, str, str], NoticeRow] = {}
        self.set_notices: dict[tuple[int, str, str], NoticeRow | None] = {}
        self.closed_notices: list[tuple[int, str]] = []
        self.all_notices = False

    # what was read

    def know_message(self, row: InboxRow) -> None:
        """Take an item that was read."""
        self._messages[row.incarnation, row.stamped.message.message_id] = row

    def know_operation(self, row: OperationPut) -> None:
        """Take an open operation that was read."""
        self._operations[row.operation] = row

    def know_approval(self, row: ApprovalRow) -> None:
        """Take an approval of the present generation that was read."""
        self._approvals[row.put.approval_id] = row

    def know_task(self, task: TaskState) -> None:
        """Take a task that was read; what was read with its progress stays."""
        known = self._tasks.get(task.row.key.operation)
        if known is None or known.progress is None:
            self._tasks[task.row.key.operation] = task

    def know_watch(self, watch: Watch) -> None:
        """Take a watch that was read."""
        self._watches.add(watch)

    def know_notice(self, row: NoticeRow) -> None:
        """Take a notice that was read."""
        self._notices[row.generation, row.approval_id, row.notice] = row

    @property
    def counts_after(self) -> Counts:
        """What the row counts once everything is written."""
        incarnation = _FIRST if self.state is None else self.state.head.incarnation
        return Counts(
            self.message_number,
            self._unread.get(incarnation, 0),
            self.outbox_number,
            self.counts.touched + 1,
        )

    @property
    def is_written(self) -> bool:
        """Whether anything of the run is to be written."""
        return self.touched or self.state is not self.before

    def settled(self) -> LoadedRun:
        """Return what is known of the run once everything is written."""
        counts = self.counts_after if self.is_written else self.counts
        after = LoadedRun(self.key, self.state, counts, exists=True)
        after.is_whole = self.is_whole
        after._messages = {place: row for place, row in self._messages.items() if _is_wanted(row)}
        after._operations, after._approvals = self._operations, self._approvals
        after._watches = self._watches
        return after

    # the inbox

    def message(self, incarnation: int, message_id: str) -> InboxRow | None:
        """Return an item of the inbox."""
        return self._messages.get((incarnation, message_id))

    def unread(self, incarnation: int) -> Iterable[InboxRow]:
        """Return what is not consumed, in order of arrival."""
        found = [
            one
            for one in self._messages.values()
            if one.incarnation == incarnation and not one.consumed
        ]
        return sorted(found, key=lambda one: one.stamped.number)

    def unread_count(self, incarnation: int) -> int:
        """Return how many items that are."""
        return self._unread.get(incarnation, 0)

    def add_message(self, row: InboxRow) -> None:
        """Add an item with the next number."""
        self.touched = True
        self.message_number += 1
        row = replace(row, stamped=replace(row.stamped, number=self.message_number))
        place = row.incarnation, row.stamped.message.message_id
        self._messages[place] = self.new_messages[place] = row
        self._unread[row.incarnation] = self._unread.get(row.incarnation, 0) + 1

    def put_message(self, row: InboxRow) -> None:
        """Write an item that is there."""
        self.touched = True
        place = row.incarnation, row.stamped.message.message_id
        if row.consumed and not self._messages[place].consumed:
            self._unread[row.incarnation] = self._unread.get(row.incarnation, 0) - 1
        self._messages[place] = row
        (self.new_messages if place in self.new_messages else self.set_messages)[place] = row

    def empty_unread(self) -> None:
        """Drop the bodies of what nobody will consume."""
        self.touched = True
        self.emptied_below = self.state.head.generation if self.state is not None else _FIRST

    def forget_messages(self, incarnation: int) -> None:
        """Drop all but the last, and those that wait."""
        self.forgotten_of = incarnation

    # the journal

    def append(self, generation: int, rows: Sequence[StampedRow]) -> None:
        """Append to a journal."""
        self.entries.extend((generation, row) for row in rows)

    # open operations

    def operation(self, operation: str) -> OperationPut | None:
        """Return an open operation."""
        return self._operations.get(operation)

    def other_runs(self) -> list[OperationPut]:
        """Return those that stand for other runs."""
        rows = (self._operations[operation] for operation in sorted(self._operations))
        return [row for row in rows if row.kind in OTHER_RUN]

    def has_saga(self) -> bool:
        """Whether a saga is open."""
        return any(row.kind == SAGA for row in self._operations.values())

    def put_operation(self, row: OperationPut) -> None:
        """Write an open operation."""
        self.touched = True
        self._operations[row.operation] = self.set_operations[row.operation] = row

    def drop_operation(self, operation: str) -> None:
        """Drop an operation."""
        self.touched = True
        self._operations.pop(operation, None)
        self.set_operations[operation] = None

    def drop_operations(self) -> None:
        """Drop all operations."""
        self.touched = self.all_operations = True
        self._operations.clear()
        self.set_operations.clear()

    # requests to people

    def approval(self, approval_id: str) -> ApprovalRow | None:
        """Return an approval of the present generation."""
        return self._approvals.get(approval_id)

    def pending_approvals(self) -> list[ApprovalRow]:
        """Return those that wait."""
        return [row for row in self._approvals.values() if row.state == PENDING]

    def put_approval(self, row: ApprovalRow) -> None:
        """Write an approval of the present generation."""
        assert self.state is not None
        self.touched = True
        self._approvals[row.put.approval_id] = row
        self.set_approvals[self.state.head.generation, row.put.approval_id] = row

    def leave_approvals(self) -> None:
        """Those that there are belong to a former generation from now on."""
        self._approvals.clear()

    def notice(self, generation: int, approval_id: str, notice: str) -> NoticeRow | None:
        """Return a notice."""
        return self._notices.get((generation, approval_id, notice))

    def put_notice(self, row: NoticeRow) -> None:
        """Write a notice."""
        place = row.generation, row.approval_id, row.notice
        self._notices[place] = self.set_notices[place] = row

    def drop_notice(self, row: NoticeRow) -> None:
        """Drop a notice."""
        place = row.generation, row.approval_id, row.notice
        self._notices.pop(place, None)
        self.set_notices[place] = None

    def close_notices(self, generation: int, approval_id: str) -> None:
        """Drop the notices of a request."""
        request = generation, approval_id
        self.closed_notices.append(request)
        for known in (self._notices, self.set_notices):
            for place in [place for place in known if place[:2] == request]:
                del known[place]

    def end_notices(self) -> None:
        """Drop all notices."""
        self.all_notices = True
        self._notices.clear()
        self.set_notices.clear()

    # tasks

    def task(self, operation: str) -> TaskState | None:
        """Return a task."""
        return self._tasks.get(operation)

    def tasks(self) -> list[TaskState]:
        """Return all tasks, by operation."""
        return [self._tasks[operation] for operation in sorted(self._tasks)]

    def put_task(self, task: TaskState) -> None:
        """Write a task."""
        self.touched = True
        operation = task.row.key.operation
        before = self.set_tasks.get(operation)
        if task.arguments is None and before is not None:
            # It was put by the same commit: what was not read is known.
            task = replace(task, arguments=before.arguments)
        self._tasks[operation] = self.set_tasks[operation] = task

    def drop_task(self, operation: str) -> None:
        """Drop a task."""
        self.touched = True
        self._tasks.pop(operation, None)
        self.set_tasks[operation] = None

    def drop_tasks(self) -> None:
        """Drop all tasks."""
        self.touched = self.all_tasks = True
        self._tasks.clear()
        self.set_tasks.clear()

    # other runs

    def add_outbox(self, items: Iterable[OutboxItem], at: datetime) -> bool:
        """Add items with the next numbers."""
        before = self.outbox_number
        for item in items:
            self.outbox_number += 1
            self.new_items.append((at, replace(item, number=self.outbox_number)))
        self.touched = self.touched or self.outbox_number > before
        return self.outbox_number > before

    def clear_outbox(self, numbers: Iterable[int]) -> None:
        """Remove items."""
        self.cleared_items.extend(numbers)

    def watch(self, watch: Watch) -> None:
        """Let a watcher be told of the end."""
        self.touched = True
        self._watches.add(watch)
        self.set_watches[watch] = True

    def unwatch(self, watch: Watch) -> None:
        """Tell a watcher nothing more."""
        self.touched = True
        self._watches.discard(watch)
        self.set_watches[watch] = False

    def take_watches(self) -> list[Watch]:
        """Return who watches, and forget them."""
        self.touched = self.all_watches = True
        found = sorted(self._watches, key=lambda one: (one.watcher, one.generation, one.operation))
        self._watches.clear()
        self.set_watches.clear()
        return found


class LoadedRows:
    """The rows of a commit, as far as they were read; see `Rows`.

    Args:
        alive: The workers whose leases still run, of those that the commit names.
    """

    def __init__(self) -> None:
        self.runs: dict[RunKey, LoadedRun] = {}
        self.alive: set[WorkerId] = set()
        self.errors: dict[tuple[str, str, str], Exception] = {}
        self._controls: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.set_controls: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._stickies: dict[tuple[str, str], StickyRow] = {}
        self.set_stickies: dict[tuple[str, str], StickyRow] = {}
        self._requests: dict[tuple[str, str], RequestRow] = {}
        self.set_requests: dict[tuple[str, str], RequestRow | None] = {}
        self.expired: dict[str, list[str]] = {}
        self.due: dict[str, list[NoticeRow]] = {}

    def know_control(self, tenant: str, name: str, version: int, body: bytes) -> None:
        """Take a control row that was read."""
        self._controls[tenant, name] = (version, body)

    def know_sticky(self, row: StickyRow) -> None:
        """Take a decision that was read."""
        self._stickies[row.tenant, row.sticky_id] = row

    def know_request(self, row: RequestRow) -> None:
        """Take a record that was read."""
        self._requests[row.tenant, row.request_id] = row

    def has_request(self, tenant: str, request_id: str) -> bool:
        """Whether there was a record when it was read."""
        return (tenant, request_id) in self._requests

    def run(self, tenant: str, run_id: str) -> LoadedRun:
        """Return the rows of a run id.

        Raises:
            Exception: What reading them has raised.
        """
        key = RunKey(tenant, run_id)
        found = self.runs.get(key)
        if found is None:
            found = self.runs[key] = LoadedRun(key)
        if found.error is not None:
            raise found.error
        return found

    def live(self, worker: WorkerId) -> bool:
        """Whether a worker's lease still runs."""
        return worker in self.alive

    def control(self, tenant: str, name: str) -> tuple[int, bytes]:
        """Return version and body of a control row."""
        return self._controls.get((tenant, name), (0, b""))

    def put_control(self, tenant: str, name: str, version: int, body: bytes) -> None:
        """Write a control row."""
        self._controls[tenant, name] = self.set_controls[tenant, name] = (version, body)

    def sticky(self, tenant: str, sticky_id: str) -> StickyRow | None:
        """Return a decision that sticks."""
        self._raise("sticky", tenant, sticky_id)
        return self._stickies.get((tenant, sticky_id))

    def put_sticky(self, row: StickyRow) -> None:
        """Write a decision that sticks."""
        place = row.tenant, row.sticky_id
        self._stickies[place] = self.set_stickies[place] = row

    def request(self, tenant: str, request_id: str) -> RequestRow | None:
        """Return the record of a request."""
        self._raise("request", tenant, request_id)
        place = tenant, request_id
        if place in self.set_requests:
            return self.set_requests[place]
        return self._requests.get(place)

    def put_request(self, row: RequestRow) -> None:
        """Write the record of a request."""
        self.set_requests[row.tenant, row.request_id] = row

    def drop_request(self, tenant: str, request_id: str) -> None:
        """Drop the record of a request."""
        self.set_requests[tenant, request_id] = None

    def expired_requests(self, tenant: str, limit: int) -> list[str]:
        """Return the ids of records whose time is over, oldest first, each once."""
        # One that was begun anew by the same commit is another record.
        known = [
            one for one in self.expired.get(tenant, []) if (tenant, one) not in self.set_requests
        ]
        found, self.expired[tenant] = known[:limit], known[limit:]
        return found

    def due_notices(self, tenant: str, limit: int) -> list[NoticeRow]:
        """Return open notices that are due, each once."""
        known = [row for row in self.due.get(tenant, []) if not self._is_taken(row)]
        found, self.due[tenant] = known[:limit], known[limit:]
        return found

    def _is_taken(self, row: NoticeRow) -> bool:
        """Whether the same commit has taken a notice, or dropped it, before."""
        run = self.runs.get(RunKey(row.tenant, row.run_id))
        place = row.generation, row.approval_id, row.notice
        return run is not None and (run.all_notices or place in run.set_notices)

    def _raise(self, what: str, tenant: str, name: str) -> None:
        error = self.errors.get((what, tenant, name))
        if error is not None:
            raise error


def _is_wanted(row: InboxRow) -> bool:
    """Whether an item is still to be read, or to be answered."""
    is_update = row.stamped.message.kind is MessageKind.UPDATE
    return not row.consumed or (is_update and row.answer is None)
