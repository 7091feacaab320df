"""What PostgreSQL calls the columns of a run, and how a row of one becomes what is judged."""

from __future__ import annotations

from msgspec import Struct

from outlast.store.moment import (
    NO_BOOT,
    Instant,
    from_micros,
    micros_or_none,
    time_or_none,
    to_micros,
)
from outlast.store.row import Row, head_of, restored_columns, task_of, unfit_of, unfit_text
from outlast.store.rows import RunState, TaskState

HEAD = (
    "tenant, run_id, generation, workflow, fingerprint, status, reason, owner, epoch, version,"
    " next_seq, digest, wake_at, mail, lapses, created_at, changed_at, note, origin, incarnation, ended_by,"
    " released, restored_at, restored_until"
)
_HEAD_COLUMNS = 24
STATE = "due, due_set_at, stopped, calls, unfit_builds, ending"
COUNTS = "message_number, unread, outbox_number, touched"
RUN = f"{HEAD}, {STATE}, {COUNTS}"
TASK_STATE = "due, set_at, held"
INSTANT_NANOS = 1000
"""A moment on the lease clock is the store's time in microseconds, told in nanoseconds."""


class Counts(Struct, frozen=True):
    """What a run's row counts.

    Args:
        message_number: Of the last item of its inbox.
        unread: Items of the present incarnation that are not consumed.
        outbox_number: Of the last item of its outbox.
        touched: Grows with each write to any row of the run.
    """

    message_number: int = 0
    unread: int = 0
    outbox_number: int = 0
    touched: int = 0


def instant_of(micros: int) -> Instant:
    """Return a moment of the store's time as one of the lease clock."""
    return Instant(NO_BOOT, micros * INSTANT_NANOS)


def micros_of(instant: Instant | None) -> int | None:
    """Return the store's time of a moment on the lease clock."""
    return None if instant is None else instant.nanos // INSTANT_NANOS


def state_of(row: Row) -> tuple[RunState | None, Counts]:
    """Return the run in the columns `RUN`; None for a row that is an inbox without a run."""
    due, due_set_at, stopped, calls, unfit, ending = row[_HEAD_COLUMNS : _HEAD_COLUMNS + 6]
    counts = Counts(*row[_HEAD_COLUMNS + 6 :])
    if row[2] == 0:
        return None, counts
    state = RunState(
        head_of(row[:_HEAD_COLUMNS]),
        time_or_none(due),
        from_micros(due_set_at),
        None if stopped is None else instant_of(stopped),
        bool(calls),
        unfit_of(unfit),
        bool(ending),
    )
    return state, counts


def run_values(state: RunState, counts: Counts) -> Row:
    """Return the columns `RUN` of a run."""
    head = state.head
    return (
        head.run.tenant,
        head.run.run_id,
        head.generation,
        head.workflow,
        head.fingerprint,
        head.status.value,
        head.reason,
        head.owner,
        head.epoch,
        head.version,
        head.next_seq,
        head.digest,
        micros_or_none(head.wake_at),
        int(head.mail),
        head.lapses,
        to_micros(head.created_at),
        to_micros(head.changed_at),
        head.note,
        head.origin,
        head.incarnation,
        head.ended_by,
        int(head.released),
        *restored_columns(head.restored),
        micros_or_none(state.due),
        to_micros(state.due_set_at),
        micros_of(state.stopped),
        int(state.calls),
        unfit_text(state.unfit_builds),
        int(state.ending),
        counts.message_number,
        counts.unread,
        counts.outbox_number,
        counts.touched,
    )


def task_state_of(row: Row) -> TaskState:
    """Return the task in the columns `TASK` and `TASK_STATE` and its progress, which may not have been read, without its arguments."""
    due, set_at, held, progress = row[-4:]
    return TaskState(
        task_of(row[:-4]), from_micros(due), from_micros(set_at), bool(held), progress=progress
    )
