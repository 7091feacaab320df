"""What the attempts of a run ask of the run's pilot, so that they can be read and tested without it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from outlast.clock import Clock
from outlast.journal.entry import OperationId
from outlast.store.change import Applied, OperationPut, Refused, RunKey
from outlast.worker.deadline import Deadline
from outlast.worker.executor import Executor
from outlast.worker.hold import Hold
from outlast.worker.proposal import Proposal
from outlast.worker.rest import Completion, Rest
from outlast.workflows.attempt import Attempt


class RunLost(BaseException):
    """This worker no longer owns the run, or may no longer act: stop, and write nothing."""


class Bridge(Protocol):
    """The pilot, as an attempt sees it."""

    executor: Executor
    clock: Clock
    run_key: RunKey
    hold: Hold

    def store_now(self) -> datetime:
        """Return the store's time."""
        ...

    def row(self, operation: OperationId) -> OperationPut | None:
        """Return the stored row of an open operation."""
        ...

    def attempt(self, operation: OperationId, name: str, number: int, key: str) -> Attempt:
        """Return the description of an attempt."""
        ...

    def post(self, proposal: Proposal) -> None:
        """Have it written; nobody waits."""
        ...

    async def propose(self, proposal: Proposal) -> Applied | Refused:
        """Have it written, and return when it was.

        Raises:
            asyncio.CancelledError: The operation is no longer open.
        """
        ...

    async def written(self) -> None:
        """Return when everything that the run has seen until now is written."""
        ...

    async def rest(self, operation: OperationId, rest: Rest) -> None:
        """Wait for the store's time; the run may be parked meanwhile."""
        ...

    async def look(self, operation: OperationId) -> OperationPut | None:
        """Read the row of an open operation anew: a beat from outside changes it, and wakes nobody."""
        ...

    async def await_completion(self, operation: OperationId, wait: Completion) -> None:
        """Wait for an outcome from outside, without acting; the run may be parked meanwhile. Return when it came too late.

        Args:
            wait: Until when.

        Raises:
            asyncio.CancelledError: It came.
        """
        ...

    def deadline(
        self, operation: OperationId, scheduled_at: datetime | None, limit: timedelta | None
    ) -> Deadline | None:
        """Return the deadline of an operation, which is remembered when the run is parked; None where it has none.

        Args:
            scheduled_at: When it was asked for.
            limit: How much time it has from then on.
        """
        ...

    async def stand_by(self, operation: OperationId, seconds: float) -> None:
        """Wait without acting, until an earlier attempt can act no more; a stop need not wait for that."""
        ...

    def check_lease(self) -> None:
        """Return when the worker may act now.

        Raises:
            RunLost: Its lease is over by the local deadline.
        """
        ...

    def idle_seconds(self) -> float:
        """Return how long ago a former owner of the run could last have begun an attempt."""
        ...
