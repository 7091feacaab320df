# ruff: noqa: S608 - only constants of this package are joined to statements; every value is bound
"""What is read, on a connection that cannot write, each answer of one moment."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from outlast.journal.entry import StampedRow
from outlast.store.change import (
    ApprovalRow,
    MessageState,
    OperationPut,
    OutboxItem,
    RunHead,
    RunKey,
    StampedMessage,
    Status,
    WorkerId,
)
from outlast.store.condition import listed_state
from outlast.store.moment import Instant, elapsed, from_micros, lapsed, to_micros
from outlast.store.protocol import DoubtRow, GenerationRow, LiveWorker, RunImage
from outlast.store.row import (
    ENTRY,
    MESSAGE,
    OPERATION,
    OUTBOX,
    WORKER,
    entry_of,
    head_of,
    message_of,
    operation_of,
    outbox_of,
    worker_of,
)
from outlast.store.row_people import APPROVAL, approval_of
from outlast.store.sqlite import task
from outlast.store.sqlite.damage import RUN, WORKER_ID, decoded, naming, readable
from outlast.store.sqlite.database import Database, Row
from outlast.store.sqlite.lock import LockFolder
from outlast.store.sqlite.row import FIND_HEAD, HEAD, INCARNATION
from outlast.store.task import TaskRow

_OF_LIST = (RUN, "run %s is left out of lists")
_UNASKED = "an approval of run %s is left out of lists"
_OF_RUN = "tenant = ? AND run_id = ?"
_OWNED = f"SELECT {HEAD} FROM run WHERE owner = ? ORDER BY tenant, run_id"
_ENTRIES = f"SELECT {ENTRY} FROM entry WHERE {_OF_RUN} AND generation = ? AND seq > ? ORDER BY seq"
_LATEST = f"""
SELECT {ENTRY} FROM entry WHERE {_OF_RUN} AND generation = ? AND kind = ? AND name = ? ORDER BY seq DESC LIMIT 1
"""
_LATEST_PUBLISHED = f"""
SELECT {ENTRY} FROM entry INDEXED BY entry_published
WHERE {_OF_RUN} AND generation = ? AND kind = ? AND name = ? AND kind = 'published' ORDER BY seq DESC LIMIT 1
"""
_LAST_OF = (
    f"SELECT seq, kind, at FROM entry WHERE {_OF_RUN} AND generation = ? ORDER BY seq DESC LIMIT 1"
)
_LAST_ENTRY = (
    f"SELECT {ENTRY} FROM entry WHERE {_OF_RUN} AND generation = ? ORDER BY seq DESC LIMIT 1"
)
_OPERATION = f"SELECT {OPERATION} FROM operation WHERE {_OF_RUN} AND operation = ?"
_OPERATIONS = f"SELECT {OPERATION} FROM operation WHERE {_OF_RUN} ORDER BY operation"
_DOUBTS = """
SELECT operation.run_id, operation.operation, operation.name FROM operation INDEXED BY operation_doubt
JOIN run ON run.tenant = operation.tenant AND run.run_id = operation.run_id
WHERE operation.tenant = ? AND operation.in_doubt = 1 AND (operation.run_id, operation.operation) > (?, ?)
AND (? = '' OR operation.name = ?) AND (? = '' OR run.workflow = ?)
ORDER BY operation.run_id, operation.operation LIMIT ?
"""
_MESSAGES = f"""
SELECT {MESSAGE} FROM message INDEXED BY message_unread
WHERE {_OF_RUN} AND generation = ? AND consumed = 0 ORDER BY number
"""
_MAIL = f"""
SELECT {MESSAGE} FROM message INDEXED BY message_unread
WHERE {_OF_RUN} AND generation = (SELECT {INCARNATION} FROM run WHERE {_OF_RUN}) AND consumed = 0 ORDER BY number
"""
_ANSWER = f"""
SELECT generation, consumed, answer, (SELECT NOT open OR {INCARNATION} > message.generation FROM run WHERE {_OF_RUN})
FROM message INDEXED BY message_update
WHERE {_OF_RUN} AND message_id = ? AND kind = 'update' ORDER BY generation DESC LIMIT 1
"""
_APPROVALS = (
    f"SELECT {APPROVAL} FROM approval WHERE {_OF_RUN} AND generation = ? ORDER BY approval_id"
)


class HeadFilter(Struct, frozen=True):
    """Which page of which runs; see `StoreReader.heads`.

    Args:
        before: Microseconds since 1970, and the run id.
    """

    statuses: frozenset[Status]
    workflow: str
    limit: int
    before: tuple[int, str] | None


class ApprovalFilter(Struct, frozen=True):
    """Which page of which approvals; see `StoreReader.approvals`.

    Args:
        limit: None for all that there are.
        after: Microseconds since 1970, run id and approval id.
        now: By which it is judged whether a request still waits.
    """

    pending: bool
    run: RunKey | None
    limit: int | None
    after: tuple[int, str, str] | None
    now: datetime

    @property
    def size(self) -> int:
        """How many rows, as SQL says it."""
        return -1 if self.limit is None else max(self.limit, 0)

    @property
    def index(self) -> str:
        """Which index finds them; one run's of whatever state are found by the table's key."""
        if self.run is not None:
            return " INDEXED BY approval_of_run" if self.pending else ""
        return f" INDEXED BY {'approval_pending' if self.pending else 'approval_listed'}"

    @property
    def asked(self) -> str:
        """The time by which they are in order: the plus keeps SQLite from going through all that the tenant was asked for one run's."""
        return "requested_at" if self.run is None or self.pending else "+requested_at"


