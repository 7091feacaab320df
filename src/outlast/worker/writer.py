"""Group commit: whatever the runs of a worker produce while one commit is under way goes into the next one together.

Whoever submits gets a definite verdict. A change whose fate is unknown is sent again, exactly as it was, until the store says;
the digest on the head makes that harmless. A writer outlives the lives of its worker: what a client asked for goes out in the
next one, and what a run of a former one produced is fenced by the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, Change, RunChange, Unknown, Verdict, WorkerId
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.worker")

BATCH = 500
"""Changes in one transaction at most: a commit of that size takes milliseconds, so no run waits long for its neighbours."""

FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0


Landed: TypeAlias = Callable[[Verdict | Exception], None]
"""Called with what became of a change, or with why nobody knows."""


@dataclass(slots=True)
class Flight:
    """A change on its way.

    Args:
        landed: Told of its end.
        is_wanted: Whether it need be sent, or sent again: whoever waits for it no more sets this to False.
    """

    change: Change
    landed: Landed
    is_wanted: bool = True


class Writer:
    """The one way by which a worker's runs reach the store.

    Args:
        store: Where to.
        sending: Called before each commit; what it returns is called with the worker of each owned change that was applied, so
            that the lease counts from the sending.
    """

    def __init__(self, store: Store, sending: Callable[[], Callable[[WorkerId], None]]) -> None:
        self._store = store
        self._sending = sending
        self._queue: deque[Flight] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def submit(self, change: Change) -> Verdict:
        """Write `change`, and return what became of it: never `Unknown`.

        Raises:
            StoreUnavailableError: The writer was closed before the store answered.
        """
        awaited: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        flight = self.send(change, partial(_tell, awaited))
        try:
            return await awaited
        finally:
            flight.is_wanted = False

    def send(self, change: Change, landed: Landed) -> Flight:
        """Write `change`, and call `landed` with what became of it, never `Unknown`; from within the writer's task.

        Raises:
            StoreUnavailableError: The writer is closed.
        """
        if self._is_closed:
            raise _not_written()
        flight = Flight(change, landed)
        self._queue.append(flight)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="outlast-writer")
        return flight

    async def close(self, within: float = 0.0) -> None:
        """Take nothing more, and stop once everything is written; what is not written by then is given up.

        Args:
            within: Seconds.
        """
        self._is_closed = True
        if self._task is not None and within:
            await asyncio.wait({self._task}, timeout=within)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up(self._queue)
        self._queue.clear()

    def _give_up(self, waiting: Iterable[Flight]) -> None:
        for one in waiting:
            one.landed(_not_written())

    async def _run(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            batch = [one for one in batch if one.is_wanted]
            if not batch:
                continue
            again = await self._send(batch)
            if again:
                self._queue.extendleft(reversed(again))
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_SECONDS)
            else:
                wait = FIRST_WAIT_SECONDS

    async def _send(self, batch: list[Flight]) -> list[Flight]:
        """Commit once; return those whose fate is not known yet."""
        renewed = self._sending()
        try:
            verdicts = await self._store.commit([one.change for one in batch])
        except StoreUnavailableError as error:
            logger.warning("the store cannot be written, trying again: %s", error)
            return batch
        except asyncio.CancelledError:
            self._give_up(batch)
            raise
        except Exception as error:  # noqa: BLE001 - a bug of the store's, for those who wait; the others go on
            for one in batch:
                one.landed(error)
            return []
        again: list[Flight] = []
        for one, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Unknown):
                again.append(one)
                continue
            if isinstance(verdict, Applied) and isinstance(one.change, RunChange):
                renewed(one.change.worker)
            one.landed(verdict)
        return again


def _tell(awaited: asyncio.Future[Verdict], landed: Verdict | Exception) -> None:
    """Tell a task what it waits for, if it still does."""
    if awaited.done():
        return
    if isinstance(landed, Exception):
        awaited.set_exception(landed)
    else:
        awaited.set_result(landed)


def _not_written() -> StoreUnavailableError:
    return StoreUnavailableError(
        "the worker of this app has stopped before the store took this change, as far as it knows",
        hint="open the store again and look; the same start or decision, done again, counts once",
    )
