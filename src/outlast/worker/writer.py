"""Group commit: whatever the runs of a worker produce while one commit is under way goes into the next one together.

Whoever submits gets a definite verdict. A change whose fate is unknown is sent again, exactly as it was, until the store says;
the digest on the head makes that harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outlast.errors import StoreUnavailableError
from outlast.store.change import Applied, Change, RunChange, Unknown, Verdict
from outlast.store.protocol import Store

logger = logging.getLogger("outlast.worker")

BATCH = 500
"""Changes in one transaction at most: a commit of that size takes milliseconds, so no run waits long for its neighbours."""

FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0


@dataclass(slots=True)
class _Waiting:
    change: Change
    verdict: asyncio.Future[Verdict]


class Writer:
    """The one way by which a worker's runs reach the store.

    Args:
        store: Where to.
        sending: Called before each commit with owned changes; what it returns is called when one was applied, so that
            the lease counts from the sending.
    """

    def __init__(self, store: Store, sending: Callable[[], Callable[[], None]]) -> None:
        self._store = store
        self._sending = sending
        self._queue: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, change: Change) -> Verdict:
        """Write `change`, and return what became of it: never `Unknown`."""
        waiting = _Waiting(change, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="outlast-writer")
        return await waiting.verdict

    async def close(self) -> None:
        """Stop. What is queued and not yet sent is not written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._queue:
            waiting.verdict.cancel()
        self._queue.clear()

    async def _run(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            batch = [one for one in batch if not one.verdict.cancelled()]
            if not batch:
                continue
            again = await self._send(batch)
            if again:
                self._queue.extendleft(reversed(again))
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_SECONDS)
            else:
                wait = FIRST_WAIT_SECONDS

    async def _send(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Commit once; return those whose fate is not known yet."""
        renewed = self._sending()
        try:
            verdicts = await self._store.commit([one.change for one in batch])
        except StoreUnavailableError as error:
            logger.warning("the store cannot be written, trying again: %s", error)
            return batch
        except BaseException as error:
            for one in batch:
                if not one.verdict.done():
                    one.verdict.set_exception(error) if isinstance(
                        error, Exception
                    ) else one.verdict.cancel()
            raise
        again: list[_Waiting] = []
        for one, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Unknown):
                again.append(one)
                continue
            if isinstance(verdict, Applied) and isinstance(one.change, RunChange):
                renewed()
            if not one.verdict.done():
                one.verdict.set_result(verdict)
        return again
