"""What is to be run, and what its outside does meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast

from outlast.client import Client
from outlast.effects.intent import Applied, NotApplied
from outlast.errors import DefinitionError
from outlast.testing.loop import LONGEST
from outlast.testing.receiver import Receiver
from outlast.testing.stand_in import with_doubles
from outlast.workflows.call import Call
from outlast.workflows.definition import Definition, Workflow

R = TypeVar("R")


def _do_nothing() -> None:
    """The world is put back by the receiver's `forget` alone."""


@dataclass(frozen=True, slots=True)
class Workload(Generic[R]):
    """A run, and what its outside does.

    Args:
        call: Gives the call of a workflow, anew for each process that starts it: `lambda: fix(finding)`.
        receiver: What the bodies change; every `Receiver` that lives by default. All of them forget everything before each trial.
        meanwhile: Sends and decides, as a client that nobody kills. Begins once the run exists; cancelled at its end.
        resolve: What an operator finds out about an effect in doubt, or a compensation that was given up, by its key; `receiver.find`
            tells the truth. Without it, a trial ends there.
        definitions: What the worker registers. Everything decorated so far by default, as `outlast.open()` does.
        doubles: Stand in for definitions of the same kind and name; see `double`.
        reset: Called before each trial: puts back what no receiver knows of.
        started_outside: The run is started by another process, that nobody kills; by default each process starts it.
        longest: How much simulated time a trial may take.
        latency: How long a request to the store takes at most, and again its answer. A run whose durability is not `sync` goes on
            meanwhile, so that there is more to lose.
        id: Of the run.
    """

    call: Callable[[], Call[R]]
    receiver: Receiver | None = None
    meanwhile: Callable[[Client], Awaitable[Any]] | None = None
    resolve: Callable[[str], Applied[Any] | NotApplied] | None = None
    definitions: Collection[Definition[..., Any]] | None = None
    doubles: Collection[Definition[..., Any]] = ()
    reset: Callable[[], None] = _do_nothing
    started_outside: bool = False
    longest: timedelta = LONGEST
    latency: timedelta = timedelta(0)
    id: str = "run"

    def workflow(self) -> Workflow[..., R]:
        """Return the workflow that is called.

        Raises:
            DefinitionError: `call` gives something else, or the workflow is not among the definitions.
        """
        given: Any = self.call()
        callee: Any = cast("Call[Any]", given).callee if isinstance(given, Call) else None
        if isinstance(given, Call):
            cast("Call[Any]", given).use()
        if not isinstance(callee, Workflow):
            raise DefinitionError(
                f"a Workload's `call` gave {given!r}, which is no call of a workflow",
                hint="hand in a function that calls what @workflow decorates: lambda: fix(finding)",
            )
        workflow = cast("Workflow[..., R]", callee)
        if all(one is not workflow for one in self.registered()):
            raise DefinitionError(
                f"the Workload calls workflow {workflow.name}, and its definitions do not hold it",
                step=workflow.name,
                hint="leave `definitions` out, or name in it the workflow and all that it calls",
            )
        return workflow

    def registered(self) -> list[Definition[..., Any]]:
        """Return what the worker registers, doubles in the places of what they stand for."""
        return with_doubles(self.definitions, self.doubles)
