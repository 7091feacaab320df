"""What an author writes around effects that are to stand together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError, SagaClosedError
from outlast.journal.failure import capture
from outlast.replay.context import OpenSaga, context


class Saga:
    """A block whose effects stand together, or are undone together; see `saga`.

    Example:
        ```python
        import outlast

        @outlast.effect(idempotent=True)
        async def pay(amount: int) -> str:
            return f"paid {amount}"

        @outlast.workflow
        async def both(amount: int) -> list[str]:
            together: outlast.Saga = outlast.saga()
            async with together:
                return [await pay(amount), await pay(2 * amount)]

        async with outlast.open("memory://") as app:
            assert await app.run(both(3), id="b") == ["paid 3", "paid 6"]
        ```
    """

    def __init__(self) -> None:
        self._open: OpenSaga | None = None
        self.is_whole = True
        """Whether all that it did was undone, where it was to be."""

    async def __aenter__(self) -> Saga:
        """Begin the saga.

        Raises:
            SagaClosedError: The saga around it is being undone.
            DefinitionError: It was begun before.
        """
        current = context("outlast.saga")
        if self._open is not None:
            raise DefinitionError(
                "a saga was entered twice", hint="write `async with outlast.saga():` for each"
            )
        self._open = current.enter_saga()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let what was done stand; or undo it, newest first, and let the exception pass then."""
        assert self._open is not None
        undoing = self._open.leave(error)
        if undoing is not None:
            self.is_whole = await undoing


def saga() -> Saga:
    """Let the effects of a block stand together: when it raises, what they did is undone, newest first.

    Each effect inside that says `compensate=` is undone by that effect, when the block raises or is cancelled. First nothing more begins
    in it: a call of an effect, also by a task that was created inside, raises `SagaClosedError`. What is under way is waited for, and so
    is what is in doubt. Then each compensation is an effect like any other, with a key, retries and a probe of its own, in a task that no
    cancel reaches. One that gives up blocks the run (`compensation failed`), until an operator says that it was done by hand, lets it be
    tried again, or leaves it. The exception passes when all is undone. A run that ends by it is `compensated`, or `partly compensated`.

    A saga inside another one is part of it: its effects stand when its block returns, and are undone when the outer block raises.
    Sagas in tasks of one block are undone each by itself, or together by the one around them. A task whose saga is open when its run
    ends is cancelled first.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        BOOKED: list[str] = []
        SOON = timedelta(seconds=10)

        @outlast.effect(idempotent=True, start_to_close_timeout=SOON)
        async def cancel_flight(result: str) -> None:
            BOOKED.remove(result)

        @outlast.effect(idempotent=True, start_to_close_timeout=SOON, compensate=cancel_flight)
        async def book_flight(city: str) -> str:
            BOOKED.append(f"flight to {city}")
            return BOOKED[-1]

        @outlast.workflow
        async def travel(city: str) -> str:
            async with outlast.saga():
                flight = await book_flight(city)
                raise LookupError(f"no hotel in {city}")
            return flight

        async with outlast.open("memory://") as app:
            handle = await app.start(travel("Oslo"), id="oslo")
            try:
                await handle.result()
            except outlast.WorkflowFailedError:
                pass
            assert (await handle.status()).status == "compensated" and not BOOKED
        ```
    """
    return Saga()


class SavePoint:
    """The tries of a part of a saga; see `save_point`."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._failures = 0
        self._last: Try | None = None

    def __aiter__(self) -> AsyncIterator[Try]:
        """Return itself."""
        return self

    async def __anext__(self) -> Try:
        """Return the next try, when it is due."""
        if self._last is not None:
            if not self._last.is_to_follow:
                raise StopAsyncIteration
            self._failures += 1
            await asyncio.sleep(self._retry.gap(self._failures).total_seconds())
        self._last = Try(self._retry, self._failures + 1)
        return self._last


class Try:
    """One try of a part of a saga, to be used as `async with`; what it did is undone before the next one.

    Args:
        number: Counted from 1.
    """

    def __init__(self, retry: RetryPolicy, number: int) -> None:
        self._saga = Saga()
        self._retry = retry
        self.number = number
        self.is_to_follow = False
        """Whether it failed, and another one follows."""

    async def __aenter__(self) -> Try:
        """Begin it, as a saga inside the one around it."""
        await self._saga.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Let what was done stand; or undo it, and let the exception pass when no other try follows."""
        await self._saga.__aexit__(kind, error, trace)
        if not isinstance(error, Exception) or isinstance(error, SagaClosedError):
            return False
        may = (
            self._saga.is_whole
            and self._retry.retries(capture(error).type)
            and self._retry.allows_another(self.number)
        )
        self.is_to_follow = may
        return may


def save_point(retry: RetryPolicy) -> SavePoint:
    """Try a part of a saga again from here: what a try did is undone, and what came before stands.

    Args:
        retry: How often, how long after each other, and after which exceptions.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        TRIES: list[int] = []

        @outlast.step
        async def find_car(number: int) -> str:
            TRIES.append(number)
            return "" if number == 1 else "red car"

        @outlast.workflow
        async def travel() -> str:
            async with outlast.saga():
                policy = outlast.RetryPolicy(initial_interval=timedelta(milliseconds=1), maximum_attempts=3)
                async for part in outlast.save_point(policy):
                    async with part:
                        car = await find_car(part.number)
                        if not car:
                            raise LookupError("no car")
            return car

        async with outlast.open("memory://") as app:
            assert await app.run(travel(), id="t") == "red car" and TRIES == [1, 2]
        ```
    """
    context("outlast.save_point")
    return SavePoint(retry)
