"""Brings an intended effect to an outcome, or to an honest "in doubt".

An attempt ends in one of three ways: *known* (it returned, or raised what proves that nothing happened), *failed* (an idempotent
receiver can be asked again), or *unknown*. What follows an unknown end is the declaration's business: call again with the same
key, ask the probe, or leave it to an operator; and never before no earlier attempt can act any more (assumption A).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Raw
from msgspec.structs import replace

from outlast.effects.intent import Applied, NotApplied, Repeat, Unknown, quiet_after
from outlast.effects.standing import failure_in
from outlast.errors import OutlastError, PermissionDeniedError
from outlast.journal.entry import (
    Attempted,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    KnownEffect,
    OperationId,
    Probed,
)
from outlast.journal.failure import Failure, capture, tell
from outlast.replay.command import SettleEffect
from outlast.store.change import OperationPut, Permit, Refused, Restored
from outlast.worker import forgotten
from outlast.worker.again import pause_after
from outlast.worker.begin import probe_when_free
from outlast.worker.bridge import Bridge
from outlast.worker.executor import LeftOpen, NoAnswer, Raised, Returned, TimedOut
from outlast.worker.hold import HeldBack
from outlast.worker.late import overtaken
from outlast.worker.log import log_doubt
from outlast.worker.look import SOONER
from outlast.worker.memory import Memory
from outlast.worker.proposal import Proposal, Rank
from outlast.worker.series import Series, log_failed, rest_of, row_of, timed_out
from outlast.worker.text import plain
from outlast.workflows.definition import Effect

logger = logging.getLogger("outlast.worker")

_REMEMBERED = 10
"""So many attempts, and so many answers of the probe, are told of in a doubt."""

_UNKNOWN = (
    "the effect may have happened: no attempt has proved that it did not (`not_applied=` names the errors that do); an equal call has "
    "the same idempotency key"
)
"""Added to the exception that the workflow gets."""


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


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of attempts that were made before.

    Args:
        fresh: None was made under this intent: this worker has just recorded it, or an operator has cleared it.
        lost: What the origin of a fork may have attempted, or may be about to.
        forgotten: The store was put back to an earlier state: one may have been made, whatever stands in it.
    """

    fresh: bool = False
    lost: KnownEffect | None = None
    forgotten: Restored | None = None

    @property
    def is_none(self) -> bool:
        """Whether none can have been made."""
        return self.fresh and self.forgotten is None


