"""Where an effect asks for leave: the one place that knows keys, grants, and what a fork may do.

It runs immediately before the intent is committed. What rules, people and facts say was found out before (`worker.permit`), and rides in
that change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from outlast.effects.key import idempotency_key
from outlast.effects.known import KnownEffects
from outlast.errors import (
    ApprovalError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
    OutlastError,
)
from outlast.journal.asking import Precondition, Terms
from outlast.journal.entry import (
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    KnownEffect,
    Started,
)
from outlast.journal.failure import capture, tell
from outlast.replay.command import IntendEffect
from outlast.replay.context import EffectRequest
from outlast.store.change import GrantSpend, Permit
from outlast.worker.fork import inherited_no_approval, known_outcome, undone_refused, why_not


@dataclass(frozen=True, slots=True)
class Demand:
    """Somebody wants a person asked before the effect begins.

    Args:
        source: The declaration of the effect, or the policy.
        reason: Why, where the policy says it.
        rule: Of the policy; empty where no rule has a part in it.
        preconditions: On what the yes would rest, as it is now.
    """

    source: Literal["declared", "policy"]
    terms: Terms
    reason: str = ""
    rule: str = ""
    policy_version: str = ""
    preconditions: tuple[Precondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What was found out about an effect immediately before: nothing forbids it.

    Args:
        request: With the arguments that would run, where hooks have changed them, or an approver; None where they are those of the call.
        demands: What has to be approved, or to be covered by a grant.
        policy_version: Of the rules that were asked; empty for none.
        is_asked: Anything was asked but the kill switch.
    """

    request: EffectRequest | None = None
    demands: tuple[Demand, ...] = ()
    policy_version: str = ""
    permit: Permit | None = None
    is_asked: bool = False


NOTHING = Found()


@dataclass(frozen=True, slots=True)
class Leave:
    """The effect may be intended.

    Args:
        spend: The cover that the same change must spend.
        permit: What the same change rests on.
    """

    intent: EffectIntended
    spend: GrantSpend | None
    permit: Permit | None = None


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A compensation may not be made: it is recorded as intended and, in the same change, as what an operator has to see to."""

    intent: EffectIntended
    doubt: EffectInDoubt


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome is known: intent and outcome are recorded in one change, and nothing is attempted."""

    intent: EffectIntended
    outcome: EffectCompleted | EffectFailed


Answer: TypeAlias = Leave | Settled | Doubtful | EffectRefused


