"""The tasks and futures of workflow code, and how they are named.

Invariants: a task's path and an operation's number depend only on what its own ancestors did, never on siblings; hashes
are creation numbers, so that sets of tasks have the same order in every replay of a run.
"""

from __future__ import annotations

import asyncio
import contextvars
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NewType, TypeVar

from outlast.replay.refusal import RefusingLoop

TaskPath = NewType("TaskPath", str)
"""Where in the tree of tasks: `r` is the root, `r.2` its second child, `r~` stands for callbacks without a task."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Body = Coroutine[Any, Any, T] | Generator[Any, None, T]
"""What a task runs."""


class RunEvicted(BaseException):  # control flow, not an error
    """The run leaves memory; its tasks end without reaching the journal. Never caught by workflow code on purpose."""


class Branch:
    """The counters of one task: its operations, its child tasks and the calls it started as tasks.

    Args:
        path: Where the task stands.
    """

    __slots__ = ("_children", "_operations", "_started", "path")

    def __init__(self, path: TaskPath) -> None:
        self.path = path
        self._operations = 0
        self._children = 0
        self._started = 0

    def next_operation(self) -> int:
        """Return the number of the task's next operation, counted from 1."""
        self._operations += 1
        return self._operations

    def child_path(self) -> TaskPath:
        """Return the path of the task's next child."""
        self._children += 1
        return TaskPath(f"{self.path}.{self._children}")

    def started_path(self) -> TaskPath:
        """Return a path for a started call: unique, and outside the count of children."""
        self._started += 1
        return TaskPath(f"{self.path}!{self._started}")


class TaskLoop(RefusingLoop):
    """What tasks and futures need of the loop they live on."""

    evicting: bool = False

    @abstractmethod
    def take_number(self) -> int:
        """Return the next creation number of this loop."""

    @abstractmethod
    def defer_cancel(self, task: WorkflowTask[Any]) -> bool:
        """Note a cancel for the end of the running callback; False when it is to be delivered at once."""

    @abstractmethod
    def unfinished_tasks(self) -> list[WorkflowTask[Any]]:
        """Return the tasks that have not ended, oldest first."""


class Startable(Coroutine[Any, Any, T_co]):
    """A coroutine whose operation can be started before it is awaited: a `Call`.

    `create_task` begins it at once in the creating task, which gives the operation its number.
    """

    @abstractmethod
    def begin(self) -> None:
        """Start the operation now, in the name of the current task."""


class WorkflowFuture(asyncio.Future[T]):
    """A future whose hash is its creation number, and which may refuse to be cancelled.

    Args:
        loop: The loop of the run.
    """

    def __init__(self, *, loop: TaskLoop) -> None:
        self.number = loop.take_number()
        self.uncancellable = False
        self.on_cancel: Callable[[], object] | None = None
        """Called at once when the future is cancelled, by whom ever."""
        self.on_refused: Callable[[], object] | None = None
        """Called at once when it is to be cancelled and refuses because it is uncancellable."""
        self._home = loop
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        """Return the creation number."""
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future, unless it is uncancellable or the run is being evicted.

        A task that waits for a future which refuses is cancelled when the future is resolved.
        """
        if self._home.evicting or self.done():
            return False
        if self.uncancellable:
            if self.on_refused is not None:
                self.on_refused()
            return False
        super().cancel(msg)
        if self.on_cancel is not None:
            self.on_cancel()
        return True


class WorkflowTask(asyncio.Task[T]):
    """A task that knows its path, counts its operations and is cancelled in creation order.

    Args:
        coro: What it runs.
        loop: The loop of the run.
        path: Where it stands in the tree of tasks.
        name: Defaults to the path, since asyncio's own counter is shared by all loops of the process.
        context: Defaults to a copy of the current one.
    """

    def __init__(
        self,
        coro: Body[T],
        *,
        loop: TaskLoop,
        path: TaskPath,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.number = loop.take_number()
        self.uncancellable = False
        self.branch = Branch(path)
        self.context = contextvars.copy_context() if context is None else context
        self._home = loop
        self._deferred: list[Any | None] = []
        super().__init__(coro, loop=loop, name=path if name is None else name, context=self.context)
        # The interpreter-wide set of tasks would hold one task of equal hash per parked run. The loop keeps its own.
        asyncio.tasks._unregister_task(self)  # pyright: ignore[reportPrivateUsage]

    def __hash__(self) -> int:
        """Return the creation number."""
        return self.number

    @property
    def path(self) -> TaskPath:
        """Where the task stands in the tree of tasks."""
        return self.branch.path

    def next_operation(self) -> int:
        """Return the number of the task's next operation, counted from 1."""
        return self.branch.next_operation()

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask the task to cancel itself; asked of another task, it is delivered when the running callback ends."""
        if self.done() or self._home.evicting or self.uncancellable:
            return False
        if not self._home.defer_cancel(self):
            return super().cancel(msg)
        self._deferred.append(msg)
        return True

    def cancelling(self) -> int:
        """Return how many cancels were asked for and not taken back, delivered or not."""
        return super().cancelling() + len(self._deferred)

    def uncancel(self) -> int:
        """Take one cancel back."""
        self.deliver_cancels()
        return super().uncancel()

    def deliver_cancels(self) -> None:
        """Deliver the cancels that were asked for during the callback that has just ended."""
        messages, self._deferred = self._deferred, []
        for message in messages:
            super().cancel(message)
