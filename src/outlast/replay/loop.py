"""The deterministic event loop on which workflow code runs, one per run.

Invariants: callbacks run strictly first in, first out; nothing that happens depends on a clock, a thread, the order of
a set or the garbage collector; once a run is evicted, nothing its code does reaches the host.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from outlast.errors import ForbiddenInWorkflowError
from outlast.replay.eviction import Eviction, is_open
from outlast.replay.guard import guard, install_guard, unguard
from outlast.replay.refusal import refuse
from outlast.replay.task import (
    Body,
    Branch,
    RunEvicted,
    Startable,
    TaskLoop,
    TaskPath,
    WorkflowFuture,
    WorkflowTask,
)
from outlast.replay.wait import install

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextvars import Context

T = TypeVar("T")

ROOT = TaskPath("r")
CALLBACKS = TaskPath("r~")
SPIN_LIMIT = 1_000_000
"""Callbacks in one `run_until_idle`, after which a workflow is held to spin: seconds of work, where turns take microseconds."""
_SWEEP = 64
"""How many tasks or generators may pile up, beside the live ones, before those that ended are forgotten."""
_MICROSECOND_DIGITS = 6


class LoopHost(Protocol):
    """What the loop asks of the machine that drives it."""

    def start_timer(self, delay_seconds: float, handle: TimerHandle) -> None:
        """Start a durable timer; when it is due, give the handle to `WorkflowLoop.fire`."""
        ...

    def cancel_timer(self, handle: TimerHandle) -> None:
        """Forget a timer that was cancelled before it fired."""
        ...

    def time(self) -> float:
        """Return the run's time, in seconds since a fixed moment; small numbers keep timers exact."""
        ...


class TimerHandle(asyncio.TimerHandle):
    """A callback that waits for a durable timer.

    `operation` is the host's own field: the identity of the timer in the journal.
    """

    __slots__ = ("operation",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None = None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.operation: Any = None

    # asyncio compares timers by their time, for its heap; two timers of one moment are still two timers.

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)


class Look(Struct):
    """Code of the run that is asked for what it knows, and may look and not act.

    Args:
        who: For the refusal, as `a query handler`.
        hint: What to write instead.
        replayed: Whether replay repeats it, so that it may draw from the run's randomness, and ask patched().
        acted: Whether it has tried to act, also when it went on after the refusal.
    """

    who: str
    hint: str
    replayed: bool = False
    acted: bool = False


