"""The figures of the memory store: the same numbers, counted from what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from outlast.store.change import Status, WorkerId
from outlast.store.condition import PENDING, listed_state
from outlast.store.figures import OPEN, Figures, backlog_of, backlogs_of
from outlast.store.memory_rows import MemoryRows, MemoryRun
from outlast.store.protocol import RELAY_AFTER
from outlast.store.request import RequestState
from outlast.store.request_condition import listed
from outlast.store.rows import RunState


def figures_of(
    rows: MemoryRows, tenant: str, living: frozenset[WorkerId], now: datetime
) -> Figures:
    """Return what the rows of one tenant come to, or of all; workers are left at nothing.

    Args:
        living: The workers whose lease runs.
    """
    found = [
        (run, state)
        for run, state in rows.states()
        if tenant in ("", run.key.tenant) and not state.head.status.closed
    ]
    heads = [state.head for _, state in found]
    statuses = Counter(head.status for head in heads)
    due = [row.due_at for row in rows.open_notices(tenant) if row.due_at <= now]
    late = (at for at, key, _ in rows.items() if tenant in ("", key.tenant))
    return Figures(
        at=now,
        runs={status.value: statuses[status] for status in OPEN},
        blocked=dict(Counter(one.reason for one in heads if one.status is Status.BLOCKED)),
        unclaimed=backlogs_of(_unclaimed([state for _, state in found], now), now),
        orphaned=sum(one.owner is not None and one.owner not in living for one in heads),
        lapsed=sum(one.lapses > 0 for one in heads),
        unread=sum(one.owner is not None and one.mail for one in heads),
        in_doubt=sum(row.in_doubt for run, _ in found for row in run.operations.values()),
        requests_in_doubt=_requests(rows, tenant, now),
        approvals=backlog_of(_asked([run for run, _ in found], now), now),
        notices=backlog_of(due, now),
        outbox=backlog_of((at for at in late if at <= now - RELAY_AFTER), now),
        tasks=backlogs_of(_tasks([run for run, _ in found], now), now),
    )


def _unclaimed(states: Sequence[RunState], now: datetime) -> Iterable[tuple[str, datetime]]:
    return (
        (state.head.workflow, state.due)
        for state in states
        if state.due is not None and state.due <= now and (state.calls or not state.unfit_builds)
    )


def _asked(runs: Sequence[MemoryRun], now: datetime) -> Iterable[datetime]:
    rows = (row for run in runs for row in run.approvals.values())
    return (row.requested_at for row in rows if listed_state(row, now) == PENDING)


def _tasks(runs: Sequence[MemoryRun], now: datetime) -> Iterable[tuple[str, datetime]]:
    return (
        (task.row.queue, task.due)
        for run in runs
        for task in run.tasks()
        if task.row.worker is None and not task.held and task.due <= now
    )


def _requests(rows: MemoryRows, tenant: str, now: datetime) -> int:
    mine = (row for row in rows.requests.values() if tenant in ("", row.tenant))
    return sum(listed(row, now).state is RequestState.IN_DOUBT for row in mine)
