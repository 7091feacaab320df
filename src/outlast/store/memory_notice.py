"""The notices of the memory store: a table, and the looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from outlast.store.change import Applied, DueNotice, Refused, RunKey, Verdict
from outlast.store.notice import EndNotice, NoticeRow, TakeNotices
from outlast.store.notice_condition import ended, is_over, taken


class NoticeTable:
    """Every notice, by run, and there by generation, request and name."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, dict[tuple[int, str, str], NoticeRow]] = {}

    def add(self, rows: Iterable[NoticeRow]) -> None:
        """Keep the notices of a new request."""
        for row in rows:
            of_run = self._runs.setdefault(RunKey(row.tenant, row.run_id), {})
            of_run[_place(row)] = row

    def close(self, run: RunKey, approval_id: str) -> None:
        """Drop those of a request that does not wait any more."""
        of_run = self._runs.get(run, {})
        for place in [place for place in of_run if place[1] == approval_id]:
            del of_run[place]

    def end(self, run: RunKey) -> None:
        """Drop those of a run that ends."""
        self._runs.pop(run, None)

    def take(
        self, change: TakeNotices, find: Callable[[NoticeRow], DueNotice | None], now: datetime
    ) -> Verdict:
        """Take what is due.

        Args:
            find: Returns a notice with its request, while that waits.
        """
        due = [row for row in self._open(change.tenant) if row.due_at <= now]
        found: list[DueNotice] = []
        for row in due[: max(change.limit, 0)]:
            of_run = self._runs[RunKey(row.tenant, row.run_id)]
            held = None if is_over(row, now) else find(taken(row, change.hold, now))
            if held is None:
                del of_run[_place(row)]
            else:
                of_run[_place(row)] = held.notice
                found.append(held)
        return Applied(now, notices=tuple(found))

    def finish(self, change: EndNotice, now: datetime) -> Verdict:
        """Write what became of a notice."""
        of_run = self._runs.get(RunKey(change.tenant, change.run_id), {})
        after = ended(of_run.get(_place(change)), change, now)
        if isinstance(after, Refused):
            return after
        of_run[_place(change)] = after
        return Applied(now)

    def of(self, run: RunKey) -> list[NoticeRow]:
        """Return those of one run, by request and time."""
        rows = self._runs.get(run, {}).values()
        return sorted(rows, key=lambda row: (row.generation, row.approval_id, row.due_at))

    def next_due(self, tenant: str) -> datetime | None:
        """Return when the next one is due."""
        return next((row.due_at for row in self._open(tenant)), None)

    def due(self, tenant: str, now: datetime) -> Iterable[datetime]:
        """Return since when those are due that are not sent, of one tenant or of all."""
        return (row.due_at for row in self._open(tenant) if row.due_at <= now)

    def _open(self, tenant: str) -> list[NoticeRow]:
        rows = [
            row
            for of_run in self._runs.values()
            for row in of_run.values()
            if row.state == "open" and tenant in {"", row.tenant}
        ]
        return sorted(rows, key=lambda row: (row.due_at, row.tenant, row.run_id, _place(row)))


def _place(row: NoticeRow | EndNotice) -> tuple[int, str, str]:
    return row.generation, row.approval_id, row.notice
