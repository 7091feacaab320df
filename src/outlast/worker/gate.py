"""Where an effect asks for leave: the one place that knows keys, grants, what a fork may do, and what has to be asked of people.

It runs immediately before the intent is committed, and what it found rides in that change. What it is told was found out immediately
before (`Found`); it finds out nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from outlast.effects.key import idempotency_key
from outlast.effects.known import KnownEffects, requested_sha256
from outlast.errors import (
    ApprovalError,
    ApprovalExpiredError,
    ApprovalMismatchError,
    ApprovalSpentError,
    OutlastError,
)
from outlast.journal.asking import REACHES, AskedAgain, Precondition, Terms
from outlast.journal.entry import (
    ApprovalRequested,
    Cover,
    EffectCompleted,
    EffectFailed,
    EffectInDoubt,
    EffectIntended,
    EffectRefused,
    Entry,
    KnownEffect,
    OperationId,
    Started,
)
from outlast.journal.failure import capture, tell
from outlast.journal.subject import subject_of
from outlast.replay.asking import approval_id, terms_of
from outlast.replay.command import IntendEffect, RequestApproval
from outlast.replay.context import EffectRequest
from outlast.store.change import GrantSpend, Permit
from outlast.store.sticky import StickyRow
from outlast.store.sticky_condition import vote_of
from outlast.store.voter import is_kept_out
from outlast.worker.fork import inherited_no_approval, known_outcome, undone_refused, why_not

_BY_THE_GATE = ("declared", "policy")
"""The sources of what the gate asks."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Somebody has to say yes to an effect before it is intended.

    Args:
        source: Its declaration wants it, or a policy.
        rule: Which one of the policy.
        preconditions: On what the yes rests, as it is now.
        why: What the approver is told.
        must_show: Only a yes to what the gate itself has asked about the call counts: it shows a definition that nobody has looked at.
    """

    source: Literal["declared", "policy"]
    terms: Terms
    rule: str = ""
    policy_version: str = ""
    preconditions: tuple[Precondition, ...] = ()
    why: str = "declared"
    must_show: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What was found out about an effect immediately before it asks for leave.

    Args:
        action: What would run: the call after hooks, or as an approver has left it.
        demands: What has to be asked, in this order, unless it is granted already.
        policy_version: Of the rules that were looked at.
        permit: On what it rests that the effect may begin.
        is_asked: Whether anything was asked but the kill switch.
        shown: What whoever is asked is shown beside the call.
        sticky: Each yes of before that sticks, and fits the call.
        server: Of a foreign tool: whose it is.
        definition: Of a foreign tool: the hash of its definition.
        turn: Which turn of the run it is.
    """

    action: EffectRequest
    demands: tuple[Demand, ...] = ()
    policy_version: str = ""
    permit: Permit | None = None
    is_asked: bool = False
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sticky: tuple[StickyRow, ...] = ()
    server: str = ""
    definition: str = ""
    turn: str = ""

    @property
    def effective(self) -> bytes:
        """JSON object of the arguments that would run, by parameter name."""
        return self.action.arguments


