"""Typed questions to a run: a name on the wire, types in the code. Asking changes nothing and needs no worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from outlast.effects.key import check_name
from outlast.errors import DefinitionError
from outlast.journal.codec import TypeCodec, codec_for
from outlast.replay.context import context
from outlast.replay.query import QueryHandler
from outlast.workflows.handler import taking_a_value

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
Given = TypeVar("Given")


class Query(Generic[T, R]):
    """A question that a run answers, whether it waits, is parked, blocked or closed, and whether or not a worker lives.

    It is answered by whoever asks: the run's code is replayed there, up to the last commit, and its handler looks at what the
    workflow has noted. So the process that asks has to have the code. Where that is too much, see `publish`.

    Args:
        name: Unique in the run.
        type: Of the question's value; None for a question without one.
        result: Type of the answer.

    Raises:
        DefinitionError: The name cannot be stored, or a type cannot.

    Example:
        ```python
        import asyncio
        import outlast

        counted = outlast.Query("counted", None, int)
        stop = outlast.Signal("stop", bool)

        @outlast.workflow
        async def collect() -> int:
            numbers: list[int] = []
            outlast.on_query(counted, lambda: len(numbers))
            while len(numbers) < 3:
                numbers.append(len(numbers))
                await outlast.sleep(0.01)
            await outlast.receive(stop)
            return len(numbers)

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(collect(), id="collect-1")
                await handle.send(stop, True)
                await handle.result()
                assert await handle.query(counted) == 3

        asyncio.run(main())
        ```
    """

    @overload
    def __init__(self: Query[None, A], name: str, type: None, result: type[A]) -> None: ...
    @overload
    def __init__(self: Query[Given, A], name: str, type: type[Given], result: type[A]) -> None: ...
    @overload
    def __init__(self: Query[None, Any], name: str, type: None, result: Any) -> None: ...
    @overload
    def __init__(self: Query[Given, Any], name: str, type: type[Given], result: Any) -> None: ...
    @overload
    def __init__(self: Query[Any, A], name: str, type: Any, result: type[A]) -> None: ...
    @overload
    def __init__(self: Query[Any, Any], name: str, type: Any, result: Any) -> None: ...
    def __init__(self, name: str, type: Any, result: Any) -> None:  # noqa: A002 - the field's word
        self.name = check_name(name, what="query")
        self.type: Any = type
        self.codec: TypeCodec[T] = codec_for(type, where=f"the value of query {self.name!r}")
        """How its values are stored."""
        self.result: TypeCodec[R] = codec_for(result, where=f"the answer to query {self.name!r}")
        """How its answers are stored."""

    def __repr__(self) -> str:
        """Show the name."""
        return f"Query({self.name!r})"


@overload
def on_query(query: Query[None, R], handler: Callable[[], R]) -> None: ...
@overload
def on_query(query: Query[T, R], handler: Callable[[T], R]) -> None: ...
def on_query(query: Query[Any, Any], handler: Callable[..., Any]) -> None:
    """Answer a query from now on, also when the run has ended. Call it before the first await: until then nobody gets an answer.

    Args:
        handler: A plain function of the query's value; of nothing, or of None, where it has none. It reads what the workflow has
            noted and changes nothing: it runs in the processes that ask, on a copy of the run that was replayed there.

    Raises:
        DefinitionError: The query has a handler already, or the handler is a coroutine function or cannot take the value.

    Example:
        ```python
        import asyncio
        import outlast

        letters = outlast.Query("letters", int, str)

        @outlast.workflow
        async def spell(word: str) -> int:
            outlast.on_query(letters, lambda count: word[:count])
            return len(word)

        async def main() -> None:
            async with outlast.open("memory://") as app:
                handle = await app.start(spell("durable"), id="spell-1")
                assert await handle.result() == 7
                assert await handle.query(letters, 3) == "dur"

        asyncio.run(main())
        ```
    """
    current = context("outlast.on_query")
    if inspect.iscoroutinefunction(handler):
        raise DefinitionError(
            f"the handler of query {query.name!r} is a coroutine function",
            hint="write a plain function that returns what the workflow has noted; awaited work belongs to the workflow",
        )
    call = taking_a_value(handler, query.type, f"the handler of query {query.name!r}")
    current.on_query(query.name, QueryHandler(query.codec.decode, call, query.result.encode))
