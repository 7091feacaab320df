"""How the end of a run that did not complete is raised where somebody waits for it: in a client, and in another run."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TypeVar

from outlast.errors import OutlastError, RunCancelledError, RunTerminatedError, WorkflowFailedError
from outlast.journal.failure import Failure, rebuild, tell

_E = TypeVar("_E", bound=OutlastError)

_UNSAID = ("", "the run was cancelled")


def terminated(run_id: str, reason: str, *, is_former: bool = False) -> RunTerminatedError:
    """Return the error of a run that was ended by an operator, or with its parent.

    Args:
        is_former: Its id has begun another run since.
    """
    if is_former:
        return RunTerminatedError(
            "the run was terminated, and its id has begun another run since",
            run=run_id,
            hint="`outlast runs show` lists what the id was used for; app.handle(id) is the run that has it now",
        )
    return RunTerminatedError(
        f"the run was terminated: {reason}" if reason else "the run was terminated",
        run=run_id,
        hint=f"`outlast runs retry {run_id} --reason TEXT` goes on with what it had done; a start under another id is new work, effects and all",
    )


def failed(run_id: str, failure: Failure, place: str = "") -> WorkflowFailedError:
    """Return the error of a run that raised; its cause is that exception, as far as its type allows.

    Args:
        place: Where it was raised, as `at agent.py:12 in plan`.
    """
    text = f"the run failed: {tell(failure)}" + (f", raised {place}" if place else "")
    return _caused(WorkflowFailedError(text, run=run_id), failure)


def cancelled(run_id: str, failure: Failure, asked: str = "") -> RunCancelledError:
    """Return the error of a run that was cancelled, or that ended with an approval that nobody gave.

    Args:
        asked: Who asked it to stop and why, as `by ann: too late`.
    """
    text = f"the run was cancelled: {tell(failure)}"
    if isinstance(rebuild(failure), CancelledError):
        if asked:
            text = f"the run was cancelled {asked}"
        elif failure.message in _UNSAID:
            text = "the run was cancelled"
    return _caused(RunCancelledError(text, run=run_id), failure)


def _caused(error: _E, failure: Failure) -> _E:
    cause = rebuild(failure)
    if isinstance(cause, OutlastError):
        error.hint = cause.hint
    error.__cause__ = cause
    return error
