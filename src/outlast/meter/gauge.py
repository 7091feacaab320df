"""The figures of a store as values of gauges."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.meter import instrument as of
from outlast.meter.instrument import Instrument
from outlast.store.figures import Backlog, Figures


def gauges_of(figures: Figures) -> Iterator[tuple[Instrument, float, str]]:
    """Yield each gauge with its value and its label."""
    for status, count in figures.runs.items():
        yield of.RUNS_OPEN, count, status
    for reason, count in figures.blocked.items():
        yield of.BLOCKED, count, reason
    for workflow, backlog in figures.unclaimed.items():
        yield from _both(of.UNCLAIMED, of.UNCLAIMED_AGE, backlog, workflow)
    yield of.ORPHANED, figures.orphaned, ""
    yield of.LAPSED, figures.lapsed, ""
    yield of.UNREAD, figures.unread, ""
    yield of.IN_DOUBT, figures.in_doubt, ""
    yield of.REQUESTS_IN_DOUBT, figures.requests_in_doubt, ""
    yield from _both(of.PENDING, of.PENDING_AGE, figures.approvals)
    yield from _both(of.NOTICES, of.NOTICES_AGE, figures.notices)
    yield from _both(of.OUTBOX, of.OUTBOX_AGE, figures.outbox)
    for queue, backlog in figures.tasks.items():
        yield from _both(of.TASKS, of.TASKS_AGE, backlog, queue)
    yield of.WORKERS, figures.workers_live, "live"
    yield of.WORKERS, figures.workers_lapsed, "lapsed"


def _both(
    count: Instrument, age: Instrument, backlog: Backlog, label: str = ""
) -> Iterator[tuple[Instrument, float, str]]:
    yield count, backlog.count, label
    yield age, backlog.oldest_seconds, label
