"""Replays what was recorded against the code of today: the quickest proof that a workflow is deterministic.

`always_replay` does it after every turn of every run; `replay_run` once, for one run. What was recorded long ago is in `golden`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from outlast.clock import Clock
from outlast.errors import NonDeterminismError, RunNotFoundError
from outlast.journal.entry import from_row
from outlast.replay.delivery import Delivery
from outlast.replay.machine import Machine, Outcome
from outlast.store.change import RunKey
from outlast.store.protocol import StoreReader
from outlast.worker.always_replay import ALWAYS_REPLAY_VARIABLE, listeners
from outlast.workflows.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")


async def replay_run(
    store: StoreReader, registry: Registry, clock: Clock, run: RunKey
) -> Outcome | None:
    """Deliver a run's whole journal to a fresh machine, and return the recorded end, if there is one.

    Nothing is carried out and nothing is written.

    Raises:
        NonDeterminismError: The code does not ask for what the journal answers.
        DecodeError: A recorded value does not fit the type that the code names.
        RunNotFoundError: There is no such run.
        DefinitionError: The code has no workflow of its name.
    """
    head = await store.head(run)
    if head is None:
        raise RunNotFoundError(
            "there is no such run", run=run.run_id, hint="check its id and tenant"
        )
    machine = Machine(
        registry.workflow(head.workflow),
        tenant=run.tenant,
        run_id=run.run_id,
        generation=head.generation,
    )
    delivery = Delivery(machine, clock)
    rows = await store.journal(run)
    try:
        await delivery.deliver([(from_row(one.row), one) for one in rows])
        return machine.closed
    finally:
        await delivery.evict()


class always_replay:  # noqa: N801 - used like a function
    """Replay every run after every turn while this is entered, and compare; raise the first difference at the end.

    A context manager and a decorator, of plain and `async def` functions alike:

        @always_replay()
        async def test_fix() -> None: ...

    The task that has entered it is cancelled by a difference, since the run is blocked then and its result would be waited for in
    vain; the difference is what comes out.

    It holds for workers made meanwhile: those of this process, and those of processes that inherit its environment, where a
    difference is not raised here but blocks the run (as it does in this process).

    The cost is the square of a run's length. What is found: whatever makes a replay in the same process ask for something else,
    wait elsewhere, or end differently. What is not: the order of a set of text, which differs only between processes
    (`Golden.check()` in another process finds it), and what equal code does equally wrong each time.

    Raises:
        NonDeterminismError: At the end: what was found first.
    """

    def __init__(self) -> None:
        self.differences: list[NonDeterminismError] = []
        """What was found in this process so far; empty it where a difference is expected."""
        self._before: str | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling: asyncio.Handle | None = None
        self._cancelled = False

    def __enter__(self) -> always_replay:
        """Switch it on."""
        self.differences.clear()
        self._before = os.environ.get(ALWAYS_REPLAY_VARIABLE)
        os.environ[ALWAYS_REPLAY_VARIABLE] = "1"
        listeners.append(self._heard)
        self._cancelled = False
        try:
            self._task = asyncio.current_task()
        except RuntimeError:  # no loop runs here
            self._task = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Switch it off, and raise what was found: it is the cause of whatever failed because a run was blocked."""
        listeners.remove(self._heard)
        if self._before is None:
            del os.environ[ALWAYS_REPLAY_VARIABLE]
        else:
            os.environ[ALWAYS_REPLAY_VARIABLE] = self._before
        ours = False
        if self._cancelling is not None:
            # It must not reach the task after this.
            self._cancelling.cancel()
            self._cancelling = None
        if self._cancelled and self._task is not None:
            self._task.uncancel()
            ours = isinstance(error, asyncio.CancelledError)
        self._task = None
        if self.differences and (error is None or ours or isinstance(error, Exception)):
            raise self.differences[0]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with always-replay around each of its calls."""
        if inspect.iscoroutinefunction(function):

            async def around_coroutine(*args: Any, **kwargs: Any) -> Any:
                with always_replay():
                    return await function(*args, **kwargs)

            wrapper: Any = around_coroutine
        else:

            def around(*args: Any, **kwargs: Any) -> Any:
                with always_replay():
                    return function(*args, **kwargs)

            wrapper = around
        return functools.wraps(function)(wrapper)

    def _heard(self, difference: NonDeterminismError) -> None:
        self.differences.append(difference)
        if self._task is not None and self._cancelling is None:
            self._cancelling = self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()
