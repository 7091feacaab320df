"""What has to be found out immediately before an effect may begin: kill switch, policy, authority, the facts that a yes rests on.

Nothing is written here, and nothing remembered: whoever takes the run up asks again. Every answer is a yes that rests on rows of the
store, whose versions it names, or a no of now; what fails or is late is a no. Where nothing can say no but the kill switch, and that is
quiet, the answer is there at once: no task, and nobody is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from outlast.errors import (
    ApprovalError,
    ApprovalMismatchError,
    EffectsStoppedError,
    OutlastError,
    PermissionDeniedError,
)
from outlast.journal.asking import Terms
from outlast.journal.entry import EffectIntended, Entry, OperationId, Started
from outlast.policy import Allowed, Asked, Denied, Policy, ToolCall, decide
from outlast.replay.command import IntendEffect
from outlast.replay.context import EffectRequest
from outlast.store.change import Guard, Permit
from outlast.store.sticky import STICKY, StickyRow
from outlast.worker import foreign
from outlast.worker.authorised import Authorised
from outlast.worker.bridge import Bridge
from outlast.worker.control import Control
from outlast.worker.deck import Deck
from outlast.worker.gate import Demand, Found, refusal_of
from outlast.worker.grants import Grants
from outlast.worker.look import SOONER, late_answer
from outlast.worker.precondition import Facts, broken
from outlast.worker.sticky import Sticking, lent_anew
from outlast.workflows.definition import Effect

T = TypeVar("T")

DEFAULT_ROLE = "approver"
"""Who is asked where a rule does not say."""

DEFAULT_EXPIRY = timedelta(days=1)
"""How long they have where a rule does not say."""

DAY = timedelta(days=1)
"""How old an answer may be that rests on nothing but versions of rows."""

_NO = (ApprovalError, PermissionDeniedError, EffectsStoppedError)


class Read(Protocol):
    """Reads from the store, however long that is away."""

    def __call__(self, read: Callable[[], Awaitable[T]], /) -> Awaitable[T]:
        """Return what it reads."""
        ...


class Finder:
    """Finds out for the effects of one run.

    Args:
        workflow: The run's; so is the generation.
        would_ask: Whether the gate asks a person, given what was found.
        read: Reads from the store, however long that is away.
    """

    def __init__(  # noqa: PLR0913 - each is another thing that it looks at
        self,
        bridge: Bridge,
        deck: Deck,
        started: Started,
        workflow: str,
        generation: int,
        would_ask: Callable[[IntendEffect, Found], bool],
        read: Read,
    ) -> None:
        self._bridge = bridge
        self._deck = deck
        self._tenant = bridge.run_key.tenant
        self._principal = started.principal
        self._workflow = workflow
        self._would_ask = would_ask
        self._read = read
        self._grants = Grants()
        self._sticking = Sticking(
            bridge.run_key,
            generation,
            lambda wanted: read(lambda: deck.store.sticky(self._tenant, wanted)),
        )
        self._facts = Facts(bridge, deck.registry, deck.recheck_within)
        self._people = Authorised(
            deck.authority,
            tenant=self._tenant,
            workflow=workflow,
            starter=started.principal,
            now=bridge.store_now,
            fresh=self._control,
            within=deck.recheck_within,
        )

    def note(self, entry: Entry) -> None:
        """Take in the next entry of the run's journal."""
        self._grants.note(entry)
        self._sticking.note(entry)

    # Before the intent

    def quick(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> Found | None:
        """Return what is found where nobody has to be asked; None where somebody has.

        Args:
            request: The call.
        """
        is_declared = effect.rules.approval is not None and not command.compensates
        if is_declared or foreign.is_foreign(effect) or self._needs_more(command):
            return None
        permit = self._at_once(command.operation)
        return None if permit is None else Found(request, permit=permit)

    async def find(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> Found | OutlastError:
        """Return what is found, or why the effect may not begin."""
        try:
            return await self._find(command, request, effect)
        except _NO as error:
            # Where it was raised in here says nothing to anybody.
            return error.with_traceback(None)

    def _needs_more(self, use: IntendEffect | EffectIntended) -> bool:
        return use.grant is not None or bool(use.asked) or self._deck.book.rules is not None

    def _at_once(self, operation: OperationId) -> Permit | None:
        control = self._deck.controls.known(self._tenant)
        if control is None or not (control.is_quiet and self._people.is_free(control)):
            return None
        guards = self._people.guards(control)
        return Permit(operation, self._bridge.store_now(), DAY, guards, control.by_stops)

    async def _find(
        self, command: IntendEffect, request: EffectRequest, effect: Effect[..., Any]
    ) -> Found:
        self._check_time(command, self._bridge.store_now())
        arguments = self._base(command)
        call = self._call(command.name, command.agent, effect, arguments)
        control = await self._unstopped(call, effect)
        # What rests on versions of rows does not age.
        checked_at = self._bridge.store_now()
        rules = foreign.rules_of(effect, self._deck.book.rules)
        call = foreign.looked(call, effect, control, rules)
        version = "" if rules is None else rules.version
        if command.compensates:
            # It is never asked for, and nothing holds it up but the kill switch, a rule that denies it, and a tool that is not pinned.
            foreign.check_undoing(call)
            if rules is not None:
                await self._judge(rules.undoing, call, control, version)
            pins = foreign.guards(effect, control)
            permit = self._permit(command.operation, checked_at, control, pins)
            definition = foreign.definition_of(effect)
            return Found(request, policy_version=version, permit=permit, definition=definition)
        demands: tuple[Demand, ...] = ()
        if rules is not None:
            verdict = await self._judge(rules.whole, call, control, version)
            demands = _demanded(verdict, must_show=foreign.is_unseen(call))
            arguments = _narrowed(call, verdict, arguments)
        action = _action(command, request, effect, arguments)
        guards = await self._people.check(control, self._grants.voters(command))
        guards = (*guards, *foreign.guards(effect, control))
        permit = self._permit(command.operation, checked_at, control, guards)
        is_asked = rules is not None or self._people.are_asked
        found = Found(
            action,
            demands,
            version,
            permit,
            is_asked=is_asked,
            shown=foreign.shown(effect, call),
            server=call.server,
            definition=foreign.definition_of(effect),
            turn=self._sticking.turn,
        )
        found = await self._with_declared(command, found, effect)
        found = await self._with_sticky(command, found, control)
        has_looked = await self._hold_still(command)
        return replace(found, is_asked=is_asked or has_looked)

    async def _with_sticky(self, command: IntendEffect, found: Found, control: Control) -> Found:
        """Add what sticks of earlier decisions, where a person would be asked; what was answered by one still rests on it."""
        ids = self._grants.sticky(command)
        if not (ids or self._would_ask(command, found)):
            return found
        store, tenant = self._deck.store, self._tenant
        version = await self._read(lambda: store.control(tenant, STICKY))
        if version is None:
            return found
        guard = Guard(tenant, STICKY, version[0])
        rows = await self._sticking.of(found.action, found.server)
        for row in await self._sticking.check(ids):
            if not await self._is_said_by_the_same(row, control):
                raise lent_anew(row)
        held = [row for row in rows if await self._is_said_by_the_same(row, control)]
        permit = found.permit
        if permit is not None:
            permit = msgspec.structs.replace(permit, authority=(*permit.authority, guard))
        return replace(found, sticky=tuple(held), permit=permit)

    async def _is_said_by_the_same(self, row: StickyRow, control: Control) -> bool:
        """Whether who made a decision holds the role, and by nobody's loan but of whom they spoke for: it would be said by another person, too."""
        how = await self._people.held(control, row.by, row.role)
        return how is not None and how.behalf in ("", row.behalf)

    async def _with_declared(
        self, command: IntendEffect, found: Found, effect: Effect[..., Any]
    ) -> Found:
        """Add what the declaration demands; the facts are looked at where a person is to be shown them."""
        approval = effect.rules.approval
        if approval is None:
            return found
        facts = self._facts.of(approval.preconditions, found.action, effect)
        demand = Demand("declared", approval.terms, preconditions=facts)
        found = replace(found, demands=(demand, *found.demands))
        if facts and self._would_ask(command, found):
            seen = tuple([await self._facts.seen(one, command.operation) for one in facts])
            found = replace(
                found, demands=(replace(demand, preconditions=seen), *found.demands[1:])
            )
        return found

    def _check_time(self, command: IntendEffect, now: datetime) -> None:
        """Ask nobody where the grant has run out; the store says the same."""
        use_by = self._grants.use_by(command)
        if use_by is not None and now >= use_by:
            raise refusal_of("expired")

    def _base(self, command: IntendEffect) -> bytes:
        """Return the arguments on which hooks look: those of the call, but for an edit, which they have to leave alone."""
        is_edited = command.effective and self._grants.is_edited(command.operation)
        return command.effective if is_edited else command.arguments

    async def _hold_still(self, command: IntendEffect) -> bool:
        """Return where what its grants rest on is as it was: whether there is anything of that."""
        unused = self._grants.unused(command)
        for approval_id, fact in unused:
            was = bytes(fact.value)
            now = await self._facts.look(
                fact.name, fact.step, bytes(fact.arguments), command.operation, was
            )
            # Another effect may have begun on the same grant meanwhile, and have changed it.
            if now != was and not self._grants.is_used(approval_id):
                raise broken(fact.name, was, now)
        return bool(unused)

    # Before a later attempt

    async def again(
        self, intent: EffectIntended, effect: Effect[..., Any]
    ) -> Permit | OutlastError:
        """Return on what another attempt of an effect rests, or why it may not be made: nobody is asked to approve it any more."""
        is_asked = foreign.is_foreign(effect) or self._needs_more(intent)
        permit = None if is_asked else self._at_once(intent.operation)
        if permit is not None:
            return permit
        try:
            return await self._again(intent, effect)
        except _NO as error:
            # Where it was raised in here says nothing to anybody.
            return error.with_traceback(None)

    async def _again(self, intent: EffectIntended, effect: Effect[..., Any]) -> Permit:
        call = self._call(intent.name, intent.agent, effect, bytes(intent.effective))
        control = await self._unstopped(call, effect)
        checked_at = self._bridge.store_now()
        rules = foreign.rules_of(effect, self._deck.book.rules)
        call = foreign.looked(call, effect, control, rules)
        foreign.check_again(call, effect, intent)
        if rules is not None:
            policy = rules.undoing if intent.compensates else rules.denials
            await self._judge(policy, call, control, rules.version)
        guards: tuple[Guard, ...] = ()
        if not intent.compensates:
            guards = await self._people.check(control, self._grants.voters(intent))
        guards = (*guards, *foreign.guards(effect, control))
        return self._permit(intent.operation, checked_at, control, guards)

    # What is asked

    async def _control(self) -> Control:
        """Return the control rows as they are now."""
        return await self._read(lambda: self._deck.controls.read(self._tenant))

    async def _unstopped(self, call: ToolCall, effect: Effect[..., Any]) -> Control:
        """Return the control rows where they stop nothing of this kind."""
        control = self._deck.controls.known(self._tenant)
        if (
            control is None
            or _stopped(control, call) is not None
            or not foreign.is_settled(effect, control)
        ):
            # What was read long ago may be over by now.
            control = await self._control()
        if (error := _stopped(control, call)) is not None:
            raise error
        return control

    async def _judge(
        self, policy: Policy, call: ToolCall, control: Control, version: str
    ) -> Allowed | Asked:
        """Return what a policy makes of a call.

        Args:
            version: By which the policy is named, of which this one may be a part.
        """
        may_bypass = policy.mode == "bypass" and await self._people.may_bypass(control)
        now = self._bridge.store_now()
        verdict = await decide(policy, call, stopped=None, now=now, may_bypass=may_bypass)
        if isinstance(verdict, Denied):
            late = f": {late_answer()}" if late_answer() else ""
            by_which = "`outlast policy explain` says by which rule; nothing of the effect has begun by this"
            raise PermissionDeniedError(
                f"the policy denies it: {verdict.reason}{late}",
                reason=verdict.code,
                rule=verdict.rule,
                policy_version=version,
                hint=SOONER if late else by_which,
            )
        return verdict

    def _call(self, name: str, agent: str, effect: Effect[..., Any], arguments: bytes) -> ToolCall:
        call = ToolCall(
            name=name,
            arguments=msgspec.json.decode(arguments),
            tenant=self._tenant,
            agent=agent,
            principal=self._principal,
            workflow=self._workflow,
            version=effect.version,
            writes=True,
        )
        return foreign.named(call, effect)

    def _permit(
        self,
        operation: OperationId,
        checked_at: datetime,
        control: Control,
        guards: tuple[Guard, ...],
    ) -> Permit:
        within = self._deck.recheck_within
        return Permit(operation, checked_at, within, guards, control.by_stops)


def _demanded(verdict: Allowed | Asked, *, must_show: bool) -> tuple[Demand, ...]:
    if isinstance(verdict, Allowed):
        return ()
    terms = Terms(
        verdict.role or DEFAULT_ROLE, verdict.expires_in or DEFAULT_EXPIRY, sticky=verdict.sticky
    )
    return (
        Demand(
            "policy",
            terms,
            verdict.rule,
            verdict.policy_version,
            why=verdict.reason,
            must_show=must_show,
        ),
    )


def _action(
    command: IntendEffect, request: EffectRequest, effect: Effect[..., Any], arguments: bytes
) -> EffectRequest:
    """Return the call as hooks have left it.

    Raises:
        ApprovalMismatchError: It is not what was approved.
        PermissionDeniedError: It is no call of the effect.
    """
    approved = effect.remake(command.effective) if command.effective else None
    try:
        action = request if arguments == command.arguments else effect.remake(arguments)
        # Nobody acts in anybody's name here.
        action = msgspec.structs.replace(action, agent=command.agent)
    except OutlastError as error:
        raise PermissionDeniedError(
            f"the policy denies it: what hooks have made of its arguments does not fit: {error.message}",
            reason="error",
            hint="look at the hooks of the policy",
        ) from error
    if approved is not None and action.action_sha256 != approved.action_sha256:
        raise ApprovalMismatchError(
            "the policy makes another action of the call than the one that was approved",
            hint="ask again: the next request shows the action as it is now",
        )
    return action


def _narrowed(call: ToolCall, verdict: Allowed | Asked, arguments: bytes) -> bytes:
    """Return the arguments of a call, given as JSON, as hooks have left them."""
    left = msgspec.json.encode(verdict.arguments)
    return arguments if left == msgspec.json.encode(call.arguments) else left


def _stopped(control: Control, call: ToolCall) -> EffectsStoppedError | None:
    """Return the error for a call that is stopped."""
    if control.unreadable:
        return EffectsStoppedError(
            f"nobody can say whether it is stopped, so it is: {control.unreadable}",
            what="everything",
            hint="write the kill switch anew: `outlast stop --list`",
        )
    stop = control.find(call)
    if stop is None:
        return None
    why = f": {stop.reason}" if stop.reason else ""
    return EffectsStoppedError(
        f"{stop} is stopped{why}",
        what=str(stop),
        by=stop.by,
        reason=stop.reason,
        hint="`outlast stop --list` says since when, and how it is lifted",
    )
