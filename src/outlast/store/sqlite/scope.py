"""What every statement of one write transaction shares: the database, and the moment at which all of it happens."""

from __future__ import annotations

from datetime import datetime

from outlast.store.change import WorkerId
from outlast.store.moment import Instant, lapsed, to_micros
from outlast.store.sqlite.database import Database
from outlast.store.sqlite.row import FIND_LEASE, lease_of


class Writing:
    """An open write transaction.

    Args:
        now: The store's time.
        instant: The same moment on the lease clock.
    """

    def __init__(self, database: Database, now: datetime, instant: Instant) -> None:
        self.database = database
        self.now = now
        self.micros = to_micros(now)
        self.instant = instant
        self._live: dict[WorkerId, bool] = {}

    def live(self, worker: WorkerId) -> bool:
        """Return whether the worker's lease still runs."""
        known = self._live.get(worker)
        if known is None:
            row = self.database.row(FIND_LEASE, (worker,))
            known = row is not None and not lapsed(*lease_of(row), self.instant)
            self._live[worker] = known
        return known

    def renew(self, workers: set[WorkerId]) -> None:
        """Let the leases of these living workers begin anew."""
        self.database.run_each(
            "UPDATE worker SET boot = ?, renewed = ? WHERE worker = ?",
            [(self.instant.boot, self.instant.nanos, worker) for worker in sorted(workers)],
        )
