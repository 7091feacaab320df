"""What a run waits for by the store's clock: timers, the deadlines of requests, and the next attempts of what failed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from outlast.journal.entry import ApprovalExpired, OperationId, TimerFired
from outlast.store.change import ApprovalExpire
from outlast.worker.proposal import Proposal, Rank


class Waits:
    """The due times of one run."""

    def __init__(self) -> None:
        self._timers: dict[OperationId, datetime] = {}
        self._requests: dict[OperationId, tuple[datetime, str]] = {}
        self.retries: dict[OperationId, datetime] = {}
        """When the next attempt of each operation is due that rests after a failure."""

    def __bool__(self) -> bool:
        """Whether anything will come due."""
        return bool(self._timers or self._requests or self.retries)

    def add_timer(self, operation: OperationId, due: datetime) -> None:
        """Wait for a timer."""
        self._timers[operation] = due

    def add_request(self, operation: OperationId, expires_at: datetime, approval_id: str) -> None:
        """Wait for a request to be decided, or to expire."""
        self._requests[operation] = (expires_at, approval_id)

    def forget(self, operation: OperationId) -> None:
        """Wait no longer for a timer or a request."""
        self._timers.pop(operation, None)
        self._requests.pop(operation, None)

    def take_due(self, now: datetime) -> list[Proposal]:
        """Return what is to be written about everything that is due, and wait for it no longer."""
        due: list[Proposal] = []
        for operation, at in sorted(self._timers.items(), key=lambda item: item[1]):
            if at <= now:
                del self._timers[operation]
                due.append(Proposal(Rank.ARRIVAL, TimerFired(operation), guard=operation, at=at))
        for operation, (at, approval_id) in list(self._requests.items()):
            if at <= now:
                del self._requests[operation]
                expired = ApprovalExpired(operation, approval_id)
                expire = ApprovalExpire(approval_id)
                due.append(Proposal(Rank.REQUEST, expired, guard=operation, approval=expire))
        return due

    def next_due(self) -> datetime | None:
        """Return when the next timer or request comes due; retries look after themselves."""
        times = [*self._timers.values(), *(due for due, _ in self._requests.values())]
        return min(times, default=None)

    def wake_at(self) -> datetime | None:
        """Return when the run, parked now, has something to do by itself."""
        times = [*self._timers.values(), *self.retries.values()]
        times.extend(due for due, _ in self._requests.values())
        return min(times, default=None)

    def note(self) -> dict[str, Any]:
        """Return what the run waits for, for people."""
        return {
            "timers": dict(self._timers),
            "approvals": {approval: due for due, approval in self._requests.values()},
            "retries": dict(self.retries),
        }
