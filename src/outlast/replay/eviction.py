"""How the code of a run is brought to an end in memory while the run itself goes on in the journal.

Invariant: every coroutine and generator has ended, or is kept alive for ever: the garbage collector never runs a run's
clean-up code, in whatever thread and in the middle of whatever other run it may come by.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from outlast.replay.task import WorkflowTask

MOST_THROWS = 100
"""How often a coroutine is told to end before it is given up."""

_pinned: list[object] = []
"""The coroutines and generators of the process that would not end, kept alive."""


class Eviction:
    """Ends the code of one run; to be used while the run's loop is the running one.

    Args:
        error_type: What is thrown into the code.
    """

    def __init__(self, error_type: type[BaseException]) -> None:
        self._error_type = error_type
        self._interrupt: KeyboardInterrupt | None = None
        self.left: list[object] = []
        """What did not end."""

    def end_tasks(self, tasks: list[WorkflowTask[Any]]) -> None:
        """End the tasks, newest first."""
        for task in reversed(tasks):
            # The task itself stays pending for ever, and nothing waits for it: that is no mistake to report.
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
            coro: Any = task.get_coro()
            if not task.context.run(self._end_task, task, coro):
                self._keep(coro)

    def close_generators(self, generators: list[AsyncGenerator[Any, Any]]) -> None:
        """Close the async generators in order."""
        for generator in generators:
            closing: Any = generator.aclose()
            # The first send runs the clean-up; if that awaits something, the await gets the error.
            ended = self._ends(closing.send, None) or self._end(closing)
            if not ended or is_open(generator):
                self._keep(generator)

    def raise_interrupt(self) -> None:
        """Raise the Ctrl-C that came in between, if one did."""
        if self._interrupt is not None:
            raise self._interrupt

    def _end_task(self, task: WorkflowTask[Any], coro: Any) -> bool:
        loop = task.get_loop()
        asyncio.tasks._enter_task(loop, task)  # pyright: ignore[reportPrivateUsage]
        try:
            return self._end(coro)
        finally:
            asyncio.tasks._leave_task(loop, task)  # pyright: ignore[reportPrivateUsage]

    def _end(self, coro: Any) -> bool:
        return any(self._ends(coro.throw, self._error_type()) for _ in range(MOST_THROWS))

    def _ends(self, act: Callable[[Any], object], argument: object) -> bool:
        """Return whether that ended the code; how it did so is of no interest any more."""
        try:
            act(argument)
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt
            return True
        except BaseException:  # noqa: BLE001  # what one clean-up raises must not keep the others from ending
            return True
        return False

    def _keep(self, code: object) -> None:
        self.left.append(code)
        _pinned.append(code)


def is_open(generator: AsyncGenerator[Any, Any]) -> bool:
    """Return whether an async generator has not ended."""
    return getattr(generator, "ag_frame", None) is not None
