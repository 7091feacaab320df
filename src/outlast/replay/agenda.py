"""What the workflow asked for and has not got: open operations, those it gave up, and the commands that stand for both.

Guards one rule: an entry speaks of an open operation of its own kind and name, or of one that was given up. Anything else
means that the code is not the code that wrote the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeGuard, TypeVar

from outlast.errors import NonDeterminismError
from outlast.journal.entry import NO_OPERATION, OperationId
from outlast.replay.command import Abandon, Command, Finish, MarkPatch, NoteSaga
from outlast.replay.ledger import EffectLedger
from outlast.replay.operation import (
    ApprovalOperation,
    ChildOperation,
    EffectOperation,
    Operation,
    PublishOperation,
    SendOperation,
    StepOperation,
    TimerOperation,
    UpdateOperation,
    WatchOperation,
    describe,
    name_of,
)

O = TypeVar(  # noqa: E741
    "O",
    StepOperation,
    EffectOperation,
    TimerOperation,
    ApprovalOperation,
    ChildOperation,
    SendOperation,
    WatchOperation,
    PublishOperation,
)

_MOST_DESCRIBED = 10
_MOST_TEXT = 2000
_CHANGED = (
    "the workflow's code changed under a run in flight, or it decides by something that is not recorded; deploy the code that began "
    "the run, or put outlast.patched() around the change, or keep decisions out of clocks, random values, sets and globals"
)
_RAISED = (
    "mend the code where it raises, and replay the run again; a run that is blocked goes on by itself when the mended code is deployed. "
    "Where new runs are meant to end so, put outlast.patched() around the change"
)


class Agenda:
    """The operations of one run.

    Args:
        run_id: For messages.
        ledger: Told when an effect is given up.
    """

    def __init__(self, run_id: str, ledger: EffectLedger) -> None:
        self.position = 0
        """How many entries were delivered."""
        self._run_id = run_id
        self._ledger = ledger
        self._open: dict[OperationId, Operation] = {}
        self._abandoned: set[OperationId] = set()
        self._commands: dict[OperationId, Command] = {}
        self.asked: dict[str, OperationId] = {}
        """Which operation each request is of."""
        self.aside: Callable[[], str] = str
        """Tells what else belongs into the words of a mismatch."""
        self.raised: Callable[[], str] = str
        """Tells what the code raised that will fail the run, and where; an empty string where it has not."""

    def find(self, operation: OperationId) -> Operation | None:
        """Return an open operation."""
        return self._open.get(operation)

    def effects(self) -> list[EffectOperation]:
        """Return the open effects, oldest first."""
        return [one for one in self._open.values() if isinstance(one, EffectOperation)]

    def children(self) -> list[ChildOperation]:
        """Return the open children, oldest first."""
        return [one for one in self._open.values() if isinstance(one, ChildOperation)]

    def sends(self) -> list[SendOperation]:
        """Return the messages that are open, oldest first."""
        return [one for one in self._open.values() if isinstance(one, SendOperation)]

    @property
    def waits(self) -> bool:
        """Whether anything is open whose outcome could wake the code."""
        return any(not isinstance(one, UpdateOperation) for one in self._open.values())

    @property
    def works(self) -> bool:
        """Whether something is being done for the code that goes on by itself when it is done: a step, or an effect that asks nobody."""
        return any(
            isinstance(one, StepOperation)
            or (isinstance(one, EffectOperation) and not one.is_asking)
            for one in self._open.values()
        )

    def unsent(self) -> list[SendOperation]:
        """Return the cancels that children are still to be sent, because who waited for them was cancelled; oldest first."""
        return [one for one in self._open.values() if _is_unsent(one)]

    def open(self, operation: Operation, command: Command | None = None) -> None:
        """Note a new operation and what is to be done for it."""
        self._open[operation.operation] = operation
        if command is not None:
            self.command(command)

    def command(self, command: Command) -> None:
        """Let this command stand for its operation, in place of an earlier one."""
        assert not isinstance(command, Finish | MarkPatch | NoteSaga)
        self._commands[command.operation] = command

    def silence(self, operation: OperationId) -> None:
        """Let no command stand for the operation: there is nothing that could be done."""
        self._commands.pop(operation, None)

    def close(self, operation: OperationId) -> None:
        """Forget an operation that has its outcome."""
        self._open.pop(operation, None)
        self._commands.pop(operation, None)

    def abandon(self, operation: OperationId) -> None:
        """Forget what the workflow waits for no longer; an effect goes on while an equal call waits for it.

        An intended effect never comes here: its futures refuse to be cancelled.
        """
        found = self._open.get(operation)
        if isinstance(found, EffectOperation) and not all(one.done() for one in found.futures()):
            return
        if found is not None:
            self._forget(found)

    def refuse(self, effect: EffectOperation, error: Exception) -> None:
        """Let an effect that is not intended fail, and forget it."""
        self._forget(effect)
        for future in effect.futures():
            if not future.done():
                future.set_exception(error)

    def abandon_all(self) -> None:
        """Forget all but what goes on when the body has ended: intended effects, compensations, answers, what was published, cancels that are owed."""
        for found in list(self._open.values()):
            is_bound = isinstance(found, EffectOperation) and found.bound
            undoes = isinstance(found, EffectOperation) and bool(found.request.compensates)
            goes_on = isinstance(found, UpdateOperation | PublishOperation) or _is_unsent(found)
            if not (is_bound or undoes or goes_on):
                self._forget(found)

    def take(self) -> list[Command]:
        """Return the commands that were not returned before, in the order in which they were given."""
        commands = list(self._commands.values())
        self._commands.clear()
        return commands

    def clear(self) -> None:
        """Forget everything: the run leaves memory."""
        self._open.clear()
        self._commands.clear()
        self.asked.clear()

    def expect(self, operation: OperationId, kind: type[O], name: str | None = "") -> O | None:
        """Return the open operation that an entry speaks of, or None when the workflow gave it up.

        Args:
            name: Of the step or effect; empty for kinds without one, None for entries that do not repeat it.

        Raises:
            NonDeterminismError: The code asks for something else there, or for nothing.
        """
        found = self._open.get(operation)
        if found is None and operation in self._abandoned:
            return None
        if isinstance(found, kind) and name in (None, name_of(found)):
            return found
        wanted = kind.__name__.removesuffix("Operation").lower()
        raise self.mismatch(
            f"the journal answers {operation} and the code {'has raised' if self.raised() else 'asks for something else there'}",
            recorded=f"{wanted} {name or ''}".strip() + f" at {operation}",
            asked=describe(found) if found else f"nothing at {operation}; open: {self.describe()}",
            operation=operation,
        )

    def expect_effect(self, operation: OperationId, name: str) -> EffectOperation:
        """Return the open effect that an entry speaks of.

        Raises:
            NonDeterminismError: The code asks for something else there, or gave the effect up before it was intended.
        """
        found = self.expect(operation, EffectOperation, name)
        if found is None:
            raise self.mismatch(
                "the journal holds an effect that the code gave up before it was intended",
                recorded=f"effect {name} at {operation}",
                asked="nothing: the call was cancelled",
                operation=operation,
            )
        return found

    def mismatch(
        self,
        what: str,
        *,
        recorded: str,
        asked: str,
        operation: OperationId = NO_OPERATION,
        hint: str = _CHANGED,
    ) -> NonDeterminismError:
        """Return the error that shows both sides; where the code has failed before, that is its side."""
        raised = _short(self.raised())
        if raised:
            asked, hint = f"raised {raised}", _RAISED
        recorded, asked = _short(recorded), _short(asked)
        aside = self.aside()
        return NonDeterminismError(
            f"{what}\n  journal entry {self.position}: {recorded}\n  code: {asked}"
            + (f"\n  {aside}" if aside else ""),
            run=self._run_id,
            operation=operation or None,
            hint=hint,
            position=self.position,
            recorded=recorded,
            asked=asked,
            raised=raised,
        )

    def describe(self) -> str:
        """Return the open operations in words."""
        first = [describe(one) for one in islice(self._open.values(), _MOST_DESCRIBED)]
        more = len(self._open) - len(first)
        return ", ".join(first) + (f" and {more} more" if more else "") if first else "nothing"

    def _forget(self, found: Operation) -> None:
        if isinstance(found, EffectOperation):
            self._ledger.settled(found)
        operation = found.operation
        del self._open[operation]
        self._abandoned.add(operation)
        untaken = self._commands.pop(operation, None) is not None
        if isinstance(found, ChildOperation | SendOperation):
            # What is on its way stays so, and the store knows what the end of this run means to a child.
            return
        is_asking = isinstance(found, ApprovalOperation | EffectOperation)
        current = found.asking.current if is_asking else None
        asked = current is not None or (isinstance(found, WatchOperation) and found.is_requested)
        if asked or not untaken:
            approval_id = "" if current is None else current.approval_id
            if isinstance(found, ApprovalOperation):
                # It may be on its way into the journal.
                approval_id = found.approval_id
            self._commands[operation] = Abandon(operation=operation, approval_id=approval_id)


def _is_unsent(one: Operation) -> TypeGuard[SendOperation]:
    return isinstance(one, SendOperation) and one.future is None and not one.is_requested


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text):,} characters)"