class Gate:
    """Lets effects through.

    Args:
        started: The run's first entry: it names the run's keys, and what becomes of the effects of a fork.
        run_id: For messages.
    """

    def __init__(self, started: Started, run_id: str) -> None:
        self._started = started
        self._run_id = run_id
        self._known = KnownEffects()
        same_key = started.effects == "same_key"
        self._namespace = started.keys if same_key else started.namespace

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._known.note(entry)

    def settled(self, command: IntendEffect, epoch: int) -> Answer | None:
        """Return what is recorded of an effect about which nothing has to be found out: a fork has its outcome, or does not make it."""
        known = self._known_of(command)
        if known is not None and known.outcome == "undone":
            refusal = undone_refused(self._started, known, command.name)
            known = None
        elif known is not None and known.outcome != "unknown":
            return Settled(_intent(command, epoch, known.key), known_outcome(known, command))
        else:
            refusal = why_not(self._started, self._known.forked, known, command.name)
        return None if refusal is None else self.refuse(refusal, command, epoch)

    def ask(self, command: IntendEffect, epoch: int, found: Found = NOTHING) -> Answer:
        """Return the intent to record, with its key and the cover that it spends; or what is recorded instead."""
        if (settled := self.settled(command, epoch)) is not None:
            return settled
        if found.demands and command.grant is None and not command.asked:
            return self.refuse(_uncovered(found.demands[0]), command, epoch)
        known = self._known_of(command)
        intent = _effective(
            _intent(command, epoch, known.key if known else self._key(command)), found
        )
        if command.grant is None:
            return Leave(intent, None, found.permit)
        spend = GrantSpend(
            approval_id=command.grant.approval_id,
            cover=command.grant.cover,
            operation=command.operation,
            match_sha256=_match(command, intent),
        )
        return Leave(replace(intent, grant=command.grant), spend, found.permit)

    def refuse(
        self, error: OutlastError, command: IntendEffect, epoch: int
    ) -> EffectRefused | Doubtful:
        """Return what is recorded of an effect that may not begin, given why; see `refused`."""
        return self.refused(self._refuse(error, command), command, epoch)

    def _known_of(self, command: IntendEffect) -> KnownEffect | None:
        return self._known.find(command.name, command.action_sha256, command.number)

    def refused(
        self, refusal: EffectRefused, command: IntendEffect, epoch: int
    ) -> EffectRefused | Doubtful:
        """Return what is recorded of an effect that may not begin: of a compensation, that somebody has to see to it."""
        if not command.compensates:
            return refusal
        why = f"it may not be made: {tell(refusal.failure)}"
        doubt = EffectInDoubt(command.operation, command.name, why, failure=refusal.failure)
        return Doubtful(_intent(command, epoch, self._key(command)), doubt)

    def attempted_before(self, intent: EffectIntended) -> KnownEffect | None:
        """Return what the origin of a fork may have attempted of an effect that is intended; None when nothing is left unknown."""
        known = self._known.find(intent.name, intent.action_sha256, intent.number)
        return None if known is None or known.outcome == "undone" else known

    def refusal(self, intent: EffectIntended, reason: str) -> EffectRefused:
        """Return the entry that tells the workflow why the store did not let the intent through.

        Args:
            reason: The store's word: `expired`, `mismatch`, `unapproved` or `spent`.
        """
        forked = self._known.forked
        if reason == "unapproved" and forked is not None:
            return self._refuse(inherited_no_approval(forked), intent)
        return self._refuse(refusal_of(reason), intent)

    def _key(self, command: IntendEffect) -> str:
        return idempotency_key(
            self._namespace, command.name, command.payload_sha256, number=command.number
        )

    def _refuse(self, error: OutlastError, asked: IntendEffect | EffectIntended) -> EffectRefused:
        error.run, error.operation, error.step = self._run_id, asked.operation, asked.name
        return EffectRefused(asked.operation, asked.name, capture(error))


def _intent(command: IntendEffect, epoch: int, key: str) -> EffectIntended:
    return EffectIntended(
        operation=command.operation,
        name=command.name,
        key=key,
        requested=Raw(command.arguments),
        effective=Raw(command.arguments),
        action_sha256=command.action_sha256,
        number=command.number,
        epoch=epoch,
        compensation=command.compensation,
        needs_result=command.needs_result,
        saga=command.saga,
        compensates=command.compensates,
        agent=command.agent,
    )


def _effective(intent: EffectIntended, found: Found) -> EffectIntended:
    """Return an intent of what would run, with what was found out about it."""
    permit, request = found.permit, found.request
    checked_at = permit.checked_at if permit is not None and found.is_asked else None
    intent = replace(intent, policy_version=found.policy_version, checked_at=checked_at)
    if request is None:
        return intent
    return replace(
        intent,
        effective=Raw(request.arguments),
        action_sha256=request.action_sha256,
        requested_sha256=intent.action_sha256,
    )


def _match(command: IntendEffect, intent: EffectIntended) -> str:
    """Return what the cover has to be for: just this action, as it would run, or what its pattern names."""
    is_exact = command.match_sha256 == command.action_sha256
    return intent.action_sha256 if is_exact else command.match_sha256


def _uncovered(demand: Demand) -> ApprovalMismatchError:
    return ApprovalMismatchError(
        f"it needs a yes of {demand.terms.role}, and no approval covers it",
        hint="await outlast.approval(…, covers=[…]) before it",
    )


def refusal_of(reason: str) -> ApprovalError:
    """Return the error for the store's word on a grant: `expired`, `mismatch`, `unapproved` or `spent`."""
    match reason:
        case "expired":
            return ApprovalExpiredError(
                "the approval's time to begin is over",
                stage="use",
                hint="ask again, or give a longer use_within",
            )
        case "spent":
            return ApprovalSpentError(
                "the approval was spent by another operation", hint="ask again for another one"
            )
        case _:
            return ApprovalMismatchError(
                "the approval does not cover this action as it is now",
                hint="ask for an approval that covers it",
            )