def head(database: Database, run: RunKey) -> RunHead | None:
    """Return the run's row."""
    with naming("the run's row", run.run_id):
        row = database.row(FIND_HEAD, (run.tenant, run.run_id))
        return None if row is None else head_of(row)


def owned(database: Database, worker: WorkerId) -> list[RunHead]:
    """Return the runs that a worker owns, by run."""
    lost = (RUN, "run %s is not taken up by its owner")
    found = decoded(database, _OWNED, (worker,), head_of, lost)
    return [head for head in found if head is not None]


def heads(database: Database, tenant: str, wanted: HeadFilter) -> list[RunHead]:
    """Return a page of the tenant's runs, newest first."""
    with database.moment():
        return _heads(database, tenant, wanted)


def _heads(database: Database, tenant: str, wanted: HeadFilter) -> list[RunHead]:
    if not wanted.statuses:
        return _page(database, tenant, None, wanted)
    # A look for each status, each in the order of an index: one for all of them would read and sort every run that fits.
    found = [
        head
        for status in sorted(wanted.statuses)
        for head in _page(database, tenant, status, wanted)
    ]
    found.sort(key=lambda head: (head.created_at, head.run.run_id), reverse=True)
    return found[: max(wanted.limit, 0)]


def _page(
    database: Database, tenant: str, status: Status | None, wanted: HeadFilter
) -> list[RunHead]:
    terms = ["tenant = ?"]
    parameters: list[str | int] = [tenant]
    if status is not None:
        terms.append("status = ?")
        parameters.append(status.value)
    if wanted.workflow:
        terms.append("workflow = ?")
        parameters.append(wanted.workflow)
    if wanted.before is not None:
        terms.append("(created_at, run_id) < (?, ?)")
        parameters += wanted.before
    # Only constant terms are joined here; every value is bound.
    sql = f"SELECT {HEAD} FROM run WHERE {' AND '.join(terms)} ORDER BY created_at DESC, run_id DESC LIMIT ?"
    return readable(database, sql, tuple(parameters), head_of, _OF_LIST, max(wanted.limit, 0))


def journal(
    database: Database, run: RunKey, generation: int | None, after: int
) -> tuple[StampedRow, ...]:
    """Return the rows of one generation, by default the current one, from the one after `after` on."""
    with naming("the run's journal", run.run_id), database.moment():
        key = (run.tenant, run.run_id, _generation(database, run, generation), after)
        return tuple(entry_of(row) for row in database.rows(_ENTRIES, key))


