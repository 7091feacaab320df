"""The figures of the memory store: the same numbers, counted from what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from outlast.store.change import ApprovalRow, OperationPut, RunHead, Status, WorkerId
from outlast.store.condition import PENDING, listed_state
from outlast.store.figures import OPEN, Figures, backlog_of, backlogs_of


class CountedRun(Protocol):
    """What is looked at of a run."""

    head: RunHead
    due: datetime | None
    calls: bool
    unfit_builds: tuple[str, ...]
    operations: dict[str, OperationPut]
    approvals: dict[str, ApprovalRow]


def figures_of(runs: Iterable[CountedRun], living: frozenset[WorkerId], now: datetime) -> Figures:
    """Return what runs, and what is theirs, come to; what is not a run's is left at nothing.

    Args:
        runs: Of whom it may concern, open or not.
        living: The workers whose lease runs.
    """
    found = [run for run in runs if not run.head.status.closed]
    heads = [run.head for run in found]
    statuses = Counter(head.status for head in heads)
    return Figures(
        at=now,
        runs={status.value: statuses[status] for status in OPEN},
        blocked=dict(Counter(one.reason for one in heads if one.status is Status.BLOCKED)),
        unclaimed=backlogs_of(_unclaimed(found, now), now),
        orphaned=sum(one.owner is not None and one.owner not in living for one in heads),
        lapsed=sum(one.lapses > 0 for one in heads),
        unread=sum(one.owner is not None and one.mail for one in heads),
        in_doubt=sum(row.in_doubt for run in found for row in run.operations.values()),
        approvals=backlog_of(_asked(found, now), now),
    )


def _unclaimed(runs: Sequence[CountedRun], now: datetime) -> Iterable[tuple[str, datetime]]:
    return (
        (run.head.workflow, run.due)
        for run in runs
        if run.due is not None and run.due <= now and (run.calls or not run.unfit_builds)
    )


def _asked(runs: Sequence[CountedRun], now: datetime) -> Iterable[datetime]:
    rows = (row for run in runs for row in run.approvals.values())
    return (row.requested_at for row in rows if listed_state(row, now) == PENDING)
