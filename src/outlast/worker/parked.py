"""Tells the app of runs that need somebody: called at the transition to `blocked`.

Once is meant so: the worker whose write made the run `blocked` calls after that write, and nobody else does. A run that is taken up and
comes to rest for the same reason, also by another worker or after a restart, is not told of again; for another reason, or another doubt, it
is. A process that dies between the write and the call tells nobody: what counts is the run's status, which `outlast doctor` shows.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from outlast.clock import Threads
from outlast.journal.parse import NotJsonError, parse_as

logger = logging.getLogger("outlast.worker")

NOTED = "blocked"
"""Where a parked run's note holds what was told of."""


class Parked(msgspec.Struct, frozen=True):
    """A run that goes no further until somebody does something about it.

    Args:
        reason: As the run's status has it: `in doubt`, `poison`, `non-determinism` …
        why: In words.

    Example:
        ```python
        import outlast

        def page(run: outlast.Parked) -> None:
            print(f"{run.run_id} is blocked ({run.reason}): {run.why}; outlast runs explain {run.run_id}")

        async with outlast.open("memory://", on_parked=page) as app:
            assert not await app.runs.list(statuses={"blocked"})  # as long as nothing is, nobody is told
        ```
    """

    tenant: str
    run_id: str
    workflow: str
    reason: str
    why: str


OnParked: TypeAlias = Callable[[Parked], Awaitable[object] | object]
"""May be async; a plain function is called in a thread. What it raises is logged."""


class _Note(msgspec.Struct):
    """What is read of the note of a run that came to rest."""

    blocked: tuple[str | int, ...] = ()


def told_in(note: bytes) -> tuple[str | int, ...]:
    """Return what a run's note says was told of; nothing where it cannot be read."""
    try:
        return parse_as(_notes, note).blocked
    except NotJsonError:
        return ()


class Parking:
    """Calls what the app gave.

    Args:
        told: None where nobody wants to know.
    """

    def __init__(self, told: OnParked | None, threads: Threads) -> None:
        self._told = told
        self._threads = threads
        self._calls: set[asyncio.Task[None]] = set()

    def tell(self, parked: Parked) -> None:
        """Call it, beside everything else."""
        if self._told is None:
            return
        call = asyncio.get_running_loop().create_task(self._call(parked), name="outlast-parked")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def close(self, within: float) -> None:
        """Return when all calls have ended; what takes longer is cancelled.

        Args:
            within: Seconds.
        """
        if self._calls:
            await asyncio.wait(self._calls, timeout=within)
        for call in list(self._calls):
            call.cancel()

    async def _call(self, parked: Parked) -> None:
        told = self._told
        assert told is not None
        try:
            if inspect.iscoroutinefunction(told):
                await told(parked)
            else:
                result = await self._threads.run(lambda: told(parked))
                if inspect.isawaitable(result):
                    await result
        except Exception:
            # The app's code: whatever is wrong with it is no reason to stop a worker.
            logger.exception("run %s: on_parked failed", parked.run_id)


_notes = msgspec.json.Decoder(_Note)