def latest(
    database: Database, run: RunKey, generation: int | None, wanted: tuple[str, str]
) -> StampedRow | None:
    """Return the last row of a kind and name in one generation, by default the current one."""
    sql = _LATEST_PUBLISHED if wanted[0] == "published" else _LATEST
    with naming("the run's journal", run.run_id), database.moment():
        key = (run.tenant, run.run_id, _generation(database, run, generation), *wanted)
        row = database.row(sql, key)
        return None if row is None else entry_of(row)


def _generation(database: Database, run: RunKey, generation: int | None) -> int:
    if generation is not None:
        return generation
    found = head(database, run)
    return 0 if found is None else found.generation


def generations(database: Database, run: RunKey, limit: int) -> tuple[GenerationRow, ...]:
    """Return the run's generations, newest first; of each journal one row is read."""
    key = (run.tenant, run.run_id)
    with naming("the run's journals", run.run_id), database.moment():
        found = head(database, run)
        newest = 0 if found is None else found.generation
        asked = range(newest, max(newest - limit, 0), -1)
        rows = [(number, database.row(_LAST_OF, (*key, number))) for number in asked]
    return tuple(
        GenerationRow(number, row[0] + 1, row[1], from_micros(row[2]))
        for number, row in rows
        if row
    )


def load(database: Database, run: RunKey) -> RunImage | None:
    """Return everything about a run's current generation."""
    key = (run.tenant, run.run_id)
    with naming("what is stored of the run", run.run_id), database.moment():
        found = head(database, run)
        if found is None:
            return None
        generation = (*key, found.generation)
        return RunImage(
            found,
            tuple(entry_of(row) for row in database.rows(_ENTRIES, (*generation, -1))),
            tuple(operation_of(row) for row in database.rows(_OPERATIONS, key)),
            tuple(message_of(row) for row in database.rows(_MESSAGES, (*key, found.incarnation))),
            tuple(approval_of(row) for row in database.rows(_APPROVALS, generation)),
            task.of_run(database, run),
        )


def operation(database: Database, run: RunKey, operation: str) -> OperationPut | None:
    """Return the row of one open operation."""
    with naming("the row of an operation", run.run_id):
        row = database.row(_OPERATION, (run.tenant, run.run_id, operation))
        return None if row is None else operation_of(row)


def doubts(
    database: Database, tenant: str, wanted: tuple[str, str], limit: int, after: tuple[str, str]
) -> list[DoubtRow]:
    """Return a page of the tenant's effects in doubt, by run and operation.

    Args:
        wanted: Name of the effect and of the workflow; empty for any.
    """
    effect, workflow = wanted
    key = (tenant, *after, effect, effect, workflow, workflow, max(limit, 0))
    rows = database.rows(_DOUBTS, key)
    return [DoubtRow(RunKey(tenant, run_id), operation, name) for run_id, operation, name in rows]


def tasks(database: Database, run: RunKey) -> tuple[TaskRow, ...]:
    """Return the tasks of the run's remote steps, by operation."""
    with naming("the run's tasks", run.run_id):
        return task.of_run(database, run)


def mail(database: Database, run: RunKey) -> tuple[StampedMessage, ...]:
    """Return the run's messages that are not yet consumed, in order of arrival."""
    key = (run.tenant, run.run_id)
    with naming("the run's mail", run.run_id):
        return tuple(message_of(row) for row in database.rows(_MAIL, (*key, *key)))


def answer(database: Database, run: RunKey, message_id: str) -> MessageState | None:
    """Return what has become of an update."""
    with naming("the answer to an update", run.run_id):
        key = (run.tenant, run.run_id)
        row = database.row(_ANSWER, (*key, *key, message_id))
        if row is None:
            return None
        generation, consumed, told, over = row
        return MessageState(
            generation, bool(consumed), bool(over), answered=told is not None, answer=told or b""
        )


