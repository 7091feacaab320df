"""Randomness and threads from a seed: "threads" are callbacks of the simulated loop, between the others."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Any, TypeVar

from outlast.testing.loop import current_process

T = TypeVar("T")


class SeededRandom:
    """Bits from a seed.

    Args:
        seed: Equal seeds give equal bits.
    """

    def __init__(self, seed: str) -> None:
        self._source = random.Random(seed)  # noqa: S311 - a seed must repeat

    def bits(self, count: int) -> bytes:
        """Return `count` bytes."""
        return self._source.randbytes(count)


class SimulatedThreads:
    """Runs functions on the simulated loop, each after a seeded delay.

    A function runs in one go, at one moment; `busy` says how long its thread goes on after that.

    Args:
        source: Where delays come from.
        delay: Seconds at most between the asking and the run, and again between the run and the answer.
    """

    def __init__(self, source: random.Random, *, delay: float = 0.0) -> None:
        self._source = source
        self._delay = delay
        self._busy = 0.0
        self.crowded = 0.0
        """Seconds that a function waits for a free thread. One that was cancelled meanwhile is called all the same, the worst case."""

    def busy(self, seconds: float) -> None:
        """Let the thread that runs now return only after so long. To be called in a synchronous body."""
        self._busy += seconds

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run `function` in a simulated thread."""
        loop = asyncio.get_running_loop()
        context = _of_threads()
        answer: asyncio.Future[T] = loop.create_future()

        def begin() -> None:
            process = current_process.get()
            if process is not None and process.dead:
                # Only when the simulation is put away do callbacks of the dead run at all.
                answer.cancel()
                return
            self._busy = 0.0
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - carried to whoever waits, as a thread does
                finish: Callable[[], None] = lambda error=error: _fail(answer, error)  # noqa: E731
            else:
                finish = lambda: _return(answer, value)  # noqa: E731
            loop.call_later(self._wait() + self._busy, finish, context=context)

        loop.call_later(self._wait() + self.crowded, begin, context=context)
        return answer

    def every(self, seconds: float, tick: Callable[[], Any], *, name: str) -> Callable[[], None]:
        """Call `tick` each `seconds` until the returned function is called."""
        del name
        loop = asyncio.get_running_loop()
        context = _of_threads()
        stopped = False

        def again() -> None:
            process = current_process.get()
            if stopped or (process is not None and process.dead):
                return
            tick()
            loop.call_later(seconds, again, context=context)

        def stop() -> None:
            nonlocal stopped
            stopped = True

        loop.call_later(seconds, again, context=context)
        return stop

    def _wait(self) -> float:
        return self._source.uniform(0, self._delay) if self._delay else 0.0


def _of_threads() -> contextvars.Context:
    """Return the caller's context, as it is in a thread of its process."""
    context = contextvars.copy_context()
    process = current_process.get()
    if process is not None:
        context.run(current_process.set, process.threads)
    return context


def _return(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
