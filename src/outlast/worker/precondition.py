"""Looks whether what a yes rests on is still so: by the step that the author gave for it, outside of the journal.

A look changes nothing and is repeated at will. What cannot be found out is not so.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from outlast.errors import ApprovalPreconditionError, OutlastError
from outlast.journal.asking import Precondition
from outlast.journal.canonical import canonical
from outlast.journal.entry import OperationId
from outlast.journal.failure import tell
from outlast.replay.context import EffectRequest
from outlast.worker.bridge import Bridge
from outlast.worker.executor import Ending, LeftOpen, Raised, Returned, TimedOut
from outlast.worker.look import SOONER, look
from outlast.workflows.definition import Effect, Step
from outlast.workflows.registry import Registry

MOST_ATTEMPTS = 3
LONGEST_LOOK = timedelta(seconds=60)
"""How long one attempt may take whose step says nothing of that, and how long it may wait for a free thread."""

_LONGEST_GAP = timedelta(seconds=1)
_SHOWN = 500


class Facts:
    """Looks at facts for the effects of one run.

    Args:
        within: How long what was found counts: one attempt has no longer.
    """

    def __init__(self, bridge: Bridge, registry: Registry, within: timedelta) -> None:
        self._bridge = bridge
        self._registry = registry
        self._within = within

    def of(
        self, steps: Mapping[str, Any], action: EffectRequest, effect: Effect[..., Any]
    ) -> tuple[Precondition, ...]:
        """Return what an effect's declaration names, with the arguments of the action; nobody has looked yet."""
        if not steps:
            return ()
        args, kwargs = effect.arguments.decode(action.arguments)
        bound = effect.arguments.bind(args, kwargs)
        facts: list[Precondition] = []
        for name, step in steps.items():
            own = {one: bound[one] for one in step.signature.parameters}
            facts.append(
                Precondition(name, step.name, Raw(step.arguments.encode((), own)), Raw(b"null"))
            )
        return tuple(facts)

    async def seen(self, fact: Precondition, operation: OperationId) -> Precondition:
        """Return a fact as it is now.

        Raises:
            ApprovalPreconditionError: Nobody could find out.
        """
        value = await self.look(fact.name, fact.step, bytes(fact.arguments), operation)
        return replace(fact, value=Raw(value))

    async def look(
        self, name: str, step: str, arguments: bytes, operation: OperationId, was: bytes = b""
    ) -> bytes:
        """Return canonical JSON of what a step says now.

        Args:
            name: Of the precondition.
            arguments: Of the step: JSON object by parameter name.
            operation: Of the effect.
            was: What it said before; for the error.

        Raises:
            ApprovalPreconditionError: It does not say.
        """
        definition = self._registry.steps.get(step)
        if definition is None:
            raise _unknown(name, f"this app has no step {step!r}", was)
        with look(f"the precondition {name}"):
            return await self._found(name, definition, arguments, operation, was)

    async def _found(
        self,
        name: str,
        definition: Step[..., Any],
        arguments: bytes,
        operation: OperationId,
        was: bytes,
    ) -> bytes:
        for number in range(1, MOST_ATTEMPTS + 1):
            ending = await self._attempt(definition, arguments, operation, number)
            if isinstance(ending, Returned):
                try:
                    return canonical(definition.result.decode(ending.value))
                except OutlastError as error:
                    raise _unknown(name, error.message, was) from error
            is_last = number == MOST_ATTEMPTS or (isinstance(ending, Raised) and ending.hopeless)
            if is_last or isinstance(ending, LeftOpen):
                is_slow = isinstance(ending, TimedOut) and ending.after == self._within
                why = _said(ending, definition.name)
                raise _unknown(name, why, was, hint=SOONER if is_slow else "")
            gap = min(definition.options.retry.gap(number), _LONGEST_GAP)
            await asyncio.sleep(gap.total_seconds())
        raise AssertionError("the last attempt has raised")

    async def _attempt(
        self, step: Step[..., object], arguments: bytes, operation: OperationId, number: int
    ) -> Ending:
        bridge = self._bridge
        attempt = replace(bridge.attempt(operation, step.name, number, ""), probing=True)
        timeout = min(step.options.start_to_close_timeout or LONGEST_LOOK, self._within)
        # Its time counts from its beginning: how long no thread is free says nothing of the step.
        brief = copy.copy(step)
        brief.options = replace(step.options, start_to_close_timeout=timeout)
        return await bridge.executor.attempt(
            brief, arguments, attempt, bridge.check_lease, left=LONGEST_LOOK + timeout
        )


def broken(name: str, was: bytes, now: bytes) -> ApprovalPreconditionError:
    """Return the error for a fact that is not as it was."""
    return ApprovalPreconditionError(
        f"what the yes rests on is not so any more: {name} was {_cut(was)} and is {_cut(now)}",
        name=name,
        was=_cut(was),
        now=_cut(now),
        hint="ask for another approval: the next one shows what is so now",
    )


def _unknown(name: str, why: str, was: bytes, hint: str = "") -> ApprovalPreconditionError:
    return ApprovalPreconditionError(
        f"nobody could find out whether what the yes rests on is still so: {name}: {why}",
        name=name,
        was=_cut(was),
        hint=hint or "look at the step that says it; then ask for another approval",
    )


def _said(ending: Ending, step: str) -> str:
    match ending:
        case Raised(failure):
            return f"the step {step} raised {tell(failure)}"
        case TimedOut():
            return ending.text(f"the step {step}")
        case _:
            return f"the step {step} leaves its outcome to somebody else"


def _cut(value: bytes) -> str:
    return value.decode(errors="replace")[:_SHOWN]