@dataclass(frozen=True, slots=True)
class Leave:
    """The effect may be intended.

    Args:
        spends: The covers that the same change must spend.
        permit: What the same change must hold.
    """

    intent: EffectIntended
    spends: tuple[GrantSpend, ...] = ()
    permit: Permit | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody has to say yes first; where somebody has, whose decision sticks, it is asked and answered in one.

    Args:
        sticky: The decision that answers it, which may not stick any more when that is written; None where somebody is asked.
    """

    request: RequestApproval
    sticky: StickyRow | None = None


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


Answer: TypeAlias = Leave | Ask | Settled | Doubtful | EffectRefused


class Gate:
    """Lets effects through.

    Args:
        started: The run's first entry: it names the run's keys, and what becomes of the effects of a fork.
        run_id: For messages.
        generation: Of the run.
    """

    def __init__(self, started: Started, run_id: str, generation: int = 1) -> None:
        self._started = started
        self._run_id = run_id
        self._generation = generation
        self._known = KnownEffects()
        self._requests: dict[str, ApprovalRequested] = {}
        self._counts: dict[OperationId, int] = {}
        same_key = started.effects == "same_key"
        self._namespace = started.keys if same_key else started.namespace

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._known.note(entry)
        if isinstance(entry, ApprovalRequested):
            # What is shown is not looked at here.
            self._requests[entry.approval_id] = replace(entry, subject=Raw(b"null"))
            self._counts[entry.operation] = self._counts.get(entry.operation, 0) + 1
        elif isinstance(entry, EffectIntended):
            for one in entry.asked:
                self._requests.pop(one, None)

    def settled(self, command: IntendEffect, epoch: int) -> Answer | None:
        """Return what is recorded of an effect about which nothing has to be found out: a fork has its outcome, or does not make it."""
        known = self._known_of(command)
        if known is not None and known.outcome == "undone":
            refusal = undone_refused(self._started, known, command.name)
        elif known is not None and known.outcome != "unknown":
            return Settled(_intent(command, epoch, known.key), known_outcome(known, command))
        else:
            refusal = why_not(self._started, self._known.forked, known, command.name)
        return None if refusal is None else self.refuse(refusal, command, epoch)

    def ask(self, command: IntendEffect, epoch: int, found: Found) -> Answer:
        """Return the intent to record, with its key and the covers that it spends; or what is recorded instead."""
        if (settled := self.settled(command, epoch)) is not None:
            return settled
        known = self._known_of(command)
        # Of what was undone nothing is known any more.
        key = known.key if known and known.outcome != "undone" else self._key(command)
        intent = _intent(command, epoch, key, found)
        if command.compensates:
            # What undoes something is covered by the yes to what it undoes.
            return Leave(intent, permit=found.permit)
        return self._covered(command, intent, found)

    def would_ask(self, command: IntendEffect, found: Found) -> bool:
        """Whether somebody has to say yes first."""
        return isinstance(self.ask(command, 0, found), Ask)

    def refuse(
        self, error: OutlastError, command: IntendEffect, epoch: int
    ) -> EffectRefused | Doubtful:
        """Return what is recorded of an effect that may not begin, given why; see `refused`."""
        return self.refused(self._refuse(error, command), command, epoch)

    def _known_of(self, command: IntendEffect) -> KnownEffect | None:
        return self._known.find(command.name, command.action_sha256, command.number)

    def _covered(
        self, command: IntendEffect, intent: EffectIntended, found: Found
    ) -> Leave | Ask | EffectRefused:
        """Return the intent with all that it spends, or what has to be asked before it."""
        if command.effective and not found.action.same_arguments(command.effective):
            return self._refuse(_mismatch("what would run is not what was approved"), command)
        asked = [one for one in command.asked if self._fits(one, found)]
        for demand in found.demands:
            if not self._is_granted(demand, command, asked):
                return self._asked(demand, command, found)
        spends: list[GrantSpend] = []
        if command.grant is not None:
            match = self._match(command, found)
            if match is None:
                words = "what would run does not fit what was approved, or the effect is another version by now"
                return self._refuse(_mismatch(words), command)
            spends.append(
                GrantSpend(command.grant.approval_id, command.grant.cover, command.operation, match)
            )
        action = found.action.action_sha256
        spends += [GrantSpend(one, 0, command.operation, action) for one in asked]
        intent = replace(intent, grant=command.grant, asked=tuple(asked))
        return Leave(intent, tuple(spends), found.permit)

    def _asked(self, demand: Demand, command: IntendEffect, found: Found) -> Ask:
        """Return what is asked, with the yes that sticks where there is one on such terms: the nearest, and of these the latest."""
        request = self._request(demand, command, found)
        answers = [one for one in found.sticky if self._answers(one, demand)]
        if not answers:
            return Ask(request)
        row = min(answers, key=lambda one: (REACHES.index(one.put.reach), -one.made_at.timestamp()))
        return Ask(replace(request, votes=(vote_of(row),), reason=row.put.reason.decode()), row)

    def _answers(self, row: StickyRow, demand: Demand) -> bool:
        """Whether a yes that sticks is one on these terms."""
        terms, started = demand.terms, self._started
        if row.role != terms.role or terms.quorum > 1 or not terms.may_stick(row.put.reach):
            return False
        is_self = is_kept_out(
            {row.by} | {row.behalf} - {""},
            four_eyes=terms.four_eyes,
            requesters=(started.principal, *started.requesters),
            barred=(),
        )
        return not (demand.preconditions or is_self)

    def _fits(self, asked: str, found: Found) -> bool:
        """Whether a granted request is spent by the call as it is now; of what was edited or is written otherwise, another is made."""
        request = self._requests.get(asked)
        if request is None or request.source not in _BY_THE_GATE:
            # The store knows what becomes of it.
            return True
        return request.covers[0].action_sha256 == found.action.action_sha256

    def _match(self, command: IntendEffect, found: Found) -> str | None:
        """Return the hash by which the store compares the cover that the run's code has asked for; None when it does not fit, or is unknown."""
        assert command.grant is not None
        request = self._requests.get(command.grant.approval_id)
        if request is None or not 0 <= command.grant.cover < len(request.covers):
            return None
        cover = request.covers[command.grant.cover]
        if cover.action_sha256:
            return found.action.action_sha256
        if (cover.version or "") != found.action.version:
            return None
        fields = found.action.fields
        fits = all(fields.get(name) == value for name, value in cover.where.items())
        return command.match_sha256 if fits else None

    def _is_granted(self, demand: Demand, command: IntendEffect, asked: list[str]) -> bool:
        """Whether somebody has said yes on terms that are as strict, with all the facts in sight."""
        ids = [*asked]
        if command.grant is not None and not demand.must_show:
            ids.append(command.grant.approval_id)
        requests = [self._requests[one] for one in ids if one in self._requests]
        return any(
            one.source != "purpose"
            and terms_of(one).is_as_strict_as(demand.terms, one.rung)
            and _is_asked_as_often(one, demand.terms)
            and _rests_on(one, demand.preconditions)
            for one in requests
        )

    def _request(self, demand: Demand, command: IntendEffect, found: Found) -> RequestApproval:
        """Return what is asked of a person about an effect."""
        action = found.action
        cover = Cover(action.name, action.action_sha256, agent=command.agent)
        shown = msgspec.json.encode({"effect": action.name, "why": demand.why, **found.shown})
        subject = subject_of(
            shown,
            [(cover, action.fields)],
            [command.compensation],
            versions=[action.version],
            preconditions=demand.preconditions,
        )
        count = self._counts.get(command.operation, 0)
        return RequestApproval(
            operation=command.operation,
            approval_id=approval_id(command.operation, self._generation, count),
            terms=demand.terms,
            subject=subject.body,
            subject_sha256=subject.sha256,
            covers=(cover,),
            preconditions=demand.preconditions,
            requested=Raw(command.arguments),
            effective=Raw(found.effective),
            source=demand.source,
            policy_version=demand.policy_version or found.policy_version,
            rule=demand.rule,
            again=self._again(demand, command, found),
            version=action.version,
            server=found.server,
            turn=found.turn,
        )

    def _again(self, demand: Demand, command: IntendEffect, found: Found) -> AskedAgain:
        """Return why the same is asked again, although somebody has said yes."""
        former = [self._requests[one] for one in command.asked if one in self._requests]
        stale = [
            one
            for one in former
            if one.source == demand.source and not self._fits(one.approval_id, found)
        ]
        if not stale:
            return ""
        requests = [one for one in self._requests.values() if one.operation == command.operation]
        later = requests[requests.index(stale[-1]) + 1 :]
        # An approver's edit has closed a request, and another one was made of it.
        return "edited" if any(one.again == "edited" for one in later) else "changed"

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
        known = self._known.find(intent.name, requested_sha256(intent), intent.number)
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


