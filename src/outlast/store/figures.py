"""What an operator looks at first: how much waits, for how long, and what waits for a person. Numbers only, and no names of runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Struct

from outlast.store.change import CLOSED, Status

OPEN = tuple(status for status in Status if status not in CLOSED)
"""The statuses of runs that have not ended, in the order in which they are listed."""


class Backlog(Struct, frozen=True):
    """How many wait, and how long the one that waits longest has waited; nothing where none do."""

    count: int = 0
    oldest_seconds: float = 0.0


NOTHING = Backlog()


class Figures(Struct, frozen=True):
    """What is in a store at one moment. Runs that have ended are not counted: they cost nothing here.

    Args:
        at: The store's time.
        runs: Open runs by status; each status is there.
        blocked: Runs that wait for an operator or for other code, by the reason that their row gives.
        unclaimed: By workflow: runs that could go on and have no owner. Those that wait for other code are not among them.
        orphaned: Runs whose owner lives no more, and that nobody has taken over yet.
        lapsed: Runs whose last owners died without any new entry: they may be what kills workers.
        unread: Runs that a worker has and whose messages it has not yet read.
        in_doubt: Effects of which somebody must say whether they happened.
        requests_in_doubt: Requests that came over HTTP with an idempotency key, of which the same is true.
        approvals: Requests to people that wait for a decision and can still be decided.
        notices: Word to people that is due and not sent.
        outbox: What runs have to tell each other and the worker that wrote it has not carried in time (`RELAY_AFTER`).
        tasks: By queue: steps that a worker could take and none has.
        workers_live: Workers whose lease runs.
        workers_lapsed: Workers whose lease is over or whose death is proved, and that nobody has buried yet.
    """

    at: datetime
    runs: dict[str, int]
    blocked: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    unclaimed: dict[str, Backlog] = msgspec.field(default_factory=dict[str, Backlog])
    orphaned: int = 0
    lapsed: int = 0
    unread: int = 0
    in_doubt: int = 0
    requests_in_doubt: int = 0
    approvals: Backlog = NOTHING
    notices: Backlog = NOTHING
    outbox: Backlog = NOTHING
    tasks: dict[str, Backlog] = msgspec.field(default_factory=dict[str, Backlog])
    workers_live: int = 0
    workers_lapsed: int = 0

    @property
    def waiting(self) -> Backlog:
        """The runs that could go on and have no owner, of all workflows."""
        return Backlog(
            sum(one.count for one in self.unclaimed.values()),
            max((one.oldest_seconds for one in self.unclaimed.values()), default=0.0),
        )


def backlog_of(times: Iterable[datetime], now: datetime) -> Backlog:
    """Return how many there are, and how long the first has waited: never less than no time, as clocks are set back."""
    found = list(times)
    if not found:
        return NOTHING
    return Backlog(len(found), max(0.0, (now - min(found)).total_seconds()))


def backlogs_of(times: Iterable[tuple[str, datetime]], now: datetime) -> dict[str, Backlog]:
    """Return the same by name."""
    by_name: dict[str, list[datetime]] = {}
    for name, time in times:
        by_name.setdefault(name, []).append(time)
    return {name: backlog_of(by_name[name], now) for name in sorted(by_name)}