class EffectRun:
    """One intended effect on its way to an outcome."""

    def __init__(
        self,
        bridge: Bridge,
        command: SettleEffect,
        effect: Effect[..., object],
        past: Past,
    ) -> None:
        self._bridge = bridge
        self._command = command
        self._effect = effect
        self._operation: OperationId = command.operation
        self._arguments = bytes(command.intent.effective)
        row = row_of(bridge, command.operation, effect)
        limit = effect.options.schedule_to_close_timeout
        self._series = Series(
            bridge,
            command.operation,
            effect,
            failures=row.failures if row else 0,
            deadline=bridge.deadline(command.operation, command.scheduled_at, limit),
            key=command.intent.key,
        )
        self._series.undoes_key = command.undoes_key
        self._rest = rest_of(row, row.due_at, effect.options) if row and row.due_at else None
        self._past = past
        self._lost = past.lost
        self._memory = Memory(effect, bridge.clock, _used_at(command, past))
        # When an attempt could last have begun, by whomever.
        self._began = bridge.clock.monotonic() - self._idle()
        # A due time stands in the row until the next attempt is announced: none has begun then, whatever clocks say.
        self._is_announced = past.is_none
        self._fresh_until = 0.0
        """When the answers on which the attempt rests are too old to begin on, by the monotonic clock."""
        self._permit: Permit | None = None
        self._stale = 0
        """How often in a row they were that when a thread was free."""
        self._attempts: deque[Attempted] = deque(_recorded(row), maxlen=_REMEMBERED)
        self._probes: deque[Probed] = deque(maxlen=_REMEMBERED)
        # An error of one attempt, whatever it proves, says nothing of those before: only an answer does.
        is_known = past.is_none or (
            self._rest is not None and row is not None and row.unapplied and not past.forgotten
        )
        self._may_have_happened = effect.repeat is Repeat.IDEMPOTENT and (
            command.is_repeated or not is_known
        )
        is_resting = self._rest is not None and not past.forgotten
        self._doubt = None if past.is_none or is_resting else self._recovered()

    async def run(self) -> None:
        """Go on until there is an outcome, and post it."""
        # A thread of a former life of this process may still be in the middle of it.
        await self._bridge.executor.returned(self._bridge.run_key, self._operation)
        await self._bridge.deposited()
        if self._rest is not None:
            await self._bridge.rest(self._operation, self._rest)
        while True:
            if self._doubt is not None and not await self._may_call_again(self._doubt):
                return
            self._doubt = None
            if not self._bridge.is_open(self._operation):
                return
            await self._bridge.hold.free(self._operation)
            if self._is_forgotten():
                await self._leave(self._memory.why())
                return
            if self._is_too_late:
                self._post_failed(self._series.expired())
                return
            if await self._attempt():
                return

    @property
    def _is_too_late(self) -> bool:
        """Whether the time for all attempts is over. What may have happened is called all the same, to learn what became of it."""
        return self._series.is_over and not self._may_have_happened

    def _is_forgotten(self, after: timedelta = timedelta(0)) -> bool:
        """Whether something may have happened, and an attempt that begins so much later might make it happen again."""
        is_over = self._memory.is_over(self._bridge.store_now(), after=after)
        return is_over and self._may_have_happened

    def _idle(self) -> float:
        """Return how many seconds ago somebody could last have begun an attempt."""
        idle = self._bridge.idle_seconds()
        if self._past.forgotten is None:
            return idle
        # Until the store was put back, others may have had the run of whom nothing is known.
        since = self._bridge.store_now() - self._past.forgotten.at
        return min(idle, max(0.0, since.total_seconds()))

    def _recovered(self) -> _Doubt:
        """What a former owner left: it may have begun an attempt, and nobody wrote how that ended."""
        idle = self._idle()
        began_at, where = self._series.begun_at, ""
        why = "the worker that made the last attempt is gone"
        if self._lost is not None:
            began_at, where = None, f"{self._lost.operation} of run {self._lost.run_id}"
            why = f"nobody knows how {where} ended"
        elif self._past.forgotten is not None:
            began_at, why = None, forgotten.why(self._past.forgotten)
        self._attempts.append(Attempted(self._series.failures + 1, began_at, why))
        return _Doubt(why, idle)

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
            timeout=self._longest_attempt(),
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
                extra={"step": self._effect.name},
            )
            await self._bridge.stand_by(self._operation, wait.total_seconds())

    async def _ask_probe(self, doubt: _Doubt) -> bool:
        asked, policy = 0, self._effect.probe_retry
        while True:
            answer = await probe_when_free(
                self._bridge, self._effect, self._arguments, self._series.next()
            )
            asked += 1
            self._probes.append(Probed(self._bridge.store_now(), _said(answer)))
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
                        "run %s: effect %s (%s): asked %d%s, the probe cannot say whether it happened: %s",
                        self._bridge.run_key,
                        self._effect.name,
                        self._operation,
                        asked,
                        f" of {policy.maximum_attempts} times" if policy.maximum_attempts else "",
                        plain(why),
                        extra={"step": self._effect.name},
                    )
                    is_hopeless = isinstance(answer, NoAnswer) and answer.hopeless
                    if policy.allows_another(asked) and not is_hopeless:
                        gap = policy.gap(asked).total_seconds()
                        await self._bridge.stand_by(self._operation, gap)
                        continue
                    times = "once" if asked == 1 else f"{asked} times"
                    self._post_in_doubt(f"{doubt.why}; asked {times}, the probe cannot say: {why}")
                    return False

    async def _count_failure(self, doubt: _Doubt) -> bool:
        """The probe says that the attempt was not applied. A failed one counts; one cut off by a crash does not."""
        if doubt.raised is None:
            return True
        return not await self._failed(doubt.raised)

    async def _attempt(self) -> bool:
        """Make one attempt; True when that settled the effect."""
        try:
            refusal = await self._announce()
        except HeldBack:
            return False
        if refusal is not None:
            await self._forbidden(refusal)
            return True
        if self._is_too_late:
            return False
        is_last = self._series.is_over
        # What is called after the time for all attempts is called to learn what became of them.
        left = self._longest_attempt() if is_last else self._series.left
        attempt = self._series.next()
        try:
            with self._bridge.acting(self._operation):
                ending = await self._series.attempt(
                    self._arguments, self._begin, left=left, late=self._bridge.late(attempt)
                )
        except HeldBack:
            # Its time may be over when the run goes on, or the answers too old on which it rests.
            await self._held_back()
            return False
        self._is_announced, self._stale = False, 0
        assert not isinstance(ending, LeftOpen), "an effect is never completed from outside"
        end = timed_out(ending, self._effect) if isinstance(ending, TimedOut) else ending
        if not self._bridge.is_open(self._operation):
            self._post_overtaken(end)
            return True
        if isinstance(end, Returned):
            completed = self._completed(end.value, "attempt")
            self._bridge.returned(attempt, end, self._outcome(completed))
            return True
        raised = end
        ended = tell(raised.failure)
        self._attempts.append(Attempted(attempt.number, self._series.begun_at, plain(ended)))
        if raised.returned:
            # It happened, whatever the declaration: another attempt would return the same, and a failure would be a lie.
            self._post_in_doubt(f"it returned, and {raised.failure.message}")
            return True
        if raised.not_applied:
            return await self._failed(raised, is_last=is_last)
        if self._effect.repeat is Repeat.IDEMPOTENT:
            self._may_have_happened = True
            return await self._failed(raised, is_last=is_last)
        why = f"the attempt ended in {tell(raised.failure)}"
        self._doubt = _Doubt(why, self._bridge.clock.monotonic() - self._began, raised)
        return False

    def _longest_attempt(self) -> timedelta | None:
        """Return how long one attempt may take at most; None where nothing says so."""
        options = self._effect.options
        return options.start_to_close_timeout or options.schedule_to_close_timeout

    async def _announce(self) -> OutlastError | None:
        """Write that an attempt begins, if that is not known since the intent, or since the last one ended: no due time any more.

        So whoever finds a due time knows that none has begun since, and a worker that has lost the run meanwhile, or whose run was
        terminated, learns of it before it acts. Whether it may be made is asked before, and what was answered rides along.

        Returns:
            Why it may not be made.

        Raises:
            HeldBack: Something holds it since.
        """
        refusals = aged = 0
        permit = self._bridge.clearance.cleared(self._operation) if self._is_announced else None
        while permit is None:
            if (refusals or self._stale) and self._series.is_over:
                return self._unanswered() if self._may_have_happened else None
            found = await self._bridge.clearance.again(self._command.intent, self._effect)
            if isinstance(found, OutlastError):
                return found
            self._bridge.hold.check(self._operation)
            self._series.begun_at = self._bridge.store_now()
            row = self._series.begun()
            verdict = await self._bridge.propose(
                Proposal(Rank.ROW, guard=self._operation, row=row, permit=found)
            )
            if isinstance(verdict, Refused):
                refusals += 1
                aged = aged + 1 if verdict.reason == "aged" else 0
                self._bridge.clearance.say_aged(found, self._effect.name, aged)
                await asyncio.sleep(pause_after(refusals))
            else:
                self._is_announced, permit = True, found
        now = self._bridge.store_now()
        left = permit.within - (now - permit.checked_at)
        self._fresh_until = self._bridge.clock.monotonic() + left.total_seconds()
        self._series.begun_at, self._permit = now, permit
        return None

    async def _held_back(self) -> None:
        """Count how often in a row the answers were too old when a thread was free: they are asked for again, after a longer pause each time."""
        if self._bridge.clock.monotonic() <= self._fresh_until or self._permit is None:
            self._stale = 0
            return
        self._stale += 1
        self._bridge.clearance.say_aged(
            self._permit, self._effect.name, self._stale, "a free thread"
        )
        if (pause := pause_after(self._stale)) > 0:
            await asyncio.sleep(pause)

    def _unanswered(self) -> PermissionDeniedError:
        """Return why there is no attempt any more: its time was over before there were answers that counted."""
        return PermissionDeniedError(
            f"whether {self._effect.name} may be attempted again could not be found out before its time was over",
            reason="error",
            hint=SOONER,
        )

    async def _forbidden(self, error: OutlastError) -> None:
        """Attempt it no more: it did not happen, or somebody must say whether it did."""
        failure = capture(error)
        if self._may_have_happened:
            await self._leave(
                f"it may have happened, and must not be attempted again: {tell(failure)}"
            )
            return
        self._post_failed(failure)

    def _begin(self) -> None:
        """Take the last look before the world is changed; called where the body runs."""
        self._bridge.check_lease()
        # It may have waited for a free thread: meanwhile its outcome may have come from elsewhere, its receiver have forgotten the key, or
        # the answers on which it rests have become too old.
        is_known = not self._bridge.is_open(self._operation)
        is_stale = self._bridge.clock.monotonic() > self._fresh_until
        if is_known or is_stale or (self._may_have_happened and self._memory.is_over_here()):
            raise HeldBack
        self._began = self._bridge.clock.monotonic()

    async def _failed(self, raised: Raised, *, is_last: bool = False) -> bool:
        """Count an attempt that was not applied, or whose receiver knows its key; True when no other one follows.

        Args:
            is_last: It was made after the time for all attempts.
        """
        series, failure = self._series, raised.failure
        series.failures += 1
        if raised.hopeless or not self._effect.options.retry.allows_another(series.failures):
            await self._end_failed(failure)
            return True
        gap, left = series.gap_after(failure), series.left
        if left is not None and gap >= left:
            if not self._may_have_happened:
                self._post_failed(series.expired(failure))
                return True
            if is_last:
                await self._give_up(failure)
                return True
            # Something may have happened: it is called a last time when its time is over.
            gap = max(left, timedelta(0))
        if self._is_forgotten(gap):
            await self._leave(f"{self._memory.why()}; the last one ended in {tell(failure)}")
            return True
        await series.record_failure(failure, gap, unapplied=not self._may_have_happened)
        return False

    async def _give_up(self, failure: Failure) -> None:
        """Leave to an operator what no attempt has answered in all its time; when none of them can act any more.

        Args:
            failure: Of the last one, which was made after that time.
        """
        limit = self._effect.options.schedule_to_close_timeout
        why = (
            f"its time of {limit} for all attempts is over, and none of them has said whether it happened; the last one, made after "
            f"that, ended in {tell(failure)}"
        )
        await self._leave(why)

    async def _leave(self, why: str) -> None:
        """Put it in doubt when no attempt can act any more."""
        await self._quiet(_Doubt(why, self._bridge.clock.monotonic() - self._began))
        self._post_in_doubt(why)

    async def _end_failed(self, failure: Failure) -> None:
        """Let it fail; what undoes it, where something will, must not overtake it, and may have to know its result."""
        intent = self._command.intent
        undone = intent.saga and intent.compensation
        if self._may_have_happened and (undone or intent.compensates):
            idle = self._bridge.clock.monotonic() - self._began
            await self._quiet(_Doubt("the last attempt may have happened", idle))
        if self._may_have_happened and undone and intent.needs_result:
            self._post_in_doubt(
                f"it was given up, may have happened, and {intent.compensation} needs its result to undo it; the last attempt ended in "
                f"{tell(failure)} (name the exceptions that prove that nothing happened in not_applied=)"
            )
            return
        self._post_failed(failure)

    def _post_overtaken(self, end: Returned | Raised) -> None:
        """Tell how an attempt ended whose effect has its outcome already: from a worker that had lost the run, while it was made."""
        if isinstance(end, Raised) and end.not_applied:
            return
        outcome = (
            self._completed(end.value, "attempt")
            if isinstance(end, Returned)
            else EffectFailed(self._operation, self._effect.name, end.failure)
        )
        self._bridge.post(Proposal(Rank.ARRIVAL, overtaken(outcome)))

    def _post_completed(self, value: bytes, source: str) -> None:
        self._post(self._completed(value, source))

    def _completed(self, value: bytes, source: str) -> EffectCompleted:
        return EffectCompleted(self._operation, self._effect.name, Raw(value), source=source)

    def _post_failed(self, failure: Failure) -> None:
        if self._command.intent.compensates:
            # What is to be undone is not left at that: somebody sees to it.
            self._post_in_doubt(f"it was given up: {tell(failure)}", failure)
            return
        unknown = self._may_have_happened
        if unknown:
            failure = replace(failure, notes=(*failure.notes, _UNKNOWN))
        failed = EffectFailed(self._operation, self._effect.name, failure, unknown=unknown)
        log_failed(self._bridge.run_key, failed)
        self._post(failed)

    def _post_in_doubt(self, why: str, failure: Failure | None = None) -> None:
        doubt = EffectInDoubt(
            self._operation,
            self._effect.name,
            plain(why),
            attempts=tuple(self._attempts),
            probes=tuple(self._probes),
            failure=failure,
        )
        log_doubt(self._bridge.run_key, doubt, self._command.intent)
        self._bridge.post(
            Proposal(
                Rank.OUTCOME,
                doubt,
                guard=self._operation,
                row=self._series.doubtful(),
                # What an attempt has come to elsewhere may lie in the inbox already.
                yields=True,
            )
        )

    def _post(self, entry: EffectCompleted | EffectFailed) -> None:
        self._bridge.post(self._outcome(entry))

    def _outcome(self, entry: EffectCompleted | EffectFailed) -> Proposal:
        return Proposal(Rank.OUTCOME, entry, guard=entry.operation, row=self._series.drop())


def _recorded(row: OperationPut | None) -> list[Attempted]:
    """Return what a row says of the attempts that have failed: how the last one did, and when that was announced."""
    if row is None or not row.failures:
        return []
    numbers = range(max(1, row.failures - _REMEMBERED + 1), row.failures)
    # Without a due time it is the attempt after it that was announced last.
    began_at = row.begun_at if row.due_at is not None else None
    why = failure_in(row.detail) or "failed"
    return [
        *(Attempted(number, ended="failed") for number in numbers),
        Attempted(row.failures, began_at, why),
    ]


def _said(answer: Applied[bytes] | NotApplied | Unknown) -> str:
    """Return what a probe answered, in words."""
    match answer:
        case Applied():
            return "applied"
        case NotApplied():
            return "not applied"
        case Unknown(why):
            return plain(f"unknown: {why}")


def _used_at(command: SettleEffect, past: Past) -> datetime | None:
    """Return when the key may have been used first; None where nobody knows."""
    known = [command.used_at]
    if past.lost is not None:
        known = [past.lost.intended_at, *(known if command.used_at is not None else ())]
    if past.forgotten is not None:
        known.append(past.forgotten.until)
    times = [one for one in known if one is not None]
    return min(times) if len(times) == len(known) else None
