"""What the attempts of a run ask of the run's pilot, so that they can be read and tested without it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol

from outlast.clock import Clock
from outlast.errors import OutlastError
from outlast.journal.entry import EffectIntended, OperationId
from outlast.store.change import Applied, OperationPut, Permit, Refused, RunKey
from outlast.worker.deadline import Deadline
from outlast.worker.executor import Executor, LateEnd, Returned
from outlast.worker.hold import Hold
from outlast.worker.proposal import Proposal
from outlast.worker.rest import Completion, Rest
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect


class RunLost(BaseException):
    """This worker no longer owns the run, or may no longer act: stop, and write nothing."""


class Clearing(Protocol):
    """What an attempt of an effect asks of `Clearance`."""

    def cleared(self, operation: OperationId) -> Permit | None:
        """Return on what the intent of an effect rests, if its first attempt may begin on that: it was found out just now."""
        ...

    async def again(
        self, intent: EffectIntended, effect: Effect[..., Any]
    ) -> Permit | OutlastError:
        """Return on what another attempt of an effect rests, or why it may not be made."""
        ...

    def say_aged(self, permit: Permit, name: str, times: int, other: str = ...) -> None:
        """Say that the answers on which an attempt rests were too old, when they were that several times."""
        ...


class Bridge(Protocol):
    """The pilot, as an attempt sees it."""

    executor: Executor
    clock: Clock
    run_key: RunKey
    hold: Hold

    @property
    def clearance(self) -> Clearing:
        """What lets its effects begin."""
        ...

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

    def returned(self, attempt: Attempt, end: Returned, proposal: Proposal) -> None:
        """Have the outcome of an effect written; should the run be lost before that, it is put into its inbox."""
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

    def is_open(self, operation: OperationId) -> bool:
        """Whether the operation has no outcome in the journal."""
        ...

    def acting(self, operation: OperationId) -> AbstractContextManager[None]:
        """Let nothing interrupt the attempt of an effect that is made within this, although another outcome is recorded meanwhile."""
        ...

    def late(self, attempt: Attempt) -> LateEnd:
        """Return what is to be called with the end of an effect's attempt for which nobody waited."""
        ...

    async def deposited(self) -> None:
        """Return when what former lives of this worker know of attempts of the run is in its inbox, as far as it can be put there."""
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