def approvals(database: Database, tenant: str, wanted: ApprovalFilter) -> list[ApprovalRow]:
    """Return a page of approvals, oldest first; where one run's are asked for, one that cannot be read is an error."""
    run = wanted.run
    if run is not None and run.tenant != tenant:
        return []
    sql, values = _approvals_sql(tenant, wanted)
    if run is not None:
        with naming("the run's approvals", run.run_id):
            found = [approval_of(row) for row in database.rows(sql, (*values, wanted.size))]
    elif wanted.limit is None:
        rows = decoded(database, sql, (*values, wanted.size), approval_of, (RUN, _UNASKED))
        found = [row for row in rows if row is not None]
    else:
        lost = (RUN, _UNASKED)
        found = readable(database, sql, values, approval_of, lost, wanted.size)
    return [replace(row, state=listed_state(row, wanted.now)) for row in found]


def _approvals_sql(tenant: str, wanted: ApprovalFilter) -> tuple[str, Row]:
    """Return the statement that finds a page of approvals, and its values but for the last one, which is how many."""
    terms: list[str] = ["tenant = ?"]
    values: list[str | int] = [tenant]
    if wanted.run is not None:
        terms.append("run_id = ?")
        values.append(wanted.run.run_id)
    if wanted.pending:
        terms.append("state = 'pending' AND expires_at > ?")
        values.append(to_micros(wanted.now))
    if wanted.after is not None:
        terms.append(f"({wanted.asked}, run_id, approval_id) > (?, ?, ?)")
        values += wanted.after
    # Only constants are joined here; every value is bound. SQLite is told the index: it takes one for any other that gives the order.
    sql = f"SELECT {APPROVAL} FROM approval{wanted.index} WHERE {' AND '.join(terms)} ORDER BY {wanted.asked}, run_id, approval_id, generation LIMIT ?"
    return sql, tuple(values)


def workers(database: Database, locks: LockFolder, now: Instant) -> list[LiveWorker]:
    """Return the registered workers, and whether they live."""

    def live_of(row: Row) -> LiveWorker:
        worker, renewed = worker_of(row), Instant(row[6], row[7])
        live = not lapsed(renewed, worker.lease, now) and not locks.is_dead(worker.worker)
        return LiveWorker(worker, live, elapsed(renewed, now), row[10])

    lost = (WORKER_ID, "worker %s is left out of lists")
    found = decoded(
        database, f"SELECT {WORKER}, report FROM worker ORDER BY worker", (), live_of, lost
    )
    return [worker for worker in found if worker is not None]


def outbox(
    database: Database, limit: int, run: RunKey | None, before: datetime, now: datetime
) -> list[tuple[RunKey, OutboxItem]]:
    """Return items that wait for the relay, oldest first; those written later than `before`, and not after now, are left out."""
    of_run, values = ("", ()) if run is None else (f"{_OF_RUN} AND ", (run.tenant, run.run_id))
    sql = f"SELECT {OUTBOX} FROM outbox WHERE {of_run}(at <= ? OR at > ?) ORDER BY at, tenant, run_id, number LIMIT ?"
    times = (to_micros(before), to_micros(now))
    return readable(database, sql, (*values, *times), outbox_of, _OF_LIST, max(limit, 0))


def last_entry(database: Database, run: RunKey, generation: int) -> StampedRow | None:
    """Return the last row of one generation's journal."""
    with naming("the end of the run's journal", run.run_id):
        row = database.row(_LAST_ENTRY, (run.tenant, run.run_id, generation))
        return None if row is None else entry_of(row)


def control(database: Database, tenant: str, name: str) -> tuple[int, bytes] | None:
    """Return version and body of a control row."""
    rows = database.rows(
        "SELECT version, body FROM control WHERE tenant = ? AND name = ?", (tenant, name)
    )
    return (rows[0][0], rows[0][1]) if rows else None


def timeline(database: Database) -> str:
    """Return the id of this file's line of history."""
    return str(database.value("SELECT timeline FROM store"))
