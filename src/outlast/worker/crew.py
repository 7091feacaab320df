"""The attempts of one run that are under way in this worker: begun, resting between two tries, standing by, ended.

Each is a task. Once `end` has returned none of them can act any more, but for threads, which the executor counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Generator
from datetime import datetime
from typing import Any, TypeAlias

from outlast.journal.entry import OperationId
from outlast.store.change import RunKey
from outlast.worker.bridge import RunLost
from outlast.worker.executor import SETTLED
from outlast.worker.hold import Hold
from outlast.worker.rest import Completion, Rest
from outlast.worker.wait import Waits
from outlast.workflows.log import about

logger = logging.getLogger("outlast.worker")

LOOK_AGAIN_SECONDS = 10.0
"""No wait for a due time is longer in one piece: the store's clock may be set meanwhile."""


def _nothing() -> None:
    """There is nothing to do."""


SeeOff: TypeAlias = Callable[[bool], Coroutine[Any, Any, None]]
"""Cancels a body, and returns the wait for its end; told whether its operation has its outcome."""


class Crew:
    """The attempts of a run.

    Args:
        run: Whose.
        waits: Knows which of them rest, and until when.
        now: The store's time.
        changed: Called when the pilot should look at its run again.
        hold: Knows which of them wait until the run is resumed.
    """

    def __init__(
        self,
        run: RunKey,
        waits: Waits,
        now: Callable[[], datetime],
        changed: Callable[[], None],
        hold: Hold,
    ) -> None:
        self._run = run
        self._hold = hold
        self._waits = waits
        self._now = now
        self._changed = changed
        self._tasks: dict[OperationId, asyncio.Task[None]] = {}
        self._off: dict[OperationId, SeeOff] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._standing_by: set[OperationId] = set()
        self._acting: set[OperationId] = set()
        """Effects in the middle of an attempt."""
        self.lost = False
        """An attempt found that the worker may no longer act."""
        self.broken: Exception | None = None
        """An attempt met an error of ours."""

    @property
    def attempting(self) -> bool:
        """Whether any of them does more than rest until its next try is due, or is allowed."""
        return any(not self._rests(one) for one in self._tasks)

    @property
    def acting(self) -> bool:
        """Whether any of them does more than rest or stand by."""
        return any(not self._rests(one) and one not in self._standing_by for one in self._tasks)

    def acts_in_vain(self, is_open: Callable[[OperationId], bool]) -> bool:
        """Whether an effect is being attempted that has its outcome already: its end is yet to be told."""
        return any(not is_open(one) for one in self._acting)

    @contextlib.contextmanager
    def act(self, operation: OperationId) -> Generator[None]:
        """Let the attempt of an effect that is made within this end by itself, also when the operation has an outcome meanwhile."""
        self._acting.add(operation)
        try:
            yield
        finally:
            self._acting.discard(operation)

    def _rests(self, operation: OperationId) -> bool:
        return self._waits.rests(operation) or operation in self._hold.waiting

    def begin(
        self,
        operation: OperationId,
        work: Coroutine[Any, Any, None],
        unbegun: Callable[[], None] = _nothing,
    ) -> None:
        """Begin to bring an operation to its outcome, which nothing else here is doing.

        Args:
            unbegun: Called when the work was cancelled before its first line.
        """
        former = self._tasks.get(operation)
        assert former is None or former.done(), f"{operation} is attempted already"
        has_begun = False

        async def attempt() -> None:
            nonlocal has_begun
            has_begun = True
            about.set({**about.get({}), "operation": operation})
            try:
                await work
            except RunLost:
                self.lost = True
            except asyncio.CancelledError:
                raise
            except Exception as error:
                logger.exception("run %s: operation %s broke inside Outlast", self._run, operation)
                self.broken = error

        def ended(task: asyncio.Task[None]) -> None:
            if not has_begun:
                work.close()
                unbegun()
            if self._tasks.get(operation) is task:
                del self._tasks[operation]
            self._changed()

        task = asyncio.get_running_loop().create_task(attempt(), name=f"{self._run} {operation}")
        self._tasks[operation] = task
        task.add_done_callback(ended)

    def enter(self, operation: OperationId, body: asyncio.Task[Any], off: SeeOff) -> None:
        """Count in a body that was begun by itself.

        Args:
            off: What ends it, when nobody waits for it any more. Until then, whoever has begun it says by `left` that it has ended.
        """
        self._tasks[operation] = body
        self._off[operation] = off

    def left(self, operation: OperationId, body: asyncio.Task[Any]) -> bool:
        """Count out a body that has ended; False where it is being ended, or was."""
        if operation not in self._off or self._tasks.get(operation) is not body:
            return False
        del self._off[operation], self._tasks[operation]
        return True

    async def rest(self, operation: OperationId, rest: Rest) -> None:
        """Wait for the store's time; the run may be parked meanwhile."""
        self._waits.add_rest(operation, rest, self._now())
        self._changed()
        try:
            await self._until(rest)
        finally:
            self._waits.retries.pop(operation, None)

    async def await_completion(self, operation: OperationId, wait: Completion) -> None:
        """Wait for an outcome from outside until the store's time says that it comes too late; the run may be parked meanwhile."""
        self._waits.add_completion(operation, wait, self._now())
        self._changed()
        try:
            if wait.due is None:
                await asyncio.get_running_loop().create_future()
            else:
                await self._until(wait)
        finally:
            self._waits.completions.pop(operation, None)

    async def _until(self, rest: Rest | Completion) -> None:
        while (wait := rest.left(self._now()) or 0) > 0:  # noqa: ASYNC110 - no event says that a clock was set
            await asyncio.sleep(min(wait, LOOK_AGAIN_SECONDS))

    async def stand_by(self, operation: OperationId, seconds: float) -> None:
        """Wait without acting; a stop need not wait for that."""
        self._standing_by.add(operation)
        self._changed()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._standing_by.discard(operation)

    @contextlib.contextmanager
    def ask(self, operation: OperationId) -> Generator[None]:
        """Let it be found out within this whether an effect may begin: nothing of it has, so a stop need not wait for that."""
        self._standing_by.add(operation)
        self._changed()
        try:
            yield
        finally:
            self._standing_by.discard(operation)

    def abandon(self, operation: OperationId, why: str | None = None) -> None:
        """Cancel what nobody waits for any more."""
        self._see_off(operation, settled=why == SETTLED)
        task = self._tasks.pop(operation, None)
        if task is not None and task not in self._leaving:
            task.cancel(why)

    def abandon_closed(self, is_open: Callable[[OperationId], bool]) -> None:
        """Cancel the attempts of operations that have an outcome, but for effects that are acting: the world is not left half changed."""
        closed = [one for one in self._tasks if not is_open(one) and one not in self._acting]
        for operation in closed:
            self.abandon(operation, SETTLED)

    def cancel(self) -> None:
        """Cancel all of them."""
        for operation in list(self._off):
            self._see_off(operation)
        for task in self._tasks.values():
            if task not in self._leaving:
                task.cancel()

    def _see_off(self, operation: OperationId, *, settled: bool = False) -> None:
        """Put what ends a body in its place, where it was begun by itself."""
        off = self._off.pop(operation, None)
        if off is None:
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._leaving.discard(task)
            if self._tasks.get(operation) is task:
                del self._tasks[operation]
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                self.broken = error
            self._changed()

        task = asyncio.get_running_loop().create_task(off(settled))
        self._tasks[operation] = task
        self._leaving.add(task)
        task.add_done_callback(ended)

    async def end(self) -> None:
        """Cancel all of them, and wait until none is under way."""
        self.cancel()
        # Of a body that was begun by itself, what waits for its end, and not for ever, stands in its place by now.
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
