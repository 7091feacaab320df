"""Puts the end of an effect's attempt into the inbox of its run, when the worker in which it ended has lost the run.

What such an attempt came to is the best that anybody can know of the effect, and nobody else knows it. It is an unowned change: who
owns the run decides what it means (`worker.late`). Each deposit has an id of its own, so that one which is sent again is the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from outlast.effects.intent import RAISED, RETURNED, Resolution
from outlast.errors import StoreUnavailableError
from outlast.journal.entry import OperationId
from outlast.store.change import (
    Applied,
    Message,
    MessageKind,
    PutMessage,
    RunKey,
    Unknown,
    WorkerId,
)
from outlast.store.protocol import Store
from outlast.worker.executor import Raised, Returned

logger = logging.getLogger("outlast.worker")

_WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries: half a minute in which a store may come back. After that only the log keeps it."""


@dataclass(frozen=True, slots=True)
class LateAttempt:
    """An attempt whose end the run's worker did not wait for.

    Args:
        doubt: Position in the journal of the last doubt about the effect when it began; None where there was none.
        number: As `Attempt.number`.
        worker: In which it was made.
    """

    run: RunKey
    generation: int
    operation: OperationId
    name: str
    number: int
    worker: WorkerId
    doubt: int | None = None

    def __str__(self) -> str:
        """Name it, for a log."""
        return f"run {self.run}: attempt {self.number} of {self.name} ({self.operation})"


class Deposits:
    """The late ends that a worker knows of, through all of its lives.

    Args:
        store: Where they are put. Not by the worker's writer: it may be closed, while a thread is still in the middle of an effect.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: dict[asyncio.Task[None], RunKey] = {}
        self._count = 0
        self._is_dead = False

    def of(self, attempt: LateAttempt) -> Callable[[Returned | Raised], None]:
        """Return what is to be called with the end of an attempt for which nobody waited."""

        def deposit(end: Returned | Raised) -> None:
            self.put(attempt, end)

        return deposit

    def put(self, attempt: LateAttempt, end: Returned | Raised) -> None:
        """Put an end into the run's inbox, in a task of its own."""
        if self._is_dead:
            return
        self._count += 1
        change = _change(attempt, end, self._count)
        task = asyncio.get_running_loop().create_task(
            self._put(attempt, change), name=f"outlast late {attempt.run} {attempt.operation}"
        )
        self._tasks[task] = attempt.run
        task.add_done_callback(self._tasks.pop)

    async def settled(self, run: RunKey) -> None:
        """Return when nothing of this run is on its way into its inbox."""
        tasks = [task for task, one in self._tasks.items() if one == run]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self, within: float) -> None:
        """Wait until everything is put; what is not by then is in the log only.

        Args:
            within: Seconds.
        """
        tasks = set(self._tasks)
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=within)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def kill(self) -> None:
        """Put nothing more, as if the process died."""
        self._is_dead = True
        for task in self._tasks:
            task.cancel()

    async def _put(self, attempt: LateAttempt, change: PutMessage) -> None:
        try:
            await self._send(attempt, change)
        except asyncio.CancelledError:
            if not self._is_dead:
                _lost(attempt, "the worker stops")
            raise
        except Exception:
            # A bug of ours: whoever looks for it finds what the attempt came to in the log.
            logger.exception("%s ended late; putting that into its inbox broke", attempt)

    async def _send(self, attempt: LateAttempt, change: PutMessage) -> None:
        for wait in (*_WAITS_SECONDS, None):
            try:
                (verdict,) = await self._store.commit([change])
            except StoreUnavailableError as error:
                verdict = Unknown(str(error))
            if isinstance(verdict, Applied):
                logger.warning(
                    "%s ended after its worker had lost the run; its end is in the run's inbox",
                    attempt,
                )
                return
            if not isinstance(verdict, Unknown):
                _lost(attempt, f"the store answered {verdict}")
                return
            if wait is not None:
                await asyncio.sleep(wait)
        _lost(attempt, "the store is away")


def _change(attempt: LateAttempt, end: Returned | Raised, count: int) -> PutMessage:
    returned = isinstance(end, Returned)
    told = "returned" if returned else "ended in an error"
    resolution = Resolution(
        operation=attempt.operation,
        generation=attempt.generation,
        outcome=RETURNED if returned else RAISED,
        value=Raw(end.value) if isinstance(end, Returned) else Raw(b"null"),
        failure=end.failure if isinstance(end, Raised) else None,
        by=attempt.worker,
        reason=f"attempt {attempt.number} {told} after its worker had lost the run",
        name=attempt.name,
        doubt=attempt.doubt,
    )
    names = (attempt.generation, attempt.operation, attempt.number, attempt.worker, count)
    message = Message(
        "late/" + "/".join(map(str, names)),
        MessageKind.OUTCOME,
        attempt.operation,
        attempt.worker,
        msgspec.json.encode(resolution),
    )
    return PutMessage(attempt.run, message, generation=attempt.generation)


def _lost(attempt: LateAttempt, why: str) -> None:
    logger.error(
        "%s ended after its worker had lost the run, and that could not be put into the run's inbox: %s; "
        "look up in the remote system what it has done",
        attempt,
        why,
    )
