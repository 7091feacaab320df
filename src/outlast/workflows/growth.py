"""What a workflow says about its own growth and change: to go on in a new generation, and where its code was patched."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.replay.context import context
from outlast.workflows.call import Call
from outlast.workflows.definition import Workflow


def continue_as_new(call: Call[Any]) -> NoReturn:
    """End this generation of the run and go on in the next one: same id, same handle, an empty journal. Never returns.

    The next generation begins with these arguments, in the same commit. Messages that were not received go on with it, in order;
    what is open (steps, timers, approvals that nobody has decided) is given up as at the end of a run, and intended effects are
    settled first. Children end as at the end of a run, by their `parent_close`. A handler that is in the middle of its work ends too,
    but these arguments know nothing of what it still does: first `await outlast.wait_condition(outlast.all_handlers_finished)`.
    Whoever waits for the result waits for that of the last generation. Keys of effects are new ones: `run~2`.

    Args:
        call: Of a workflow, this one or another with the same type of result, as `collect(state)`.

    Raises:
        DefinitionError: It is not a call of a workflow.
        EncodeError: An argument cannot be stored; the generation goes on.
        ForbiddenInWorkflowError: It was called in a task or handler, and not in the body.
        OutsideWorkflowError: No workflow runs here.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def count_down(left: int) -> str:
            if left:
                outlast.continue_as_new(count_down(left - 1))
            return f"done in generation {outlast.info().generation}"

        async with outlast.open("memory://") as app:
            assert await app.run(count_down(2), id="rocket") == "done in generation 3"
        ```
    """
    current = context("outlast.continue_as_new")
    given: Any = call
    callee: Any = given.callee if isinstance(given, Call) else None
    if isinstance(given, Call):
        given.use()
    if not isinstance(callee, Workflow):
        raise DefinitionError(
            f"continue_as_new was given {given!r}, which is not a call of a workflow",
            hint="call the workflow: outlast.continue_as_new(collect(state))",
        )
    workflow = cast("Workflow[..., Any]", callee)
    current.continue_as_new(workflow.name, workflow.arguments.encode(call.args, call.kwargs))


def patched(id: str) -> bool:
    """Return True where this run goes on as the changed code says, and False where it must go the former way.

    Put it around a change of a workflow's operations, so that runs in flight go on with new code:

        if outlast.patched("ask-twice"):
            ...   # the changed code
        else:
            ...   # the former code

    It is True in runs that had not come to this place when the new code took them up, and then a marker in the journal says so;
    False in runs that had passed it. The answer sticks for the generation, in every replay. A timer that is still running leaves no
    trace, so a patch may replace a sleep that has begun. Code that asks for another patch, or asks elsewhere, is told by a
    `NonDeterminismError` that names the patch.

    Life of a patch: first this; once no open run lacks the marker (`outlast replay` says which do), `deprecate_patch(id)` and the
    changed code alone; once no open run has a marker that is not deprecated, nothing. When a run was started says nothing about its
    marker: look it up.

    Args:
        id: Of this change; unique in the workflow.

    Raises:
        DefinitionError: The id cannot be stored.
        OutsideWorkflowError: No workflow runs here.

    Example:
        ```python
        import outlast

        @outlast.step
        async def greet(name: str) -> str:
            return f"hello {name}"

        @outlast.workflow
        async def welcome(name: str) -> str:
            if outlast.patched("greet-in-capitals"):
                return await greet(name.upper())
            return await greet(name)

        async with outlast.open("memory://") as app:
            assert await app.run(welcome("ann"), id="1") == "hello ANN"
        ```
    """
    return context("outlast.patched").patched(check_name(id, what="patch"))


def deprecate_patch(id: str) -> None:
    """Stand where `patched(id)` stood, once the former code is gone.

    Runs with the marker replay; new runs get a marker that may be forgotten, so that this call can go too one day. Do this only
    when no open run lacks the marker: such a run would need the former code, and is stopped where it asks for something else.
    `outlast replay` names the runs that lack it; the time of their start does not.

    Args:
        id: That of the patch.

    Raises:
        DefinitionError: The id cannot be stored.
        OutsideWorkflowError: No workflow runs here.

    Example:
        ```python
        import outlast

        @outlast.step
        async def greet(name: str) -> str:
            return f"hello {name}"

        @outlast.workflow
        async def welcome(name: str) -> str:
            outlast.deprecate_patch("greet-in-capitals")
            return await greet(name.upper())

        async with outlast.open("memory://") as app:
            assert await app.run(welcome("ann"), id="1") == "hello ANN"
        ```
    """
    context("outlast.deprecate_patch").patched(check_name(id, what="patch"), deprecated=True)
