"""The attempts of one step or effect: how many have failed, how long they may go on, what they have said last.

What a former worker has recorded is in the operation's row; what is recorded here goes there. A row without a due time says that an
attempt has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta

import msgspec

from outlast.journal.entry import EffectFailed, EffectRefused, OperationId, StepFailed
from outlast.journal.failure import Failure, capture, is_too_deep, tell
from outlast.journal.parse import NotJsonError, parse_as
from outlast.journal.place import place_of
from outlast.store.change import OperationDrop, OperationPut, Refused, RunKey
from outlast.worker.begin import attempt_if_free
from outlast.worker.bridge import Bridge
from outlast.worker.call import Check
from outlast.worker.deadline import Deadline
from outlast.worker.executor import Ending, LateEnd, Raised, Returned, TimedOut
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.pulse import Pulse, interval
from outlast.worker.rest import Rest
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import AttemptOptions, Effect, Step

logger = logging.getLogger("outlast.worker")

_failures = msgspec.json.Decoder(Failure)
_LONGEST_ASKED = 86_400  # seconds; what asks for more is asked again after a day


class Series:
    """The attempts of one operation.

    Args:
        failures: How many are recorded as failed.
        deadline: When all of them must be done.
        key: The idempotency key, of an effect.
    """

    def __init__(
        self,
        bridge: Bridge,
        operation: OperationId,
        definition: Step[..., object] | Effect[..., object],
        *,
        failures: int,
        deadline: Deadline | None,
        key: str = "",
    ) -> None:
        self._bridge = bridge
        self._operation = operation
        self._definition = definition
        self._deadline = deadline
        self._key = key
        self.undoes_key = ""
        """Of a compensation: the key of what it undoes."""
        row = row_of(bridge, operation, definition)
        self._has_row = bridge.row(operation) is not None
        self._kept = self._progress = row.progress if row else b""
        self.failures = failures
        """How many attempts have failed."""
        self.begun_at = row.begun_at if row else None
        """When the last attempt of an effect was announced."""
        self.is_written = False
        """Whether everything that the operation depends on is known to be written."""

    def next(self) -> Attempt:
        """Return the description of the next attempt, or of the one that is under way."""
        attempt = self._bridge.attempt(
            self._operation, self._definition.name, self.failures + 1, self._key
        )
        effect = self._definition if isinstance(self._definition, Effect) else None
        return msgspec.structs.replace(
            attempt,
            ahead=attempt.ahead and not self.is_written,
            undoes_key=self.undoes_key,
            idempotent=effect is not None and effect.rules.idempotent,
        )

    # Time

    @property
    def is_over(self) -> bool:
        """Whether the time for all attempts is over."""
        left = self.left
        return left is not None and left <= timedelta(0)

    @property
    def due(self) -> datetime | None:
        """When the time for all attempts is over, by the store's clock; None for never."""
        left = self.left
        return None if left is None else self._bridge.store_now() + left

    @property
    def left(self) -> timedelta | None:
        """What is left of the time for all attempts; None for no limit."""
        return None if self._deadline is None else self._deadline.left(self._bridge.store_now())

    def is_beyond(self, gap: timedelta) -> bool:
        """Whether an attempt after a rest of this length would come too late."""
        left = self.left
        return left is not None and gap >= left

    def expired(self, last: Failure | None = None) -> Failure:
        """Return what the workflow gets when the time for all attempts is over.

        Args:
            last: How the last attempt failed.
        """
        return expired(self._definition, self.failures, last)

    # One attempt

    async def attempt(
        self,
        arguments: bytes,
        check: Check,
        *,
        left: timedelta | None,
        late: LateEnd | None = None,
    ) -> Ending:
        """Make one attempt, and keep what it says of itself.

        Args:
            check: Called immediately before its body begins.
            left: It takes no longer.
            late: See `Executor.attempt`.

        Raises:
            HeldBack: Something holds it, and it has not begun.
        """
        every = interval(self._definition.options.heartbeat_timeout)
        pulse = Pulse(self.carry, every, self._bridge.clock.monotonic, self._progress)
        try:
            ending = await attempt_if_free(
                self._bridge,
                self._definition,
                arguments,
                self.next(),
                check,
                beats=pulse.beats,
                left=left,
                late=late,
            )
        except asyncio.CancelledError:
            # Nobody waits for it any more, or it is to go on elsewhere: from where it has come to.
            if pulse.unkept:
                self.post(pulse.unkept)
            raise
        finally:
            pulse.close()
        await self.settle(pulse, ending)
        return ending

    async def settle(self, pulse: Pulse, ending: Ending) -> None:
        """Take over what an attempt has said of itself, when it has ended."""
        if not isinstance(ending, Returned):
            # What is on its way must not come after what is recorded of the failure.
            await pulse.settled()
        self._progress, self._kept = pulse.beats.latest, pulse.kept

    async def carry(self, progress: bytes) -> None:
        """Keep what an attempt has said of itself; return when that is written."""
        await self._bridge.propose(self._row(progress))

    def post(self, progress: bytes) -> None:
        """Keep what an attempt has said of itself; nobody waits."""
        self._bridge.post(self._row(progress))

    def _row(self, progress: bytes) -> Proposal:
        """Return what keeps the details of a beat of the attempt that is under way."""
        row = msgspec.structs.replace(self.begun(), progress=progress)
        return Proposal(Rank.ROW, guard=self._operation, row=row)

    # What is recorded

    def begun(self) -> OperationPut:
        """Return the row that says that an attempt has begun, and what the last one said."""
        self._has_row = True
        known = row_of(self._bridge, self._operation, self._definition) or OperationPut(
            operation=self._operation,
            kind=self._definition.kind,
            name=self._definition.name,
            failures=self.failures,
        )
        return msgspec.structs.replace(
            known,
            due_at=None,
            awaits=False,
            progress=self._progress,
            begun_at=self.begun_at,
            in_doubt=False,
        )

    def doubtful(self) -> OperationPut:
        """Return the row that says that the effect is in doubt, and what the last attempt said; that one is not counted as failed."""
        recorded = row_of(self._bridge, self._operation, self._definition)
        failures = 0 if recorded is None else recorded.failures
        return msgspec.structs.replace(self.begun(), in_doubt=True, failures=failures)

    def drop(self) -> OperationDrop | None:
        """Return what removes the operation's row, which goes with the outcome."""
        return OperationDrop(self._operation) if self._has_row else None

    def gap_after(self, failure: Failure) -> timedelta:
        """Return how long to wait before the next attempt: as long as the policy says, or the failure asks for."""
        return max(self._definition.options.retry.gap(self.failures), asked_for(failure))

    def go_on_from(self, row: OperationPut) -> None:
        """Take over what was said from outside: the next attempt finds it."""
        self._kept = self._progress = row.progress

    async def record_failure(
        self, failure: Failure, gap: timedelta, *, unapplied: bool = False
    ) -> bool:
        """Record a failed attempt that will be followed by another, and wait until that is due.

        Args:
            unapplied: This one and all before are known to have changed nothing.

        Returns:
            False when nothing was recorded: what was handed out was heard of in between.
        """
        due = self._bridge.store_now() + gap
        row = msgspec.structs.replace(
            self.begun(),
            failures=self.failures,
            due_at=due,
            detail=msgspec.json.encode(failure),
            unapplied=unapplied,
        )
        verdict = await self._bridge.propose(Proposal(Rank.ROW, guard=self._operation, row=row))
        if isinstance(verdict, Refused):
            return False
        self._kept = self._progress
        logger.warning(
            "run %s: %s %s (%s) failed, attempt %d: %s; the next attempt begins at %s, nobody needs to act",
            self._bridge.run_key,
            self._definition.kind,
            self._definition.name,
            self._operation,
            self.failures,
            tell(failure),
            f"{due:%Y-%m-%d %H:%M:%S} UTC",
            extra={"step": self._definition.name, "attempt": self.failures},
        )
        await self._bridge.rest(self._operation, Rest(due, gap))
        return True


