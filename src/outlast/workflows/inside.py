"""What a workflow can say besides calling steps and effects."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Raw

from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.journal.codec import codec_of
from outlast.replay.condition import check_predicate
from outlast.replay.context import RunInfo, context
from outlast.replay.entropy import RunRandom
from outlast.workflows.message import Signal

T = TypeVar("T")


def now() -> datetime:
    """Return the run's time: that of the last thing that was recorded, the same in every replay.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def year() -> int:
            return outlast.now().year

        async with outlast.open("memory://") as app:
            assert await app.run(year(), id="y") >= 2026
        ```
    """
    return context("outlast.now").now()


def random() -> RunRandom:
    """Return a fresh random generator that gives the same values in every replay.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def dice() -> int:
            return outlast.random().randint(1, 6)

        async with outlast.open("memory://") as app:
            assert 1 <= await app.run(dice(), id="d") <= 6
        ```
    """
    return context("outlast.random").random()


def uuid4() -> UUID:
    """Return a random UUID, the same in every replay.

    Example:
        ```python
        from uuid import UUID
        import outlast

        @outlast.workflow
        async def name() -> UUID:
            return outlast.uuid4()

        async with outlast.open("memory://") as app:
            assert (await app.run(name(), id="n")).version == 4
        ```
    """
    return context("outlast.uuid4").uuid4()


def info() -> RunInfo:
    """Return what the workflow may know about its own run.

    Example:
        ```python
        import outlast

        @outlast.workflow
        async def who() -> str:
            about = outlast.info()
            return f"{about.workflow} {about.run_id}"

        async with outlast.open("memory://") as app:
            assert await app.run(who(), id="w") == "who w"
        ```
    """
    return context("outlast.info").info()


async def sleep(duration: timedelta | float) -> None:
    """Wait; the wait survives restarts, and runs on while no worker does.

    Args:
        duration: A `timedelta`, or seconds.

    Raises:
        DefinitionError: It is no length of time.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        @outlast.workflow
        async def nap() -> str:
            await outlast.sleep(timedelta(milliseconds=10))  # days are no different
            return "awake"

        async with outlast.open("memory://") as app:
            assert await app.run(nap(), id="n") == "awake"
        ```
    """
    context("outlast.sleep")
    await asyncio.sleep(_seconds(duration, "outlast.sleep"))


async def receive(signal: Signal[T], *, timeout: timedelta | float | None = None) -> T:  # noqa: ASYNC109 - durable
    """Return the next message of this signal; messages that came earlier wait in the run's inbox.

    One that no longer fits the signal's type, because the code has changed, blocks the run as `undecodable`; it goes on with code that
    fits.

    Args:
        timeout: A `timedelta`, or seconds; no limit by default.

    Raises:
        TimeoutError: None came in time.
        DefinitionError: The signal has a handler, or the timeout is no length of time.

    Example:
        ```python
        from datetime import timedelta
        import outlast

        PAID = outlast.Signal("paid", int)

        @outlast.workflow
        async def sell() -> str:
            try:
                amount = await outlast.receive(PAID, timeout=timedelta(days=3))
            except TimeoutError:
                return "not paid in time"
            return f"paid {amount}"

        async with outlast.open("memory://") as app:
            handle = await app.start(sell(), id="order-1")
            await handle.send(PAID, 30)
            assert await handle.result() == "paid 30"
        ```
    """
    current = context("outlast.receive")
    seconds = None if timeout is None else _seconds(timeout, "the timeout of outlast.receive")
    async with asyncio.timeout(seconds):
        return await current.receive(signal.name, signal.codec.decode)


async def wait_condition(
    predicate: Callable[[], bool],
    *,
    timeout: timedelta | float | None = None,  # noqa: ASYNC109 - durable
) -> None:
    """Wait until `predicate()` is true; it is looked at after every turn, when all messages of the turn were handled.

    Args:
        predicate: A plain function, without parameters, that only looks.
        timeout: A `timedelta`, or seconds; no limit by default.

    Raises:
        TimeoutError: It did not become true in time.
        DefinitionError: The predicate cannot be called, or is async; or the timeout is no length of time.

    Example:
        ```python
        import asyncio
        import outlast

        VOTE = outlast.Signal("vote", str)

        @outlast.workflow
        async def elect() -> list[str]:
            votes: list[str] = []

            async def collect() -> None:
                while True:
                    votes.append(await outlast.receive(VOTE))

            collecting = asyncio.create_task(collect())
            await outlast.wait_condition(lambda: len(votes) == 2)
            collecting.cancel()
            return votes

        async with outlast.open("memory://") as app:
            handle = await app.start(elect(), id="e")
            await handle.send(VOTE, "yes")
            await handle.send(VOTE, "no")
            assert await handle.result() == ["yes", "no"]
        ```
    """
    current = context("outlast.wait_condition")
    check_predicate(predicate)
    seconds = (
        None if timeout is None else _seconds(timeout, "the timeout of outlast.wait_condition")
    )
    async with asyncio.timeout(seconds):
        await current.wait_condition(predicate)


def all_handlers_finished() -> bool:
    """Return whether no message is being handled: wait for it before the workflow returns or goes on as new.

    What the body returns, and what it hands to `continue_as_new`, is settled where it says so. A handler that is in the middle of
    a step then ends all the same, and its sender is answered; but what it does to the workflow's variables comes too late. A worker
    warns of that in its log.

    Example:
        ```python
        import outlast

        ADD = outlast.Update("add", int, int)

        @outlast.step
        async def check(number: int) -> int:
            return number

        @outlast.workflow
        async def tally(most: int) -> int:
            total = 0

            async def add(number: int) -> int:
                nonlocal total
                total += await check(number)
                return total

            outlast.on_update(ADD, add)
            await outlast.wait_condition(lambda: total >= most)
            await outlast.wait_condition(outlast.all_handlers_finished)
            return total

        async with outlast.open("memory://") as app:
            handle = await app.start(tally(5), id="t")
            assert await handle.update(ADD, 7) == 7
            assert await handle.result() == 7
        ```
    """
    return context("outlast.all_handlers_finished").handlers_finished()


def _seconds(given: object, what: str) -> float:
    """Return a length of time in seconds.

    Args:
        what: Says it, for the error.
    """
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, int | float) and not math.isnan(given):
        return given
    raise DefinitionError(
        f"{what} is {given!r}, which is no length of time",
        hint="give a timedelta, as timedelta(hours=1), or seconds",
    )


def publish(key: str, value: Any) -> None:
    """Publish a value under a key, to be read from outside as long as the run is kept: the cheap way to show progress.

    It is readable once it is durable, after everything that the run did before it; a later value replaces it. Reading costs one
    look into the store and runs no code of the workflow: `handle.published(key)`, or `outlast runs published RUN KEY`.

    Args:
        value: Any value that can be stored.

    Raises:
        DefinitionError: The key cannot be stored.
        EncodeError: The value cannot be stored; nothing is published.

    Example:
        ```python
        import asyncio
        import outlast

        @outlast.workflow
        async def publishing(most: int) -> str:
            for number in range(1, most + 1):
                outlast.publish("counted", number)
                await outlast.sleep(0.01)
            return "done"

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(publishing(3), id="publishing-1")
                assert await handle.result() == "done"
                assert await handle.published("counted", int) == 3

        asyncio.run(main())
        ```
    """
    current = context("outlast.publish")
    check_name(key, what="published value")
    where = f"the value published as {key!r}"
    current.publish(key, Raw(codec_of(value, where=where).encode(value)))