def _intent(
    command: IntendEffect, epoch: int, key: str, found: Found | None = None
) -> EffectIntended:
    """Return the intent; without what was found, of what is not asked for leave."""
    action_sha256 = command.action_sha256 if found is None else found.action.action_sha256
    is_other = action_sha256 != command.action_sha256
    return EffectIntended(
        operation=command.operation,
        name=command.name,
        key=key,
        requested=Raw(command.arguments),
        effective=Raw(command.arguments if found is None else found.effective),
        action_sha256=action_sha256,
        requested_sha256=command.action_sha256 if is_other else "",
        policy_version="" if found is None else found.policy_version,
        checked_at=found.permit.checked_at if found and found.permit and found.is_asked else None,
        number=command.number,
        epoch=epoch,
        compensation=command.compensation,
        needs_result=command.needs_result,
        saga=command.saga,
        compensates=command.compensates,
        agent=command.agent,
        definition=UNSET if found is None else found.definition or UNSET,
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
            return _mismatch("the approval does not cover this action as it is now")


def _mismatch(words: str) -> ApprovalMismatchError:
    return ApprovalMismatchError(words, hint="ask for an approval that covers it")


def _is_asked_as_often(request: ApprovalRequested, terms: Terms) -> bool:
    """Whether a yes to a request counts on terms that let none stick so far: not where a decision of before has answered it."""
    by_sticky = any(vote.sticky for vote in request.votes)
    return not by_sticky or terms.may_stick(terms_of(request).sticky)


def _rests_on(request: ApprovalRequested, facts: tuple[Precondition, ...]) -> bool:
    """Whether whoever said yes saw all these facts."""
    return all(any(_is_same_fact(one, fact) for one in request.preconditions) for fact in facts)


def _is_same_fact(one: Precondition, other: Precondition) -> bool:
    """Whether two preconditions look at the same, whatever they found."""
    return (one.name, one.step, bytes(one.arguments)) == (
        other.name,
        other.step,
        bytes(other.arguments),
    )