def expired(
    definition: Step[..., object] | Effect[..., object],
    failures: int,
    last: Failure | None = None,
) -> Failure:
    """Return the failure of an operation whose time for all attempts is over.

    Args:
        failures: How many attempts have failed.
        last: How the last one did.
    """
    limit = definition.options.schedule_to_close_timeout
    tried = f"in {failures} attempt{'' if failures == 1 else 's'}" if failures else "and not begun"
    failure = capture(
        TimeoutError(f"{definition.name} was not done within {limit} of its call, {tried}")
    )
    told = msgspec.structs.replace(failure, cause=last)
    # What is nested too deep cannot be read again.
    return failure if is_too_deep(told) else told


def row_of(
    bridge: Bridge,
    operation: OperationId,
    definition: Step[..., object] | Effect[..., object],
) -> OperationPut | None:
    """Return the stored row of an operation; None where it is of another step, which changed code has put something else in place of."""
    row = bridge.row(operation)
    fits = row is not None and (row.kind, row.name) == (definition.kind, definition.name)
    return row if fits else None


def rest_of(row: OperationPut, due: datetime, options: AttemptOptions) -> Rest:
    """Return the rest that a former owner has recorded."""
    gap = options.retry.gap(row.failures)
    with contextlib.suppress(NotJsonError):
        gap = max(gap, asked_for(parse_as(_failures, row.detail)))
    return Rest(due, gap)


def asked_for(failure: Failure) -> timedelta:
    """Return how long the failed exception asks to wait: its `retry_after` in seconds, as HTTP's Retry-After; a day at most."""
    after = failure.details.get("retry_after")
    if isinstance(after, bool) or not isinstance(after, int | float) or not after > 0:
        return timedelta(0)
    return timedelta(seconds=min(after, _LONGEST_ASKED))


def timed_out(ending: TimedOut, definition: Step[..., object] | Effect[..., object]) -> Raised:
    """Return the failure that a timeout is to the workflow."""
    failure = capture(TimeoutError(ending.text(definition.name)))
    hopeless = not definition.options.retry.retries(failure.type)
    return Raised(failure, hopeless=hopeless, not_applied=not ending.began)


def log_failed(run: RunKey, entry: StepFailed | EffectFailed | EffectRefused) -> None:
    """Say that no attempt follows."""
    place = place_of(entry.failure)
    logger.warning(
        "run %s: %s %s (%s) failed for good%s: %s; the workflow gets this as an exception",
        run,
        "step" if isinstance(entry, StepFailed) else "effect",
        entry.name,
        entry.operation,
        f" at {place}" if place else "",
        tell(entry.failure),
        extra={"operation": entry.operation, "step": entry.name},
    )
