"""What is known of the sagas around workflow code, and of what was done inside each."""

from __future__ import annotations

import asyncio
import contextvars
from enum import Enum, auto
from typing import Any

from msgspec import Struct, field

from outlast.journal.entry import OperationId
from outlast.replay.context import Undo
from outlast.replay.task import WorkflowFuture


class Fate(Enum):
    """What is known of something that was done inside a saga."""

    OPEN = auto()
    """It is under way, or in doubt."""
    STANDING = auto()
    """It happened."""
    UNKNOWN = auto()
    """It was given up, and may have happened: it is undone as if it had."""
    VOID = auto()
    """It did not happen, and never will."""
    UNDOING = auto()
    """It is being undone."""
    UNDONE = auto()
    """It was undone."""
    ABANDONED = auto()
    """It stands: undoing it was given up by an operator."""


TO_UNDO = (Fate.STANDING, Fate.UNKNOWN)
_AT_STAKE = (*TO_UNDO, Fate.OPEN, Fate.UNDOING)


class Act(Struct, eq=False):
    """An effect that was intended inside a saga, and how it is undone.

    Args:
        operation: The effect.
        scope: The innermost saga around it.
        undo: How the code undoes it; None where it does not.
        compensation: The effect that was to undo it when it was intended; empty for none: then it is only waited for.
        arguments: The effect's, as JSON.
        key: Its idempotency key.
        kind: Its name and the hash of its payload: equal calls have the same.
        number: Which of them it is: one with the same number has the same key.
        place: Among all that was intended inside the outermost saga.
        value: Its result as JSON, once it is known.
        is_inherited: The origin of a fork has done it.
        counts: It was the workflow's own undoing of another one.
    """

    operation: OperationId
    scope: Scope
    undo: Undo | None
    compensation: str = ""
    arguments: bytes = b""
    key: str = ""
    kind: tuple[str, str] = ("", "")
    number: int = 0
    place: int = 0
    fate: Fate = Fate.OPEN
    value: bytes | None = None
    is_inherited: bool = False
    counts: bool = False
    waiting: list[WorkflowFuture[Any]] = field(default_factory=list[WorkflowFuture[Any]])

    @property
    def is_at_stake(self) -> bool:
        """Whether it would be left as it is if nobody went on with it."""
        return bool(self.compensation) and self.fate in _AT_STAKE

    def become(self, fate: Fate, value: bytes | None = None) -> None:
        """Take in what is known of it, and tell who waits for that."""
        self.fate = fate
        self.value = self.value if value is None else value
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


class Scope:
    """One `async with saga()`.

    Args:
        operation: Stands for it in the journal.
        parent: The saga around it.
        task: Whose code it is.
    """

    def __init__(
        self, operation: OperationId, parent: Scope | None, task: asyncio.Task[Any] | None
    ) -> None:
        self.operation = operation
        self.parent = parent
        self.task = task
        self.root: Scope = self if parent is None else parent.root
        self.acts: list[Act] = []
        """Of an outermost saga: all effects inside it, in the order of their intents."""
        self.kinds: dict[tuple[str, str], list[Act]] = {}
        """The same, equal calls together."""
        self.unknown: list[Act] = []
        """Of these, what was given up and may have happened."""
        self.open_count = 0
        """Of an outermost saga: how many there are, itself and inside it, that have not come to their end."""
        self.root.open_count += 1
        self.has_left = False
        """Its body returned."""
        self.is_aborted = False
        """Its body raised: nothing new begins in it."""
        self.is_undone = False
        """It was aborted, and all has been done about that."""

    def forget(self) -> None:
        """Forget what was done inside an outermost saga: nothing more comes of it."""
        self.acts.clear()
        self.kinds.clear()
        self.unknown.clear()

    @property
    def closed_by(self) -> Scope | None:
        """The saga, this one or one around it, that is being undone."""
        scope: Scope | None = self
        while scope is not None and not scope.is_aborted:
            scope = scope.parent
        return scope

    @property
    def within(self) -> list[Act]:
        """The effects inside it, and inside the sagas in it, in the order of their intents."""
        return [act for act in self.root.acts if act.scope.is_within(self)]

    def is_within(self, other: Scope) -> bool:
        """Whether it is the other one, or inside it."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other


current_saga: contextvars.ContextVar[Scope | None] = contextvars.ContextVar(
    "outlast_saga", default=None
)
"""The innermost saga around the code that runs."""


def open_saga() -> Scope | None:
    """Return the innermost saga around the code that runs whose body has not returned, or was undone by this very task."""
    scope = still_open(current_saga.get())
    while scope is not None and scope.is_undone and scope.task is asyncio.current_task():
        # It was left out of order, by hand.
        scope = still_open(scope.parent)
    return scope


def still_open(scope: Scope | None) -> Scope | None:
    """Return the saga, or the innermost one around it, whose body has not returned: to that belongs what was done inside."""
    while scope is not None and scope.has_left:
        scope = scope.parent
    return scope


def outside_sagas(context: contextvars.Context) -> contextvars.Context:
    """Return the context, in which no saga is around the code."""
    context.run(current_saga.set, None)
    return context
