"""How workflow code asks to go on in a new generation: control flow, and what the end of a body makes of it."""

from __future__ import annotations

from typing import NoReturn

from msgspec import Raw

from outlast.errors import ForbiddenInWorkflowError
from outlast.journal.entry import ContinuedAsNew
from outlast.replay.loop import ROOT
from outlast.replay.task import TaskPath


class RollOver(BaseException):  # control flow, not an error
    """The body is over, and the run goes on in a new generation. Never caught by workflow code on purpose.

    Args:
        outcome: Which workflow goes on, with which arguments.
    """

    def __init__(self, outcome: ContinuedAsNew) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def roll_over(name: str, arguments: bytes, *, path: TaskPath, run_id: str) -> NoReturn:
    """End the body.

    Args:
        path: Of the task that asks.

    Raises:
        ForbiddenInWorkflowError: It is not the body's own task: a task that was created, a handler or a callback.
    """
    if path != ROOT:
        raise ForbiddenInWorkflowError(
            f"continue_as_new was called in {path}, which is not the workflow's own task",
            run=run_id,
            hint="only the body ends its generation: return from the task or handler, and let the body call "
            "outlast.continue_as_new(...)",
        )
    raise RollOver(ContinuedAsNew(name=name, arguments=Raw(arguments)))


def outcome_in(error: BaseException) -> ContinuedAsNew | None:
    """Return what a body that ended by `error` goes on as; None when it failed.

    A `TaskGroup` wraps whatever leaves it: a group that holds nothing but the roll-over stands for it.
    """
    while True:
        members: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        if not isinstance(error, BaseExceptionGroup) or len(members) != 1:
            break
        error = members[0]
    return error.outcome if isinstance(error, RollOver) else None
