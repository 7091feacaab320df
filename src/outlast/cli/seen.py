"""What `outlast doctor` counts: figures of the store, and its workers as they have spoken of themselves. In JSON, and in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from msgspec import Struct

from outlast.errors import OutlastError
from outlast.meter.instrument import COMMIT_SECONDS, COMMIT_SIZE, LAPSES
from outlast.store.figures import Backlog, Figures
from outlast.store.protocol import LiveWorker, Store
from outlast.worker.report import WorkerReport, report_in

_SHOWN = 20
"""Workers that are shown as lines; `--json` has all of them."""


class SeenWorker(Struct, frozen=True):
    """A worker, as the store knows it.

    Args:
        live: Its lease runs, and its death is not proved.
        seen_seconds: Since it was heard of last.
        report: What it has said of itself last; None in its first seconds, and of a worker of an older version.
    """

    worker: str
    host: str
    pid: int
    build: str
    live: bool
    seen_seconds: float
    lease_seconds: float
    workflows: tuple[str, ...]
    queues: tuple[str, ...]
    report: WorkerReport | None


async def seen(store: Store) -> tuple[Figures | None, list[SeenWorker]]:
    """Return what the store counts and who works on it; nothing where it cannot be read, which other findings tell."""
    try:
        return await store.figures(), [_seen(one) for one in await store.workers()]
    except OutlastError:
        return None, []


def _seen(one: LiveWorker) -> SeenWorker:
    row = one.row
    return SeenWorker(
        worker=row.worker,
        host=row.host,
        pid=row.pid,
        build=row.build,
        live=one.live,
        seen_seconds=one.seen_ago.total_seconds(),
        lease_seconds=row.lease.total_seconds(),
        workflows=row.workflows,
        queues=row.queues,
        report=report_in(one.report),
    )


def figure_lines(figures: Figures, workers: Iterable[SeenWorker]) -> Iterator[str]:
    """Yield a line for each figure that says something."""
    for name, text in _figures(figures):
        if text:
            yield f"     {name:<13}{text}"
    live = [one for one in workers if one.live]
    for one in live[:_SHOWN]:
        yield f"     {'worker':<13}{one.worker}: {_told(one.report)}"
    if len(live) > _SHOWN:
        yield f"     {'worker':<13}and {len(live) - _SHOWN} more; --json has all of them"


def _figures(figures: Figures) -> Iterator[tuple[str, str]]:
    runs = ", ".join(f"{status} {count}" for status, count in figures.runs.items() if count)
    yield "open runs", runs or "none"
    yield "blocked", ", ".join(f"{why} {count}" for why, count in figures.blocked.items())
    yield "unclaimed", _by_name(figures.unclaimed)
    yield "orphaned", _some(figures.orphaned, "whose worker is dead, not yet taken over")
    yield "lapsed", _some(figures.lapsed, "whose workers died without any progress")
    yield "unread", _some(figures.unread, "in a worker that has not read their messages")
    yield "in doubt", _some(figures.in_doubt, "of effects")
    yield "requests", _some(figures.requests_in_doubt, "in doubt, of those with an idempotency key")
    yield "approvals", _backlog(figures.approvals)
    yield "notices", _backlog(figures.notices)
    yield "outbox", _backlog(figures.outbox)
    yield "tasks", _by_name(figures.tasks)


def _some(count: int, what: str) -> str:
    return f"{count} {what}" if count else ""


def _backlog(backlog: Backlog) -> str:
    if not backlog.count:
        return ""
    # Whole seconds: nobody acts on less.
    return f"{backlog.count}, the oldest for {timedelta(seconds=int(backlog.oldest_seconds))}"


def _by_name(backlogs: dict[str, Backlog]) -> str:
    return "; ".join(f"{name} {_backlog(backlog)}" for name, backlog in backlogs.items())


def _told(report: WorkerReport | None) -> str:
    if report is None:
        return "has not reported yet"
    parts = [f"runs {report.runs}"]
    if report.tasks:
        parts.append(f"tasks {report.tasks}")
    commits = report.numbers.measures.get(COMMIT_SECONDS.name)
    size = report.numbers.measures.get(COMMIT_SIZE.name)
    if commits is not None and size is not None:
        parts.append(
            f"commits {commits.count} of {size.mean:.1f} changes, 99 of 100 within {commits.p99 * 1000:.1f} ms"
        )
    if lapses := report.numbers.counts.get(LAPSES.name):
        parts.append(f"leases lost {lapses}")
    return ", ".join(parts)
