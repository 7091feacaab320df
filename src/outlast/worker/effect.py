"""Brings an intended effect to an outcome, or to an honest "in doubt".

An attempt ends in one of three ways: *known* (it returned, or raised what proves that nothing happened), *failed* (an idempotent
receiver can be asked again), or *unknown*. What follows an unknown end is the declaration's business: call again with the same
key, ask the probe, or leave it to an operator; and never before no earlier attempt can act any more (assumption A).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from msgspec import Raw

from outlast.effects.intent import Applied, NotApplied, Repeat, Unknown, quiet_after
from outlast.effects.retry import RetryPolicy
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    OperationId,
)
from outlast.journal.failure import Failure
from outlast.replay.command import SettleEffect
from outlast.store.change import OperationDrop, OperationPut
from outlast.worker.bridge import Bridge
from outlast.worker.executor import Raised, Returned, TimedOut
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.step import log_failed, record_failure, rest_of, timed_out
from outlast.worker.text import plain
from outlast.workflows.attempt import Attempt
from outlast.workflows.definition import Effect

logger = logging.getLogger("outlast.worker")

PROBING = RetryPolicy(
    initial_interval=timedelta(seconds=0.5),
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=5,
)
"""How often a probe that cannot say is asked again before an operator is."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """The last attempt may or may not have been applied.

    Args:
        why: What is known of its end.
        idle: Seconds since it began, or since it could have begun.
        raised: Its failure, where it has one.
    """

    why: str
    idle: float
    raised: Raised | None = None


class EffectRun:
    """One intended effect on its way to an outcome.

    Args:
        fresh: No attempt was made under this intent: this worker has just recorded it, or an operator has cleared it.
        lost: What is known of an attempt that the origin of a fork may have made, or may be about to make.
    """

    def __init__(
        self,
        bridge: Bridge,
        command: SettleEffect,
        effect: Effect[..., object],
        *,
        fresh: bool,
        lost: str = "",
    ) -> None:
        self._bridge = bridge
        self._command = command
        self._effect = effect
        self._operation: OperationId = command.operation
        self._arguments = bytes(command.intent.effective)
        row = bridge.row(command.operation)
        self._failures = row.failures if row else 0
        self._rest = rest_of(row, row.due_at, effect.options) if row and row.due_at else None
        self._lost = lost
        self._began = 0.0
        # A due time stands in the row until the next attempt is announced: none has begun then, whatever clocks say.
        self._is_first = fresh
        self._doubt = None if fresh or self._rest is not None else self._recovered()

    async def run(self) -> None:
        """Go on until there is an outcome, and post it."""
        # A thread of a former life of this process may still be in the middle of it.
        await self._bridge.executor.returned(self._bridge.run_key, self._operation)
        if self._rest is not None:
            await self._bridge.rest(self._operation, self._rest)
        while True:
            if self._doubt is not None and not await self._may_call_again(self._doubt):
                return
            self._doubt = None
            if await self._attempt():
                return

    def _recovered(self) -> _Doubt:
        """What a former owner left: it may have begun an attempt, and nobody wrote how that ended."""
        idle = self._bridge.idle_seconds()
        return _Doubt(self._lost or "the worker that made the last attempt is gone", idle)

    async def _may_call_again(self, doubt: _Doubt) -> bool:
        """Do what the declaration says about an unknown end; False when that settled the effect or put it in doubt."""
        match self._effect.repeat:
            case Repeat.IDEMPOTENT:
                return True
            case Repeat.NEVER:
                await self._quiet(doubt)
                self._post_in_doubt(doubt.why)
                return False
            case Repeat.PROBED:
                await self._quiet(doubt)
                return await self._ask_probe(doubt)

    async def _quiet(self, doubt: _Doubt) -> None:
        """Wait until no earlier attempt can act any more."""
        wait = quiet_after(
            timeout=self._effect.options.start_to_close_timeout,
            settle=self._effect.rules.settle,
            since=timedelta(seconds=doubt.idle),
        )
        if wait > timedelta(0):
            logger.info(
                "run %s: effect %s (%s): %s; waiting %.1f s until it can no longer act",
                self._bridge.run_key,
                self._effect.name,
                self._operation,
                doubt.why,
                wait.total_seconds(),
            )
            await self._bridge.stand_by(self._operation, wait.total_seconds())

    async def _ask_probe(self, doubt: _Doubt) -> bool:
        asked = 0
        while True:
            answer = await self._bridge.executor.probe(
                self._effect, self._arguments, self._next(), self._bridge.check_lease
            )
            asked += 1
            match answer:
                case Applied(value):
                    self._post_completed(value, "probe")
                    return False
                case NotApplied() if self._lost:
                    self._post_in_doubt(f"{doubt.why}; the probe finds nothing of it")
                    return False
                case NotApplied():
                    return await self._count_failure(doubt)
                case Unknown(why):
                    logger.warning(
                        "run %s: effect %s (%s): asked %d of %d times, the probe cannot say whether it happened: %s",
                        self._bridge.run_key,
                        self._effect.name,
                        self._operation,
                        asked,
                        PROBING.maximum_attempts,
                        plain(why),
                    )
                    if PROBING.allows_another(asked):
                        gap = PROBING.gap(asked).total_seconds()
                        await self._bridge.stand_by(self._operation, gap)
                        continue
                    self._post_in_doubt(
                        f"{doubt.why}; asked {asked} times, the probe cannot say: {why}"
                    )
                    return False

    async def _count_failure(self, doubt: _Doubt) -> bool:
        """The probe says that the attempt was not applied. A failed one counts; one cut off by a crash does not."""
        if doubt.raised is None:
            return True
        return not await self._failed(doubt.raised)

    async def _attempt(self) -> bool:
        """Make one attempt; True when that settled the effect."""
        await self._announce()
        ending = await self._bridge.executor.attempt(
            self._effect, self._arguments, self._next(), self._begin
        )
        if isinstance(ending, Returned):
            self._post_completed(ending.value, "attempt")
            return True
        raised = timed_out(ending, self._effect.name) if isinstance(ending, TimedOut) else ending
        if raised.returned:
            # It happened, whatever the declaration: another attempt would return the same, and a failure would be a lie.
            self._post_in_doubt(f"it returned, and {raised.failure.message}")
            return True
        if raised.not_applied or self._effect.repeat is Repeat.IDEMPOTENT:
            return await self._failed(raised)
        why = f"the attempt ended in {raised.failure.type}: {raised.failure.message}"
        self._doubt = _Doubt(why, self._bridge.clock.monotonic() - self._began, raised)
        return False

    async def _announce(self) -> None:
        """Write that an attempt begins, if it is not the first: no due time any more.

        So whoever finds a due time knows that none has begun since, and a worker that has lost the run meanwhile, or whose run was
        terminated, learns of it before it acts.
        """
        if self._is_first:
            self._is_first = False
            return
        row = self._bridge.row(self._operation) or OperationPut(
            operation=self._operation, kind="effect", name=self._effect.name
        )
        row = msgspec.structs.replace(row, due_at=None)
        await self._bridge.propose(Proposal(Rank.ROW, guard=self._operation, row=row))

    def _begin(self) -> None:
        """Take the last look before the world is changed; called where the body runs."""
        self._bridge.check_lease()
        self._began = self._bridge.clock.monotonic()

    def _next(self) -> Attempt:
        """Return the description of the next attempt, or of the one that a probe asks about."""
        return self._bridge.attempt(
            self._operation, self._effect.name, self._failures + 1, self._command.intent.key
        )

    async def _failed(self, raised: Raised) -> bool:
        """Count an attempt that was not applied; True when no other one follows."""
        self._failures += 1
        if raised.hopeless or not self._effect.options.retry.allows_another(self._failures):
            self._post_failed(raised.failure)
            return True
        await self._wait_for_next(raised.failure)
        return False

    async def _wait_for_next(self, failure: Failure) -> None:
        await record_failure(
            self._bridge,
            self._operation,
            "effect",
            self._effect.name,
            self._effect.options,
            self._failures,
            failure,
        )

    def _post_completed(self, value: bytes, source: str) -> None:
        self._post(EffectCompleted(self._operation, self._effect.name, Raw(value), source=source))

    def _post_failed(self, failure: Failure) -> None:
        log_failed(self._bridge, self._operation, "effect", self._effect.name, failure)
        self._post(EffectFailed(self._operation, self._effect.name, failure))

    def _post_in_doubt(self, why: str) -> None:
        why = plain(why)
        run = self._bridge.run_key
        logger.warning(
            "run %s: effect %s (%s) is in doubt: %s; look up whether it happened, then say so: "
            "`outlast runs resolve %s --operation %s` with --applied JSON, --not-applied or --failed TEXT",
            run,
            self._effect.name,
            self._operation,
            why,
            run.run_id,
            self._operation,
        )
        self._bridge.post(
            Proposal(
                Rank.OUTCOME,
                EffectInDoubt(self._operation, self._effect.name, why),
                guard=self._operation,
            )
        )

    def _post(self, entry: EffectCompleted | EffectFailed) -> None:
        drop = OperationDrop(entry.operation) if self._bridge.row(entry.operation) else None
        self._bridge.post(Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=drop))