class WorkflowLoop(TaskLoop):
    """Runs the tasks of one run to idle, as often as the machine says.

    Args:
        host: The machine: durable timers, and time.
    """

    def __init__(self, host: LoopHost) -> None:
        install()
        install_guard()
        self.host = host
        self.errors: list[BaseException] = []
        """Exceptions of callbacks, in order; the machine fails the run with the first."""
        self.unretrieved: list[BaseException] = []
        """Exceptions of tasks and futures that nobody looked at; for a log, since the collector decides when."""
        self.pinned: list[object] = []
        """Coroutines and generators that would not end when the run was evicted."""
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: dict[int, WorkflowTask[Any]] = {}
        self._generators: dict[int, AsyncGenerator[Any, Any]] = {}
        self._task_sweep = self._generator_sweep = _SWEEP
        self._deferred: dict[int, WorkflowTask[Any]] = {}
        self._callbacks = Branch(CALLBACKS)
        self._numbers = 0
        self._running = False
        self._in_callback = False
        self._last_time = 0.0
        self._closed = False
        self._look: Look | None = None

    # What the machine does

    def run_until_idle(self) -> None:
        """Run callbacks, first in first out, until none is left.

        Raises:
            RuntimeError: Called by itself, or from within a task: a loop is only driven from a plain callback.
            ForbiddenInWorkflowError: The workflow spins without ever waiting for anything durable.
        """
        if self.evicting or not self._ready:
            return
        with self._entered():
            self._run_ready()

    def read(self, call: Callable[[], T], look: Look) -> T:
        """Call a function of the run's code that only looks, as the running loop; also when the run's code has ended.

        Raises:
            RuntimeError: The loop is running, or a task of another one is.
            ForbiddenInWorkflowError: The function would begin or wake something.
        """
        with self._entered(), self.looking(look):
            return call()

    def fire(self, handle: TimerHandle) -> None:
        """Queue the callback of a timer that is due."""
        handle._scheduled = False
        self._enqueue(handle)

    def spawn(
        self,
        coro: Body[T],
        path: TaskPath = ROOT,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> WorkflowTask[T]:
        """Create a task at a path that the machine chose: the root, or the handler of a message."""
        task = WorkflowTask(coro, loop=self, path=path, name=name, context=context)
        self._tasks[task.number] = task
        if len(self._tasks) > self._task_sweep:
            self._tasks = {number: task for number, task in self._tasks.items() if not task.done()}
            self._task_sweep = 2 * len(self._tasks) + _SWEEP
        return task

    def next_operation(self) -> tuple[TaskPath, int]:
        """Return the current task's path and the number of its next operation.

        Raises:
            ForbiddenInWorkflowError: The code that runs may only look.
        """
        self.check_acting("begin an operation")
        branch = self._branch()
        return branch.path, branch.next_operation()

    @contextmanager
    def looking(self, look: Look) -> Generator[None, None, None]:
        """Let the code inside look and not act."""
        self._look = look
        try:
            yield
        finally:
            self._look = None

    def check_acting(self, what: str) -> None:
        """Return when the code that runs may act.

        Args:
            what: It means to do, as `begin an operation`.

        Raises:
            ForbiddenInWorkflowError: It may only look.
        """
        if self._look is not None:
            self._look.acted = True
            raise ForbiddenInWorkflowError(f"{self._look.who} cannot {what}", hint=self._look.hint)

    def check_replayed(self, what: str) -> None:
        """Return when replay repeats the code that runs, so that it may change what its run is told from here on.

        Args:
            what: It means to do, as `draw from the run's randomness`.

        Raises:
            ForbiddenInWorkflowError: No replay would know of it.
        """
        if self._look is None or not self._look.replayed:
            self.check_acting(what)

    def current_path(self) -> TaskPath:
        """Return the path of the current task, or the one that stands for plain callbacks."""
        return self._branch().path

    def evict(self, error_type: type[BaseException] = RunEvicted) -> None:
        """End every task and async generator without any effect on the host; what will not end is `pinned`.

        Raises:
            RuntimeError: The loop is running.
        """
        if self.evicting:
            return
        eviction = Eviction(error_type)
        with self._entered():
            self._last_time = self.host.time()
            self.evicting = True
            self._ready.clear()
            self._deferred.clear()
            eviction.end_tasks(self.unfinished_tasks())
            eviction.close_generators([one for one in self._generators.values() if is_open(one)])
        self.pinned = eviction.left
        self._tasks.clear()
        self._generators.clear()
        eviction.raise_interrupt()

    def close(self) -> None:
        """End what the run's end has left over, then close the loop."""
        self.evict()
        self._closed = True

    # What tasks ask

    def take_number(self) -> int:
        """Return the next creation number of this loop."""
        self._numbers += 1
        return self._numbers

    def defer_cancel(self, task: WorkflowTask[Any]) -> bool:
        """Note a cancel for the end of the running callback; False for the current task's own and from outside."""
        self.check_acting("cancel a task")
        if not self._in_callback or self._current() is task:
            return False
        self._deferred[task.number] = task
        return True

    def unfinished_tasks(self) -> list[WorkflowTask[Any]]:
        """Return the tasks that have not ended, oldest first."""
        return [task for task in self._tasks.values() if not task.done()]

    # What asyncio asks

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback."""
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback, from the run itself only."""
        if asyncio._get_running_loop() is not self:  # pyright: ignore[reportPrivateUsage]
            refuse(
                "loop.call_soon_threadsafe() from another thread", "Send the run a signal instead."
            )
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        """Call back when a durable timer fires; at once when the delay is not positive."""
        return self._call_after(
            delay, TimerHandle(self.time() + delay, callback, args, self, context)
        )

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        """Call back when a durable timer fires; at once when the moment has passed."""
        delay = round(when - self.time(), _MICROSECOND_DIGITS) if math.isfinite(when) else when
        return self._call_after(delay, TimerHandle(when, callback, args, self, context))

    def time(self) -> float:
        """Return the run's time in seconds."""
        return self._last_time if self.evicting else self.host.time()

    def create_future(self) -> WorkflowFuture[Any]:
        """Create a future of this loop."""
        self.check_acting("create a future")
        return WorkflowFuture(loop=self)

    def create_task(
        self,
        coro: Body[T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,  # eager_start and what comes: a workflow's tasks always start from the queue
    ) -> WorkflowTask[T]:
        """Create a task below the current one; a call starts its operation at once, in the current task's name."""
        if self._look is not None:
            coro.close()
            self.check_acting("create a task")
        if self.evicting:
            return self._dead_task(coro)
        branch = self._branch()
        if isinstance(coro, Startable):
            coro.begin()
            return self.spawn(coro, branch.started_path(), name=name, context=context)
        return self.spawn(coro, branch.child_path(), name=name, context=context)

    def is_running(self) -> bool:
        """Return whether callbacks are being run."""
        return self._running

    def is_closed(self) -> bool:
        """Return whether the run's code has ended for good."""
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an exception for the machine."""
        error: BaseException | None = context.get("exception")
        if error is None or self.evicting:
            return
        # Under the key `future` stand exceptions that nobody retrieved, noticed when the collector came by.
        (self.unretrieved if "future" in context else self.errors).append(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an exception for the machine."""
        self.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Tell the host, unless the timer has fired or never started. Called by asyncio."""
        if isinstance(handle, TimerHandle) and handle._scheduled and not self.evicting:
            handle._scheduled = False
            self.host.cancel_timer(handle)

    # Inner workings

    @contextmanager
    def _entered(self) -> Generator[None, None, None]:
        """Be the running loop of this thread, with generator hooks and guard; then put back what was."""
        outer = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
        if self._running:
            message = "the workflow's loop is running already"
            raise RuntimeError(message)
        if outer is not None and asyncio.current_task(outer) is not None:
            message = "a workflow's loop cannot be driven from within a task: use loop.call_soon or a thread"
            raise RuntimeError(message)
        hooks = sys.get_asyncgen_hooks()
        self._running = True
        try:
            sys.set_asyncgen_hooks(firstiter=self._keep_generator, finalizer=_leave_alone)
            asyncio._set_running_loop(self)  # pyright: ignore[reportPrivateUsage]
            guard(self)
            yield
        finally:
            unguard(self)
            asyncio._set_running_loop(outer)  # pyright: ignore[reportPrivateUsage]
            sys.set_asyncgen_hooks(*hooks)
            self._running = False

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(SPIN_LIMIT):
            if not ready:
                return
            handle = ready.popleft()
            if handle._cancelled:
                continue
            self._in_callback = True
            try:
                handle._run()
            finally:
                self._in_callback = False
                if self._deferred:
                    self._deliver_cancels()
        message = f"the workflow ran {SPIN_LIMIT:,} callbacks without waiting for anything durable"
        raise ForbiddenInWorkflowError(
            message, hint="Wait for a step, a timer or a message in the loop that spins."
        )

    def _deliver_cancels(self) -> None:
        deferred, self._deferred = self._deferred, {}
        for _, task in sorted(deferred.items()):
            task.deliver_cancels()

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self.check_acting("wake anything")
        if self.evicting:
            handle.cancel()
        else:
            self._ready.append(handle)

    def _call_after(self, delay: float, handle: TimerHandle) -> TimerHandle:
        self.check_acting("set a timer")
        if math.isnan(delay):
            message = "a delay must be a number of seconds, not NaN"
            raise ValueError(message)
        if self.evicting or delay == math.inf:
            return handle  # it never fires
        if delay <= 0:
            self._enqueue(handle)
            return handle
        handle._scheduled = True
        self.host.start_timer(delay, handle)
        return handle

    def _dead_task(self, coro: Body[T]) -> WorkflowTask[T]:
        """Return a task that never runs: raising instead would leave a `gather` with coroutines that nobody awaits."""
        coro.close()
        task = WorkflowTask(coro, loop=self, path=self._branch().started_path())
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        return task

    def _current(self) -> WorkflowTask[Any] | None:
        task = asyncio.current_task(self)
        return task if isinstance(task, WorkflowTask) else None

    def _branch(self) -> Branch:
        task = self._current()
        return self._callbacks if task is None else task.branch

    def _keep_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Hold a generator until it ends, so that the collector never runs its clean-up in the middle of a run."""
        self._generators[id(generator)] = generator
        if len(self._generators) > self._generator_sweep:
            kept = {key: one for key, one in self._generators.items() if is_open(one)}
            self._generators = kept
            self._generator_sweep = 2 * len(kept) + _SWEEP


def _leave_alone(generator: AsyncGenerator[Any, Any]) -> None:
    """Do nothing when the collector meets a generator: its clean-up ran with the loop, or is never to run."""
